/* policy.c: what a policy with its settings asks of a model and its sessions, and how a score becomes a choice of
 * rows. */
#include "policy.h"
#include "codec.h"

/* ---- what it asks of a model and its sessions --------------------------------------------------------------------*/

enum { FOLD = 64 }; /* queries that a policy which asks all of them, but evicts once, is told of at a time */
bool policy_any(const PolicyCfg *p) { return p && (policy_acts(p) || p->read); }
bool policy_acts(const PolicyCfg *p) { return p && p->of && p->of != p->read && p->budget != 1; }
bool policy_once(const PolicyCfg *p) { return policy_acts(p) && p->every == 0; }
bool policy_unprompted(const PolicyCfg *p, Err *e) {
    if (p->read)
        return err_input(e,
                         "--policy %s: it selects what is read after a prompt, and this command has none; leave it out",
                         p->read->name);
    if (!policy_once(p)) return true;
    return err_input(e, "--policy %s: every: this command has no prompt whose end it could wait for; give every=N",
                     p->of->name);
}
int policy_every(const PolicyCfg *p) { return policy_acts(p) ? p->every : 0; }
int policy_cut(const PolicyCfg *p) {
    if (!policy_acts(p)) return 0;
    return p->every ? p->every : p->of->ask.whom == ASK_ALL ? FOLD : 0;
}
int policy_whom(const PolicyCfg *p) { return p->catalyst ? ASK_PROMPT : (int)p->of->ask.whom; }
bool policy_feeds(const PolicyCfg *p) {
    return policy_acts(p) && (policy_whom(p) == ASK_REPLAY || policy_whom(p) == ASK_PROMPT);
}
bool policy_replays(const PolicyCfg *p, int n) { return policy_feeds(p) && policy_rows(p, n) < n; }
int policy_replay_tokens(const PolicyCfg *p, int n) {
    if (!policy_feeds(p)) return 0;
    if (policy_whom(p) == ASK_PROMPT) return p->request[REQUEST_FIRST].n;
    return imax(p->request[REQUEST_FIRST].n, p->request[REQUEST_NEXT].n + REPLAY_NAMED) + p->request[REQUEST_END].n +
           imin(p->chunk, n);
}
int policy_queries(const PolicyCfg *p) {
    if (!policy_acts(p)) return 0;
    switch (policy_whom(p)) {
    case ASK_WINDOW: return p->window;
    case ASK_QUERIES: return p->queries;
    case ASK_ALL: return policy_cut(p);
    case ASK_REPLAY:
    case ASK_PROMPT: return REPLAY_ROWS;
    default: return 0;
    }
}
bool policy_asks_last(const PolicyCfg *p) {
    return policy_once(p) && (policy_whom(p) == ASK_WINDOW || policy_whom(p) == ASK_QUERIES);
}
bool policy_suits(const PolicyCfg *p, const KvShape *s) {
    if (!s->lanes || s->evicts || s->window) return false;
    if (p && p->read && p->read->guesses && (!s->heads || s->alias)) return false;
    if (!p || !p->of || p->of->ask.whom == ASK_NOBODY) return true;
    return s->heads && !(s->alias && (p->of->ask.value != COL_PLAIN || p->of->needs & NEED_VALUES));
}
size_t policy_state_bytes(const PolicyCfg *p, const KvShape *s) {
    if (!policy_acts(p) || !policy_suits(p, s)) return 0;
    const size_t asked = policy_feeds(p) ? 0 : (size_t)policy_queries(p) * (size_t)s->heads;
    return (asked * (size_t)(s->kdim + 1) + (size_t)s->last) * sizeof(real);
}
bool policy_novelty(const PolicyCfg *p) { return policy_acts(p) && p->of->novelty; }
const RowCodec *policy_codec(const PolicyCfg *p, int slot) {
    static const RowCodec *const codecs[] = {[2] = &codec_int2, &codec_int3, &codec_int4};
    return p && p->read && slot < p->coded ? codecs[p->code_bits] : NULL;
}
size_t policy_summary(const PolicyCfg *p, int kdim) {
    return p->read ? (size_t)(p->read->summary_channels * kdim + p->read->summary_more) : 0;
}
size_t policy_row_bytes(const PolicyCfg *p, const KvShape *s) {
    if (!policy_any(p) || !policy_suits(p, s)) return 0;
    const size_t own = policy_acts(p) ? ((p->of->score != NULL) + (size_t)p->of->keeps) * sizeof(real) : 0,
                 page = s->coded ? 0 : policy_summary(p, s->kdim) * sizeof(real);
    return (size_t)s->lanes * (own + (page ? (page + (size_t)p->page - 1) / (size_t)p->page : 0));
}

/* ---- rows --------------------------------------------------------------------------------------------------------*/

int policy_rows(const PolicyCfg *p, int n) {
    const double least = (double)p->window + p->sinks,
                 most = p->budget > 1 ? floor(p->budget) : ceil(p->budget * n - 1e-9);
    return (int)fmin(n, fmax(least, most));
}
int policy_slot_rows(const PolicyCfg *p, int n, int slot, int slots) {
    return p->layers ? imin(n, p->layers->rows(p, n, slot, slots)) : policy_rows(p, n);
}
int policy_resident(const PolicyCfg *p, int n, int slot, int slots) {
    const int every = policy_every(p);
    int rows = 0, at = 0;
    if (!every) return policy_once(p) ? policy_slot_rows(p, n, slot, slots) : n;
    for (; at + every <= n; at += every) rows = imin(rows + every, policy_slot_rows(p, at + every, slot, slots));
    return rows + n - at;
}

int ranked_first(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->at - y->at;
}
void ranked_select(Ranked *x, int n, int k) {
    for (int lo = 0, hi = n - 1; lo < hi && k < n;) { /* Hoare's quickselect: x[k] comes to its place */
        const Ranked pivot = x[lo + (hi - lo) / 2];
        int i = lo, j = hi;
        while (i <= j) {
            while (ranked_first(&x[i], &pivot) < 0) i++;
            while (ranked_first(&pivot, &x[j]) < 0) j--;
            if (i > j) break;
            const Ranked swapped = x[i];
            x[i++] = x[j], x[j--] = swapped;
        }
        if (k > j && k < i) return;
        if (k <= j) hi = j;
        if (k >= i) lo = i;
    }
}
/* In four vectors of 16 bytes, which every processor has. */
static real dot_parts(const real *a, const real *b, int n) {
    enum { EACH = 16 / sizeof(real), PARTS = 4, STEP = PARTS * EACH };
    typedef real Part __attribute__((vector_size(16), aligned(sizeof(real)), may_alias));
    Part sum[PARTS] = {{0}};
    real total = 0;
    int k = 0;
    for (; k + STEP <= n; k += STEP)
        for (int i = 0; i < PARTS; i++) sum[i] += *(const Part *)(a + k + i * EACH) * *(const Part *)(b + k + i * EACH);
    const Part all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int i = 0; i < (int)EACH; i++) total += all[i];
    for (; k < n; k++) total += a[k] * b[k];
    return total;
}
void policy_dots(const PageChoice *c, const real *query, int width, real *out) {
    enum { AHEAD = 8, LINE = 64 / sizeof(real) };
    for (int i = 0; i < c->n; i++) {
        /* summaries lie anywhere: some are asked for while others are read */
        for (int k = 0; i + AHEAD < c->n && k < width; k += LINE) __builtin_prefetch(c->page[i + AHEAD] + k);
        out[i] = dot_parts(query, c->page[i], width);
    }
}
void policy_bound_query(const real *q, int D, real *out) {
    for (int d = 0; d < D; d++) out[d] = q[d] > 0 ? 0 : q[d], out[D + d] = q[d] > 0 ? q[d] : 0;
}
void policy_means(const real *keys, int P, int D, real *out) {
    for (int d = 0; d < D; d++) {
        double sum = 0;
        for (int r = 0; r < P; r++) sum += (double)keys[r * D + d];
        out[d] = (real)(sum / P);
    }
}
void policy_bounds(const real *keys, int P, int D, real *out) {
    real *low = out, *high = out + D;
    for (int r = 0; r < P; r++, keys += D)
        for (int d = 0; d < D; d++) {
            low[d] = r && low[d] < keys[d] ? low[d] : keys[d];
            high[d] = r && high[d] > keys[d] ? high[d] : keys[d];
        }
}
void policy_softmax(real *x, int n) {
    real most = -(real)INFINITY, sum = 0;
    for (int i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++) sum += x[i] = (real)exp((double)(x[i] - most));
    for (int i = 0; i < n; i++) x[i] /= sum;
}
void policy_each_lane(Choice *c, void (*one)(Choice *, int lane, const void *with), const void *with) {
#pragma omp parallel for schedule(dynamic) num_threads(c->threads)
    for (int h = 0; h < c->lanes; h++) one(c, h, with);
}
static void lane_pool(Choice *c, int h, const void *with) {
    (void)with;
    PolicyLane *l = &c->lane[h];
    const int width = c->p->pool, half = width / 2;
    int n = 0;
    while (n < l->n && l->pos[n] < c->next - c->p->window) n++;
    for (int i = 0; i < n; i++) {
        real sum = 0, most = 0;
        for (int j = imax(0, i - half); j < imin(n, i + half + 1); j++)
            sum += l->stat[j], most = l->stat[j] > most ? l->stat[j] : most;
        l->score[i] = c->p->peak ? most : sum / (real)width;
    }
}
void policy_pool(Choice *c) { policy_each_lane(c, lane_pool, NULL); }
void policy_stay(PolicyLane *l, double share) {
    Ranked *row = xcalloc((size_t)l->n + 1, sizeof *row);
    int n = 0, left = l->budget;
    for (int i = 0; i < l->n; i++) { /* rows are in the order of their positions: equal scores go to older ones */
        const real s = l->score[i];
        left -= l->stays[i];
        if (!l->stays[i]) row[n++] = (Ranked){s == s ? s : -(real)INFINITY, i}; /* NaN has no order */
    }
    const int most = imin(n, imax(0, (int)(share * left + 1e-9)));
    ranked_select(row, n, most);
    for (int i = 0; i < most; i++) l->stays[row[i].at] = true;
    free(row);
}
void policy_keep(PolicyLane *l) { policy_stay(l, 1); }
static void lane_sums(Choice *c, int h, const void *with) {
    (void)with;
    const PolicyLane *l = &c->lane[h];
    for (int i = 0; i < l->n; i++) l->score[i] = l->kept[i] += l->stat[i];
}
void policy_sums(Choice *c) { policy_each_lane(c, lane_sums, NULL); }
