/* dist_agree.c: agreement among ranks on everything besides the model's tensors: flags, hashes, checksums, errors. */
#include "dist_in.h"

bool dist_any(Dist *d, const char *name, bool *flag, int n, double *first, Err *e) {
    double x[9];
    CHECK(n >= 0 && n <= 8, "%d flags", n);
    for (int i = 0; i < n; i++) x[i] = flag[i];
    x[n] = d->rank || !first ? 0 : *first; /* zeros do not change a sum, whatever its order */
    CommCall c = {.kind = COMM_REDUCE, .name = name, .buf = x, .count = (size_t)n + (first != NULL), .dtype = F64};
    if (!comm_do(d->comm, c, e)) return false;
    for (int i = 0; i < n; i++) flag[i] = x[i] > 0;
    if (first) *first = x[n];
    return true;
}

bool dist_tell(Comm *c, const char *name, void *p, size_t bytes, Err *e) {
    CHECK(bytes % 2 == 0, "%zu bytes", bytes); /* bytes of any kind, as elements of the smallest dtype */
    return comm_do(c, (CommCall){.kind = COMM_BROADCAST, .name = name, .buf = p, .count = bytes / 2, .dtype = BF16}, e);
}

/* 64 bits as two doubles, so that no transport meets a NaN. */
bool dist_words(Comm *c, const char *name, const uint64_t *mine, int n, uint64_t *all, Err *e) {
    size_t W = (size_t)dist_world(c), k = (size_t)n, at = (size_t)dist_rank(c) * k;
    double *x = xcalloc(W * k * 2, sizeof *x);
    for (size_t i = 0; i < k; i++) {
        x[2 * (at + i)] = (double)(mine[i] >> 32);
        x[2 * (at + i) + 1] = (double)(mine[i] & UINT32_MAX);
    }
    bool ok = comm_do(c, (CommCall){.kind = COMM_GATHER, .name = name, .buf = x, .count = 2 * k, .dtype = F64}, e);
    for (size_t i = 0; ok && i < W * k; i++) all[i] = (uint64_t)x[2 * i] << 32 | (uint64_t)x[2 * i + 1];
    free(x);
    return ok;
}

bool dist_all(Comm *c, const char *name, bool *ok, Err *why, Err *e) {
    struct Word {
        uint64_t status;
        char host[64], msg[304];
    } * all;
    int W = dist_world(c), first = -1;
    if (W == 1) return true;
    all = xcalloc((size_t)W, sizeof *all);
    struct Word *mine = &all[c->rank];
    mine->status = *ok ? 0 : (uint64_t)why->status;
    snprintf(mine->host, sizeof mine->host, "%s", c->host);
    if (!*ok) snprintf(mine->msg, sizeof mine->msg, "%s", why->msg);
    size_t bytes = sizeof *all; /* as elements of the smallest dtype */
    CommCall call = {.kind = COMM_GATHER, .name = name, .buf = all, .count = bytes / 2, .dtype = BF16};
    bool heard = comm_do(c, call, e);
    for (int r = W - 1; heard && r >= 0; r--)
        if (all[r].status) first = r;
    if (heard && first >= 0) {
        const struct Word *w = &all[first];
        *ok = false;
        *why = (Err){0};
        if (!first) /* rank 0 needs no name */
            err_runtime(why, "%s", w->msg);
        else
            err_runtime(why, "rank %d on %s: %s", first, w->host, w->msg);
        why->status = (int)w->status;
    }
    free(all);
    return heard;
}

bool dist_agreed(Comm *c, const char *name, bool ok, Err *e) {
    Err asked = {0};
    if (dist_world(c) == 1) return ok;
    if (!dist_all(c, name, &ok, e, &asked)) {
        if (ok) *e = asked;
        return false;
    }
    if (!ok) c->agreed = true;
    return ok;
}

/* "2, 5" of the ranks that differ from `right`; at most a few. */
static int dist_agree_differing(const uint64_t *all, int world, uint64_t right, char text[64]) {
    int n = 0, at = 0;
    for (int r = 0; r < world; r++)
        if (all[r] != right && ++n && at < 48)
            at += snprintf(text + at, 64 - (size_t)at, at > 40 ? ", ..." : "%s%d", at ? ", " : "", r);
    return n;
}

bool dist_same(Comm *c, const char *what, uint64_t hash, Err *e) {
    if (dist_world(c) == 1) return true;
    uint64_t *all = xcalloc((size_t)c->world, sizeof *all);
    char who[64] = "";
    bool ok = dist_words(c, what, &hash, 1, all, e);
    if (ok && dist_agree_differing(all, c->world, all[0], who))
        ok = err_input(e, "rank %d on %s: rank %s of %d has %s different from rank 0's; give all ranks the same",
                       c->rank, c->host, who, c->world, what);
    free(all);
    return ok;
}

/* In pieces, because a GPU's elements are copied before they are checked. */
static uint64_t dist_agree_bits(Device *dev, uint64_t h, Tensor t) {
    enum { PIECE = 1 << 16 };
    unsigned char piece[PIECE];
    size_t n = tensor_bytes(t);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t m = zmin(PIECE, n - at), i = 0;
        const unsigned char *p = (const unsigned char *)t.p + at;
        if (dev) {
            device_read(dev, piece, p, m);
            p = piece;
        }
        for (; i + 8 <= m; i += 8) {
            uint64_t w;
            memcpy(&w, p + i, 8);
            h = (h ^ w) * 0x9E3779B97F4A7C15u;
            h ^= h >> 29;
        }
        for (; i < m; i++) h = rng_mix(h, p[i]);
    }
    return rng_mix(h, n);
}

static uint64_t dist_agree_checksum(const Dist *d) {
    uint64_t h = 0;
    for (int i = 0; i < d->all.n; i++) h = dist_agree_bits(d->at, h, d->all.p[i].t[PARAM_WEIGHT]);
    for (int i = 0; !d->stage && i < d->trained->n; i++)
        for (int k = 0; k < STATES_MAX; k++) {
            const Tensor t = d->trained->p[i].state[k].t;
            if (present(t)) h = dist_agree_bits(d->at, h, t);
        }
    return h;
}

bool dist_start(Dist *d, Err *e) {
    return !d->comm || dist_same(d->comm, "initial weights", dist_agree_checksum(d), e);
}

bool dist_check(Dist *d, int64_t step, Err *e) {
    if (!d->comm) return true;
    uint64_t h = dist_agree_checksum(d), *all = xcalloc((size_t)d->world, sizeof *all);
    bool ok = dist_words(d->comm, "checksums", &h, 1, all, e);
    int most = 0;
    uint64_t right = h;
    for (int r = 0; ok && r < d->world; r++) {
        int n = 0;
        for (int k = 0; k < d->world; k++) n += all[k] == all[r];
        if (n > most) most = n, right = all[r];
    }
    char who[64] = "";
    if (ok && dist_agree_differing(all, d->world, right, who))
        ok = err_runtime(e,
                         "rank %d on %s: after step %lld the weights of rank %s differ from those of the other %d; its "
                         "memory or its link is faulty",
                         d->rank, d->comm->host, (long long)step, who, most);
    free(all);
    return ok;
}
