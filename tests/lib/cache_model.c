#include "cache_model.h"

static size_t k_width(const KvShape *s) { return (size_t)s->lanes * (size_t)s->kdim; }
static size_t c_width(const KvShape *s) { return (size_t)s->lanes * (size_t)s->carry; }
static size_t v_width(const KvShape *s) { return (size_t)s->lanes * (size_t)s->vdim; }

void plain_open(Plain *m, const KvShape *shape, int nslots, int nseq, int max_tokens, int max_rows, int P) {
    plain_open_tier(m, NULL, shape, nslots, nseq, max_tokens, max_rows, P);
}
static bool opened(Cache *c, const KvTier *tier, const KvShape *shape, int nslots, int nseq, int max_tokens,
                   int max_rows, int P, bool dry, Err *e) {
    return kv_open_tier(c, NULL, NULL, tier, shape, nslots, nseq, max_tokens, max_rows, P, true, dry, e);
}
void plain_open_tier(Plain *m, const KvTier *tier, const KvShape *shape, int nslots, int nseq, int max_tokens,
                     int max_rows, int P) {
    Err e = {0};
    Cache dry;
    *m = (Plain){.nslots = nslots, .nseq = nseq, .max_tokens = max_tokens, .max_rows = max_rows, .P = P ? P : 64};
    if (shape->codec && shape->codec->block) m->P = shape->codec->block;
    cr_assert(opened(&dry, tier, shape, nslots, nseq, max_tokens, max_rows, P, true, &e), "%s", e.msg);
    cr_assert(opened(&m->c, tier, shape, nslots, nseq, max_tokens, max_rows, P, false, &e), "%s", e.msg);
    cr_assert(!dry.mem.base && dry.mem.peak == m->c.mem.size && m->c.mem.used == m->c.mem.size,
              "planned %zu bytes, mapped %zu, used %zu", dry.mem.peak, m->c.mem.size, m->c.mem.used);
    kv_close(&dry);
    cr_assert(device_open(&m->dev, "cpu", 1, &e), "%s", e.msg);
    for (int i = 0; i < nslots; i++) {
        m->shape[i] = shape[i];
        for (int s = 0; s < nseq; s++) {
            m->h[i][s].k = xcalloc((size_t)max_tokens, k_width(&shape[i]) * sizeof(real));
            m->h[i][s].v = xcalloc((size_t)max_tokens, v_width(&shape[i]) * sizeof(real));
            m->h[i][s].evicted = xcalloc((size_t)max_tokens * (size_t)shape[i].lanes + 1, sizeof(bool));
            m->h[i][s].carry = xcalloc((size_t)max_tokens, c_width(&shape[i]) * sizeof(real));
            m->state[i][s] = xcalloc((size_t)shape[i].state + 1, sizeof(real));
            for (int k = 0; k < shape[i].state; k++) R(kv_state(kv_slot(&m->c, i)))[s * shape[i].state + k] = 0;
        }
    }
    size_t rows = (size_t)max_rows + 1;
    m->of = xcalloc(rows, sizeof(int)), m->pos = xcalloc(rows, sizeof(int));
    m->first = xcalloc(rows, sizeof(int)), m->all = xcalloc(rows, sizeof(int));
    for (int i = 0; i < max_rows; i++) m->all[i] = i;
}
void plain_close(Plain *m) {
    kv_close(&m->c);
    device_close(m->dev);
    for (int i = 0; i < m->nslots; i++)
        for (int s = 0; s < m->nseq; s++) {
            free(m->h[i][s].k), free(m->h[i][s].v), free(m->state[i][s]);
            free(m->h[i][s].evicted), free(m->h[i][s].carry);
        }
    free(m->of), free(m->pos), free(m->first), free(m->all);
}

/* A document's length so far is the same in all slots. */
int plain_length(const Plain *m, int seq) { return m->h[0][seq].n; }

void plain_pass(Plain *m, Rig *g, Dice *dice, int most, bool hazard) {
    bool used[PLAIN_SEQS] = {0};
    int N = 0, B = 1 + roll(dice, m->nseq), fresh = roll(dice, 4); /* how readily documents begin */
    for (int q = 0; q < B; q++) {
        int seq;
        do seq = roll(dice, m->nseq);
        while (used[seq]);
        used[seq] = true;
        int n = imin(roll(dice, 5) == 0 ? 0 : 1 + roll(dice, most), m->max_rows - N), len = plain_length(m, seq);
        m->seq[q] = seq, m->id[q] = (uint64_t)seq;
        m->off[q] = N;
        for (int i = N; i < N + n; i++) {
            bool start = i == N ? len == 0 : fresh == 3 && roll(dice, 8) == 0;
            if (i == N && fresh == 2) start |= roll(dice, 4) == 0;
            int pos = start ? 0 : i == N ? len : m->pos[i - 1] + 1;
            if (pos >= m->max_tokens && !hazard) start = true, pos = 0;
            m->of[i] = q, m->pos[i] = pos;
            m->first[i] = start ? i : i == N ? -1 : m->first[i - 1];
            if (m->c.block && (pos + 1) % m->c.block == 0) n = i + 1 - N; /* where passes are cut */
        }
        N += n;
        int kind = roll(dice, 3); /* all, none, some */
        m->accept[q] = kind == 0 ? n : kind == 1 ? 0 : roll(dice, n + 1);
    }
    m->off[B] = N;
    m->too_long = false;
    bool history = false;
    for (int i = 0; i < N; i++) m->too_long |= m->pos[i] >= m->max_tokens, history |= m->first[i] < 0;
    m->b = (Batch){.B = B,
                   .N = N,
                   .off = m->off,
                   .seq = m->seq,
                   .of = m->of,
                   .pos = m->pos,
                   .first = m->first,
                   .id = m->id,
                   .history = history};
    if (roll(dice, 3)) /* most passes are not verifications */
        for (int q = 0; q < B; q++) m->accept[q] = m->off[q + 1] - m->off[q];
    for (int i = 0; i < m->nslots; i++) {
        const KvShape *s = &m->shape[i];
        char name[32];
        snprintf(name, sizeof name, "pass %d slot %d", (int)m->passes, i);
        m->kv[i] = (Kv){.s = *s};
        if (!s->lanes) continue;
        m->kv[i].k = RANDOM(g, name, N, s->lanes, s->kdim);
        name[0] = 'P';
        m->kv[i].v = RANDOM(g, name, N, s->lanes, s->vdim);
        name[0] = 'c';
        if (s->carry_rows) m->kv[i].carry = RANDOM(g, name, N, s->lanes, s->carry);
        if (!s->evicts) continue;
        m->kv[i].evicted = EMPTY(g, "evicted", N, s->lanes), m->kv[i].bias = EMPTY(g, "bias", N, s->lanes);
        for (int k = N * s->lanes - 1; k >= 0; k--) {
            bool begins = m->first[k / s->lanes] == k / s->lanes, next = k + s->lanes < N * s->lanes;
            R(m->kv[i].evicted)[k] = !begins && roll(dice, 5) < 3;
            R(m->kv[i].bias)[k] = next && R(m->kv[i].evicted)[k + s->lanes] != 0 ? -INFINITY : 0;
        }
    }
    m->passes++;
    g->run.batch = &m->b;
    g->run.in = g->run.out = (RowList){N, m->all};
}

bool plain_begin(Plain *m, Err *e) { return m->open = kv_begin(&m->c, &m->b, e); }
static bool all_accepted(const Plain *m) {
    for (int q = 0; q < m->b.B; q++)
        if (m->accept[q] != m->off[q + 1] - m->off[q]) return false;
    return true;
}
void plain_append(Plain *m) {
    Err e = {0};
    const int *accept = all_accepted(m) && m->passes % 2 ? NULL : m->accept; /* NULL means all */
    for (int i = 0; i < m->nslots; i++)
        if (m->shape[i].lanes) {
            Arena scratch = {.name = "scratch"};
            Run r = run_make(m->dev, &scratch);
            r.batch = &m->b;
            kv_append(&r, kv_slot(&m->c, i), &m->kv[i], accept);
            size_t peak = scratch.peak;
            cr_assert(arena_open(&scratch, "scratch", peak, true, &e), "%s", e.msg);
            kv_append(&r, kv_slot(&m->c, i), &m->kv[i], accept);
            cr_assert(scratch.used == 0 && scratch.peak == peak, "%zu bytes kept, %zu taken, %zu measured",
                      scratch.used, scratch.peak, peak);
            arena_close(&scratch);
        }
}
/* Row j of a block, turned by j times the angle of each pair, or back. */
static void plain_turn(const Plain *m, const RowCodec *c, real *key, size_t j, int by) {
    const Rope *t = c->turned ? m->turn : NULL;
    for (int i = 0; t && i < t->n / 2; i++) {
        real *a = key + t->at + (t->interleaved ? 2 * i : i), *b = t->interleaved ? a + 1 : a + t->n / 2;
        const real x = *a, y = *b, cosine = (real)cos((double)j * t->f[i]),
                   sine = (real)(by * sin((double)j * t->f[i]));
        *a = cosine * x - sine * y, *b = sine * x + cosine * y;
    }
}
/* The same of a codec whose blocks have no pieces, of a slot without heads: nothing is said about its rows. */
static void plain_salient(const KvShape *s, History *h) {
    const RowCodec *c = s->codec;
    const size_t P = (size_t)c->block, kd = (size_t)s->kdim, vd = s->alias ? 0 : (size_t)s->vdim, K = (size_t)s->lanes;
    real *keys = xcalloc(P * (kd + vd + 1), sizeof *keys), *values = keys + P * kd, *score = values + P * vd;
    char *block = xcalloc(block_bytes(s), 1);
    for (size_t lane = 0; lane < K; lane++) {
        const size_t first = ((size_t)h->n - P) * K + lane;
        for (size_t j = 0; j < P; j++) {
            for (size_t k = 0; k < kd; k++) keys[k * P + j] = h->k[(first + j * K) * kd + k];
            if (vd) memcpy(values + j * vd, h->v + (first + j * K) * vd, vd * sizeof *values);
        }
        c->block_encode(c, block, keys, values, s->kdim, (int)vd, score);
        c->block_decode(c, keys, values, block, NULL, s->kdim, (int)vd);
        for (size_t j = 0; j < P; j++) {
            for (size_t k = 0; k < kd; k++) h->k[(first + j * K) * kd + k] = keys[k * P + j];
            if (vd) memcpy(h->v + (first + j * K) * vd, values + j * vd, vd * sizeof *values);
        }
    }
    free(keys), free(block);
}
/* The same of two slots that are merged, of which this is the upper one. */
static void plain_pair(Plain *m, int slot, int seq) {
    const KvShape *s = &m->shape[slot];
    int low = slot - 1;
    while (!m->shape[low].codec || m->shape[low].codec->pair != PAIR_LOWER) low--;
    History *h[2] = {&m->h[low][seq], &m->h[slot][seq]};
    const RowCodec *c[2] = {m->shape[low].codec, s->codec};
    const size_t P = (size_t)s->codec->block, kd = (size_t)s->kdim, vd = s->alias ? 0 : (size_t)s->vdim,
                 K = (size_t)s->lanes, each = P * (kd + vd);
    real *x = xcalloc(3 * each + 1, sizeof *x), *turned = x + 2 * each;
    char *block[2] = {xcalloc(block_bytes(&m->shape[low]), 1), xcalloc(block_bytes(s), 1)};
    for (size_t lane = 0; lane < K; lane++) {
        const size_t first = ((size_t)h[1]->n - P) * K + lane;
        for (size_t of = 0; of < 2; of++)
            for (size_t j = 0; j < P; j++) {
                memcpy(x + of * each + j * kd, h[of]->k + (first + j * K) * kd, kd * sizeof *x);
                if (vd) memcpy(x + of * each + P * kd + j * vd, h[of]->v + (first + j * K) * vd, vd * sizeof *x);
            }
        c[1]->pair_encode(c[1], (void *[]){block[0], block[1]}, (const real *[]){x, x + each},
                          (const real *[]){x + P * kd, x + each + P * kd}, s->kdim, (int)vd);
        for (size_t of = 0; of < 2; of++) {
            c[of]->block_decode(c[of], turned, turned + P * kd, block[of], block[0], s->kdim, (int)vd);
            for (size_t j = 0; j < P; j++) {
                for (size_t k = 0; k < kd; k++) h[of]->k[(first + j * K) * kd + k] = turned[k * P + j];
                if (vd) memcpy(h[of]->v + (first + j * K) * vd, turned + P * kd + j * vd, vd * sizeof *x);
            }
        }
    }
    free(x), free(block[0]), free(block[1]);
}
/* The newest rows, where they fill a block, become what its codec gives back. */
static void plain_block(Plain *m, int slot, int seq) {
    const KvShape *s = &m->shape[slot];
    History *h = &m->h[slot][seq];
    const RowCodec *c = s->codec;
    const int P = c && s->lanes ? c->block : 0;
    if (!P || h->n % P) return;
    if (c->pair == PAIR_UPPER) plain_pair(m, slot, seq);
    if (c->pair) return;
    if (c->block_encode) {
        plain_salient(s, h);
        return;
    }
    char *piece = xcalloc(c->piece_bytes(c, imax(P, s->vdim)), 1);
    real *x = xcalloc((size_t)P, sizeof *x);
    for (int lane = 0; lane < s->lanes; lane++) {
        real *keys = h->k + ((size_t)(h->n - P) * (size_t)s->lanes + (size_t)lane) * (size_t)s->kdim;
        for (size_t j = 0; j < (size_t)P; j++) plain_turn(m, c, keys + j * k_width(s), j, -1);
        for (int k = 0; k < s->kdim; k++) {
            real *at = keys + k;
            for (int j = 0; j < P; j++) x[j] = at[(size_t)j * k_width(s)];
            c->piece_encode(c, piece, x, P), c->piece_decode(c, x, piece, P);
            for (int j = 0; j < P; j++) at[(size_t)j * k_width(s)] = x[j];
        }
        for (size_t j = 0; j < (size_t)P; j++) plain_turn(m, c, keys + j * k_width(s), j, 1);
        for (int j = h->n - P; j < h->n; j++) {
            real *value = h->v + ((size_t)j * (size_t)s->lanes + (size_t)lane) * (size_t)s->vdim;
            c->piece_encode(c, piece, value, s->vdim), c->piece_decode(c, value, piece, s->vdim);
        }
    }
    free(piece), free(x);
}
void plain_end(Plain *m) {
    m->open = false;
    kv_end(&m->c, &m->b, all_accepted(m) && m->passes % 2 ? NULL : m->accept);
    for (int i = 0; i < m->nslots; i++)
        for (int q = 0; q < m->b.B; q++) {
            size_t kw = k_width(&m->shape[i]), vw = v_width(&m->shape[i]);
            History *h = &m->h[i][m->seq[q]];
            for (int j = m->off[q]; j < m->off[q] + m->accept[q]; j++) {
                if (m->first[j] == j) h->n = 0;
                for (int k = 0; m->shape[i].evicts && k < m->shape[i].lanes; k++)
                    h->evicted[h->n * m->shape[i].lanes + k] = R(m->kv[i].evicted)[j * m->shape[i].lanes + k] != 0;
                size_t cw = c_width(&m->shape[i]);
                if (m->shape[i].carry_rows)
                    memcpy(h->carry + (size_t)h->n * cw, R(m->kv[i].carry) + (size_t)j * cw, cw * sizeof(real));
                if (kw + vw) {
                    memcpy(h->k + (size_t)h->n * kw, R(m->kv[i].k) + (size_t)j * kw, kw * sizeof(real));
                    memcpy(h->v + (size_t)h->n * vw, R(m->kv[i].v) + (size_t)j * vw, vw * sizeof(real));
                }
                h->n++;
                if (j + 1 == m->off[q] + m->accept[q]) plain_block(m, i, m->seq[q]);
            }
            /* a recurrence writes its state in place during the pass */
            for (int k = 0; k < m->shape[i].state; k++) {
                real x = (real)check_normal(m->passes, (uint64_t)(m->seq[q] * 100 + i * 10 + k));
                m->state[i][m->seq[q]][k] = x;
                R(kv_state(kv_slot(&m->c, i)))[m->seq[q] * m->shape[i].state + k] = x;
            }
        }
}
static void plain_copy(Plain *m, int from, int to) {
    for (int i = 0; i < m->nslots; i++) {
        const History *a = &m->h[i][from];
        History *b = &m->h[i][to];
        memcpy(b->k, a->k, (size_t)a->n * k_width(&m->shape[i]) * sizeof(real));
        memcpy(b->v, a->v, (size_t)a->n * v_width(&m->shape[i]) * sizeof(real));
        memcpy(b->evicted, a->evicted, (size_t)(a->n * m->shape[i].lanes));
        memcpy(b->carry, a->carry, (size_t)a->n * c_width(&m->shape[i]) * sizeof(real));
        b->n = a->n;
        memcpy(m->state[i][to], m->state[i][from], (size_t)m->shape[i].state * sizeof(real));
    }
}
void plain_fork(Plain *m, int from, int to) {
    kv_fork(&m->c, from, to);
    plain_copy(m, from, to);
}
void plain_saved(Plain *m, int from, int to) {
    KvParts parts;
    Err e = {0};
    cr_assert(kv_save(&m->c, from, &parts, &e), "%s", e.msg);
    cr_assert(kv_restore(&m->c, to, plain_length(m, from), &parts, &e), "%s", e.msg);
    kv_parts_free(&parts);
    plain_copy(m, from, to);
}
void plain_rewind(Plain *m, int seq, int n) {
    const int P = m->c.block, asked = n;
    bool can = true;
    if (P && n / P < plain_length(m, seq) / P) n = n / P * P;
    for (int i = 0; i < m->nslots && n; i++) {
        const KvShape *s = &m->shape[i];
        can &= !s->state && !(s->lanes && (s->evicts || s->carry_rows)) &&
               (!s->lanes || !s->window || plain_length(m, seq) < s->window);
    }
    cr_assert(kv_rewind(&m->c, seq, asked, NULL) == (can ? n : 0), "back to %d of %d", asked, plain_length(m, seq));
    can &= n || !asked;
    for (int i = 0; i < m->nslots && can; i++) m->h[i][seq].n = n;
}
void plain_drop(Plain *m, int seq) {
    kv_drop(&m->c, seq);
    for (int i = 0; i < m->nslots; i++) m->h[i][seq].n = 0;
}

/* The rows of a block as a page has them; the caller frees them. */
static real *block_rows_of(const Plain *m, const Lanes *t, int page) {
    const KvShape *s = &t->s;
    const RowCodec *c = s->codec;
    const size_t P = (size_t)t->P, kd = (size_t)s->kdim, vd = (size_t)s->vdim;
    const char *in = lanes_block(t, page);
    real *to = xcalloc(P * (kd + vd + 1), sizeof *to), *channel = to + P * (kd + vd);
    if (c->block_decode) {
        real *keys = xcalloc(P * kd, sizeof *keys);
        c->block_decode(c, keys, to + P * kd, in, lanes_below(t, page), s->kdim, s->alias ? 0 : s->vdim);
        for (size_t j = 0; j < P; j++)
            for (size_t k = 0; k < kd; k++) to[j * kd + k] = keys[k * P + j];
        free(keys);
        return to;
    }
    for (size_t k = 0; k < kd; k++, in += c->piece_bytes(c, c->block)) {
        c->piece_decode(c, channel, in, c->block);
        for (size_t j = 0; j < P; j++) to[j * kd + k] = channel[j];
    }
    for (size_t j = 0; j < P; j++) plain_turn(m, c, to + j * kd, j, 1);
    for (size_t j = 0; j < P; j++, in += c->piece_bytes(c, s->vdim))
        c->piece_decode(c, to + P * kd + j * vd, in, s->vdim);
    return to;
}
/* One row of a lane against the model's row j; -1: the one of its position. */
static int check_row(const Plain *m, const char *when, int i, int seq, int h, int row, int j) {
    const KvShape *s = &m->shape[i];
    const Lanes *t = kv_lanes(kv_slot(&m->c, i));
    int page = t->table[(seq * s->lanes + h) * t->maxpages + row / t->P % t->maxpages], at = row % t->P;
    cr_assert(page >= 0 && page < t->npages + t->nblocks, "%s: slot %d seq %d row %d has no page", when, i, seq, j);
    if (j < 0) j = t->pos[page * t->P + at];
    cr_assert(j < m->h[i][seq].n && plain_resident(m, i, seq, h, j), "%s: slot %d seq %d lane %d keeps position %d",
              when, i, seq, h, j);
    if (s->evicts) {
        bool tail = j + 1 == m->h[i][seq].n, evicted = !tail && m->h[i][seq].evicted[(j + 1) * s->lanes + h];
        cr_assert(t->evicted[page * t->P + at] == evicted, "%s: slot %d seq %d lane %d position %d: evicted or not",
                  when, i, seq, h, j);
        cr_assert((t->tail[seq * s->lanes + h] == row) == tail, "%s: slot %d seq %d lane %d: the tail is %d", when, i,
                  seq, h, t->tail[seq * s->lanes + h]);
    }
    cr_assert(t->pos[page * t->P + at] == j, "%s: slot %d seq %d row %d has position %d", when, i, seq, j,
              t->pos[page * t->P + at]);
    const History *x = &m->h[i][seq];
    size_t kd = (size_t)s->kdim, vd = (size_t)s->vdim, from = (size_t)(j * s->lanes + h), P = (size_t)t->P;
    real *own = page < t->npages ? NULL : block_rows_of(m, t, page);
    const real *k = own ? own : R(t->data) + (size_t)page * P * (kd + vd), *v = k + P * kd;
    cr_assert((own != NULL) == (m->c.block && j / imax(1, m->c.block) < m->h[i][seq].n / imax(1, m->c.block)),
              "%s: slot %d seq %d lane %d row %d: %s a block", when, i, seq, h, j, own ? "in" : "not in");
    cr_assert(!memcmp(k + (size_t)at * kd, x->k + from * kd, kd * sizeof(real)),
              "%s: slot %d seq %d lane %d row %d: keys differ", when, i, seq, h, j);
    cr_assert(!memcmp(v + (size_t)at * vd, x->v + from * vd, vd * sizeof(real)),
              "%s: slot %d seq %d lane %d row %d: values differ", when, i, seq, h, j);
    free(own);
    return j;
}
/* The newest carry_rows rows; those from before the document may be anything. */
static void check_carry(const Plain *m, const char *when, int i, int seq, int h) {
    const KvShape *s = &m->shape[i];
    size_t C = (size_t)s->carry, lane = (size_t)(seq * s->lanes + h);
    const real *got = s->carry_rows ? R(kv_carry(kv_slot(&m->c, i))) + lane * (size_t)s->carry_rows * C : NULL;
    for (int r = 1; r <= imin(s->carry_rows, m->h[i][seq].n); r++)
        cr_assert(!memcmp(got + (size_t)(s->carry_rows - r) * C,
                          m->h[i][seq].carry + (size_t)((m->h[i][seq].n - r) * s->lanes + h) * C, C * sizeof(real)),
                  "%s: slot %d seq %d lane %d: row %d from the end is carried wrongly", when, i, seq, h, r);
}
/* Bytes of a lane by its table: blocks, and rows that wait for one. */
static size_t blocks_held(const Lanes *t, int lane) {
    const int s0 = t->s0[lane], lo = t->lo[lane], hi = t->hi[lane], sinks = imin(s0 + t->s.sinks, lo);
    size_t n = 0, waiting = 0;
    for (int e = 0; e < t->maxpages; e++)
        if (t->table[lane * t->maxpages + e] >= t->npages) n += block_bytes(&t->s);
    for (int row = hi / t->P * t->P; row < hi; row++) waiting += row >= lo || (row >= s0 && row < sinks);
    return n + waiting * (size_t)(t->s.kdim + t->s.vdim) * sizeof(real);
}
static void check_slot(const Plain *m, const char *when, int i, size_t bytes[]) {
    const KvShape *s = &m->shape[i];
    const Slot *slot = kv_slot(&m->c, i);
    const Lanes *t = kv_lanes(slot);
    int distinct = 0, *users = xcalloc((size_t)(t->npages + t->nblocks) + 1, sizeof *users);
    for (int seq = 0; seq < m->nseq; seq++) {
        int n = m->h[i][seq].n;
        if (s->lanes) kv_lanes_of(slot, seq); /* rows may be on disk */
        for (int h = 0; h < s->lanes; h++) {
            int resident = 0;
            for (int j = 0; j < n; j++) resident += plain_resident(m, i, seq, h, j);
            check_carry(m, when, i, seq, h);
            int lane = seq * s->lanes + h, lo = t->lo[lane], hi = t->hi[lane], s0 = t->s0[lane], pages = 0, last = -1;
            bool *seen = xcalloc((size_t)n + 1, sizeof *seen);
            int recent = s->evicts   ? resident
                         : s->window ? imin(n, s->window - 1)
                                     : n,
                sinks = s->window ? imin(s->sinks, n - recent) : 0;
            cr_assert(kv_rows(slot, seq, h) == resident, "%s: slot %d seq %d: %d rows resident, expected %d of %d",
                      when, i, seq, kv_rows(slot, seq, h), resident, n);
            cr_assert(hi - lo == recent && imin(s0 + t->s.sinks, lo) - s0 == sinks,
                      "%s: slot %d seq %d: rows %d and %d..%d, expected %d and %d", when, i, seq, s0, lo, hi, sinks,
                      recent);
            for (int part = 0; part < 2; part++)
                for (int r = part ? lo : s0; r < (part ? hi : s0 + sinks); r++) {
                    int j = check_row(m, when, i, seq, h, r, s->evicts ? -1 : part ? n - (hi - r) : r - s0);
                    cr_assert(!seen[j], "%s: slot %d seq %d lane %d holds position %d twice", when, i, seq, h, j);
                    seen[j] = true;
                    if (r / t->P != last) pages++, last = r / t->P;
                }
            for (int e = 0, have = 0; e < t->maxpages; e++) {
                int page = t->table[lane * t->maxpages + e];
                if (page < 0) continue;
                cr_assert(++have <= pages || m->open, "%s: slot %d seq %d: more than the %d pages of its rows", when, i,
                          seq, pages);
                distinct += users[page]++ == 0;
            }
            free(seen);
            bytes[seq] +=
                m->c.block ? blocks_held(t, lane) : (size_t)resident * (size_t)(s->kdim + s->vdim) * sizeof(real);
            bytes[seq] += (size_t)(s->carry * s->carry_rows) * sizeof(real);
        }
        bytes[seq] += (size_t)s->state * sizeof(real);
        if (s->state)
            cr_assert(!memcmp(R(kv_state(slot)) + seq * s->state, m->state[i][seq], (size_t)s->state * sizeof(real)),
                      "%s: state of seq %d differs", when, seq);
    }
    cr_assert(kv_pages(slot) == distinct, "%s: slot %d: %d pages in use, %d in tables", when, i, kv_pages(slot),
              distinct);
    free(users);
}
void plain_check(const Plain *m, const char *when) {
    size_t bytes[PLAIN_SEQS] = {0};
    for (int i = 0; i < m->nslots; i++) check_slot(m, when, i, bytes);
    for (int s = 0; s < m->nseq; s++)
        cr_assert(kv_bytes(&m->c, s) == bytes[s], "%s: seq %d: %zu bytes, expected %zu", when, s, kv_bytes(&m->c, s),
                  bytes[s]);
    arena_guards(&m->c.mem);
}
