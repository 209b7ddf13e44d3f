/* attend.c: blocked softmax attention over the rows of a pass. attend_lanes.c does it over cached lanes,
 * attend_backward.c computes the gradients.
 *
 * Work is cut into blocks of QB entries by KB keys. An entry is one query head of one row. The heads that read one
 * lane are entries of the same block, so a block of keys is packed once for the whole group. Only a QB x KB piece of
 * the scores exists at a time. One routine, absorb(), does the forward over the pass, the forward over the history,
 * and the merge of the two. */
#include "vec.h"

enum { QB = 64, KB = 64, FEW_ENTRIES = 8 };
#include "attend_pairs.c"

/* A block of entries and its running softmax: o = sum exp(s - m) v, l = sum exp(s - m). */
typedef struct {
    int n, Dk, Dv;
    AttnSpec spec;
    int pos[QB], from[QB], row[QB]; /* position; first and last visible row, in the keys' numbering */
    bool loose;                     /* positions of keys do not ascend */
    int delay;                      /* a key's bias applies to queries more than this many positions after it */
    real m[QB], l[QB];
    real *q, *o, *s, *kt; /* (QB,Dk) scaled, (QB,Dv), (QB,KB), (Dk,KB) */
    Pair *qp, *sp;        /* q and s as pairs along their rows; NULL: products use `real`s */
    real *lanes;          /* (QB,W) with pairs: partial sums of l */
    PairProduct *tiles;   /* of pairs; NULL: by vectors */
} Block;

static size_t block_numbers(int Dk, int Dv) { return (size_t)QB * (size_t)(Dk + Dv + KB) + (size_t)Dk * KB; }
static size_t block_pairs(int Dk) { return (size_t)QB * (size_t)((Dk + KB) / 2 + W); }
static void block_place(Block *b, real *mem, int Dk, int Dv, AttnSpec spec) {
    b->Dk = Dk, b->Dv = Dv, b->spec = spec;
    b->loose = false, b->delay = 0;
    b->q = mem;
    b->o = b->q + (size_t)QB * (size_t)Dk;
    b->s = b->o + (size_t)QB * (size_t)Dv;
    b->kt = b->s + (size_t)QB * KB;
    b->qp = b->sp = NULL;
}
static void block_place_pairs(Block *b, PairProduct *tiles, real *mem) {
    b->tiles = tiles;
    b->lanes = mem;
    b->qp = (Pair *)(mem + QB * W);
    b->sp = b->qp + (size_t)QB * (size_t)b->Dk / 2;
}

/* Index of entry e of the rows m0.. of a lane: row m0 + e/group, head lane*group + e%group. */
static size_t entry_at(int m0, int lane, int group, int heads, int e) {
    return (size_t)(m0 + e / group) * (size_t)heads + (size_t)(lane * group + e % group);
}

/* Load n elements of q, o or one of their gradients, which may be BF16 in memory; put_row rounds to nearest. */
INLINE void get_row(real *to, Tensor t, size_t at, int n) {
    if (t.dtype == BF16)
        widened(to, (const uint16_t *)t.p + at, (size_t)n);
    else
        memcpy(to, R(t) + at, (size_t)n * sizeof *to);
}
INLINE void put_row(Tensor t, size_t at, const real *x, int n) {
    if (t.dtype == BF16)
        rounded_to_bf16((uint16_t *)t.p + at, x, (size_t)n);
    else
        memcpy(R(t) + at, x, (size_t)n * sizeof *x);
}
static void block_load(Block *b, int n, int e0, int m0, int lane, int group, Tensor q, Tensor o, Tensor lse,
                       bool merge) {
    int H = b->spec.heads;
    b->n = n;
    for (int i = 0; i < n; i++) {
        size_t at = entry_at(m0, lane, group, H, e0 + i);
        real *in = b->q + i * b->Dk;
        get_row(in, q, at * (size_t)b->Dk, b->Dk);
        for (int k = 0; k < b->Dk; k++) in[k] *= b->spec.scale;
        bool start = !merge || R(lse)[at] == -INFINITY;
        b->m[i] = start ? -INFINITY : R(lse)[at];
        b->l[i] = start ? 0 : 1;
        real *out = b->o + i * b->Dv;
        if (start)
            memset(out, 0, (size_t)b->Dv * sizeof(real));
        else
            get_row(out, o, at * (size_t)b->Dv, b->Dv);
    }
    if (b->qp) pairs_along(b->qp, b->q, n, b->Dk);
}
static void block_store(Block *b, int e0, int m0, int lane, int group, Tensor o, Tensor lse) {
    for (int i = 0; i < b->n; i++) {
        size_t at = entry_at(m0, lane, group, b->spec.heads, e0 + i);
        real inv = b->l[i] > 0 ? 1 / b->l[i] : 0, *out = b->o + i * b->Dv;
        if (b->l[i] != b->l[i]) inv = b->l[i]; /* NaN passes on */
        for (int k = 0; k < b->Dv; k++) out[k] *= inv;
        put_row(o, at * (size_t)b->Dv, out, b->Dv);
        R(lse)[at] = b->l[i] == 0 ? -INFINITY : b->m[i] + (real)log((double)b->l[i]);
    }
}

/* True if entry i sees all of the keys j0..j0+n-1. Their positions ascend inside a document unless loose. */
static bool sees_all(const Block *b, int i, const int *kpos, int j0, int n) {
    return j0 >= b->from[i] && j0 + n - 1 <= b->row[i] &&
           (!b->spec.window || (!b->loose && b->pos[i] - kpos[0] < b->spec.window));
}
static bool sees(const Block *b, int i, int j, int kpos) {
    return j >= b->from[i] && j <= b->row[i] &&
           (!b->spec.window || b->pos[i] - kpos < b->spec.window || kpos < b->spec.sinks);
}

/* Adds the keys' bias to the scores of one entry. */
INLINE void add_bias(const Block *b, int i, real *s, const real *bias, const int *kpos, int n) {
    int limit = b->pos[i] - b->delay;
#pragma omp simd
    for (int t = 0; t < n; t++) s[t] += kpos[t] < limit ? bias[t] : 0;
}
/* The biases of n keys of a lane from row j on; NULL if they have none. */
static const real *bias_of(real mem[KB], const Kv *kv, int h, int j, int n) {
    if (!present(kv->bias)) return NULL;
    for (int t = 0; t < n; t++) mem[t] = R(kv->bias)[(size_t)(j + t) * (size_t)kv->s.lanes + (size_t)h];
    return mem;
}

/* Asks for n elements at p. */
INLINE void ask(const real *p, int n) {
    for (int k = 0; k < n; k += 64 / (int)sizeof(real)) __builtin_prefetch(p + k, 0, 2);
}
/* The scores of n keys, ld apart, which are read once, in place. Keys and values that are read next (NULL: nobody knows
 * which) are asked for meanwhile. */
static void scores(Block *b, const real *keys, size_t ld, int n, const real *next_keys, const real *next_values,
                   size_t ldv) {
    for (int j = 0; j < n; j++) {
        if (next_keys) ask(next_keys + (size_t)j * ld, b->Dk), ask(next_values + (size_t)j * ldv, b->Dv);
        for (int i = 0; i < b->n; i++) b->s[i * KB + j] = dot(b->q + i * b->Dk, keys + (size_t)j * ld, b->Dk);
    }
}

/* Cap n scores of an entry; slope (NULL: not wanted) receives the derivatives. */
INLINE void cap_row(const Block *b, real *s, real *slope, int n) {
    const real cap = b->spec.cap, inv = 1 / cap;
#pragma omp simd
    for (int t = 0; t < n; t++) {
        real x = tanh_real(s[t] * inv);
        s[t] = cap * x;
        if (slope) slope[t] = 1 - x * x;
    }
}
/* Apart from soften: inlined there, its constants take the registers of the loop that everyone runs (attention of 128
 * rows without a cap: 10 % slower). */
static __attribute__((noinline)) void cap_scores(const Block *b, real *s, int n) { cap_row(b, s, NULL, n); }

/* Turn complete scores (except for the bias) into exp(s - m); scales m, l and the current sum in o to match. */
static void soften(Block *b, const int *kpos, const real *bias, int j0, int n) {
    for (int i = 0; i < b->n; i++) {
        real *s = b->s + i * KB, top = b->m[i];
        if (b->spec.cap > 0) cap_scores(b, s, n);
        if (bias) add_bias(b, i, s, bias, kpos, n);
        if (!sees_all(b, i, kpos, j0, n))
            for (int t = 0; t < n; t++) s[t] = sees(b, i, j0 + t, kpos[t]) ? s[t] : -INFINITY;
#pragma omp simd reduction(max : top)
        for (int t = 0; t < n; t++) top = s[t] > top ? s[t] : top;
        if (top == -INFINITY) { /* nothing seen so far: exp(-inf + inf) would be NaN */
            bool nan = false;
            for (int t = 0; t < n; t++) nan |= s[t] != s[t], s[t] = nan ? s[t] : 0;
            if (nan) b->l[i] = NAN;
            continue;
        }
        real sum = 0, fade = exp_real(b->m[i] - top);
#pragma omp simd reduction(+ : sum)
        for (int t = 0; t < n; t++) {
            s[t] = exp_real(s[t] - top);
            sum += s[t];
        }
        b->l[i] = b->l[i] * fade + sum;
        b->m[i] = top;
        if (fade != 1)
            for (int k = 0; k < b->Dv; k++) b->o[i * b->Dv + k] *= fade;
    }
}
/* From scores and ds = dout v: s becomes p = exp(s - lse), ds becomes p (ds - delta); dbias (KB) += the biases'
 * gradients. */
static void rows_back(Block *b, real *ds, const int *kpos, const real *bias, real *dbias, int j0, int n,
                      const real *lse, const real *delta) {
    for (int i = 0; i < b->n; i++) {
        real *s = b->s + i * KB, *d = ds + i * KB, l = lse[i], e = delta[i], slope[KB];
        if (b->spec.cap > 0) cap_row(b, s, slope, n);
        if (bias) add_bias(b, i, s, bias, kpos, n);
        if (!sees_all(b, i, kpos, j0, n))
            for (int t = 0; t < n; t++) s[t] = sees(b, i, j0 + t, kpos[t]) ? s[t] : -INFINITY;
#pragma omp simd
        for (int t = 0; t < n; t++) {
            s[t] = exp_real(s[t] - l);
            d[t] = s[t] * (d[t] - e);
        }
        for (int t = 0; bias && t < n; t++)
            if (b->pos[i] - kpos[t] > b->delay) dbias[t] += d[t];
        for (int t = 0; b->spec.cap > 0 && t < n; t++) d[t] *= slope[t];
    }
}
#include "soften.c"

/* Merge n <= KB keys into the block. The scores in b->s must be complete except for the bias. Rows of v are ldv apart;
 * vp: the same rows as pairs of consecutive rows. */
static void absorb(Block *b, const real *v, size_t ldv, const Pair *vp, const int *kpos, const real *bias, int j0,
                   int n) {
    if (!b->sp) {
        soften(b, kpos, bias, j0, n);
        tile_mm(b->o, (size_t)b->Dv, b->s, KB, 1, v, ldv, b->n, n, b->Dv);
        return;
    }
    soften_pairs(b, kpos, bias, j0, n);
    pairs_mm(b->tiles, b->o, (size_t)b->Dv, b->sp, KB / 2, 1, vp, (size_t)b->Dv, b->n, (n + 1) / 2, b->Dv, true);
}

/* Pack n rows of width D, ld apart, into a panel (D,KB); the columns past n are zero. */
static void pack(real *t, const real *rows, size_t ld, int n, int D) {
    for (int k = 0; k < D; k++) {
        for (int j = 0; j < n; j++) t[k * KB + j] = rows[(size_t)j * ld + (size_t)k];
        for (int j = n; j < KB; j++) t[k * KB + j] = 0;
    }
}
static int panels_of(const Batch *b, int s) { return b->off[s] / KB + s; } /* index of the first panel of a sequence */
/* True if the scores of a sequence's wanted rows are computed one by one, from keys in place. With as few rows as in
 * decoding or a short verification, packing would cost more than the products. */
static bool few_scores(const Batch *b, int s, int entries) {
    return entries <= FEW_ENTRIES && b->off[s + 1] - b->off[s] <= FEW_ENTRIES;
}
/* Pack all rows of x (N,lanes,D) as panels: panel p of lane h at ((p * lanes) + h) * D * KB. start (NULL: pack all)
 * excludes sequences with few scores. */
static void pack_all(const Run *r, real *t, Tensor x, const int *start, int group) {
    const Batch *b = r->batch;
    int lanes = x.n[1], D = x.n[2];
    size_t ld = (size_t)lanes * (size_t)D;
#pragma omp parallel for collapse(2) schedule(static) num_threads(r->dev->threads) if ((long)b->N * (long)ld > ALONE)
    for (int s = 0; s < b->B; s++)
        for (int h = 0; h < lanes; h++) {
            if (start && few_scores(b, s, (start[s + 1] - start[s]) * group)) continue;
            for (int j = b->off[s], p = panels_of(b, s); j < b->off[s + 1]; j += KB, p++)
                pack(t + ((size_t)p * (size_t)lanes + (size_t)h) * (size_t)D * KB,
                     R(x) + (size_t)j * ld + (size_t)h * (size_t)D, ld, imin(KB, b->off[s + 1] - j), D);
        }
}
static Tensor panels(Run *r, const char *name, Tensor x) {
    return SCRATCH(r, name, r->batch->N / KB + r->batch->B, x.n[1], x.n[2], KB);
}
/* The same as pairs, either may be NULL: (D/2,KB) and (KB/2,D) for each panel of a lane. */
static void pack_pairs(const Run *r, Pair *turned, Pair *below, Tensor x, const int *start, int group) {
    const Batch *b = r->batch;
    int lanes = x.n[1], D = x.n[2];
    size_t ld = (size_t)lanes * (size_t)D, size = (size_t)D * KB / 2;
#pragma omp parallel for collapse(2) schedule(static) num_threads(r->dev->threads) if ((long)b->N * (long)ld > ALONE)
    for (int s = 0; s < b->B; s++)
        for (int h = 0; h < lanes; h++) {
            if (start && few_scores(b, s, (start[s + 1] - start[s]) * group)) continue;
            for (int j = b->off[s], p = panels_of(b, s); j < b->off[s + 1]; j += KB, p++) {
                size_t at = ((size_t)p * (size_t)lanes + (size_t)h) * size;
                const real *rows = R(x) + (size_t)j * ld + (size_t)h * (size_t)D;
                int n = imin(KB, b->off[s + 1] - j);
                if (turned) pairs_turned(turned + at, rows_wide(rows, ld), n, D);
                if (!below) continue;
                pairs_below(below + at, rows_wide(rows, ld), n, D);
                memset(below + at + (size_t)((n + 1) / 2 * D), 0, (size_t)((KB / 2 - (n + 1) / 2) * D) * sizeof(Pair));
            }
        }
}
static Pair *pair_panels(Run *r, const char *name, Tensor x) {
    size_t n = (size_t)(r->batch->N / KB + r->batch->B) * (size_t)x.n[1] * (size_t)x.n[2] * KB / 2;
    return arena_take(r->scratch, n * sizeof(Pair), name);
}
/* Rows of keys or values of width D, without memory, to compute the size of panels. */
static Tensor rows_of(const Run *r, int lanes, int D) { return TENSOR(NULL, REAL, r->batch->N, lanes, D); }

/* The first wanted row of each sequence: start[B] = out.n. */
static void wanted(const Run *r, int *start) {
    int m = 0;
    for (int s = 0; s < r->batch->B; s++) {
        start[s] = m;
        while (m < r->out.n && r->out.idx[m] < r->batch->off[s + 1]) m++;
    }
    start[r->batch->B] = m;
}

/* The rows of the pass that the entries of a block may see: rows outside [low, high) and [sink0, sink1) are hidden. */
typedef struct {
    int low, high, sink0, sink1;
} Span;
static Span block_rows(Block *b, const Batch *batch, int s, const int *idx, int e0, int group, int m0) {
    Span p = {.low = INT32_MAX, .sink0 = INT32_MAX};
    for (int i = 0; i < b->n; i++) {
        int row = idx[m0 + (e0 + i) / group], from = imax(batch->first[row], batch->off[s]);
        int start = b->spec.window ? imax(from, row - b->spec.window + 1) : from;
        b->pos[i] = batch->pos[row], b->row[i] = row, b->from[i] = from;
        p.low = imin(p.low, start);
        p.high = imax(p.high, row + 1);
        p.sink0 = imin(p.sink0, from);
        p.sink1 = imax(p.sink1, from + imax(0, b->spec.sinks - batch->pos[from]));
    }
    return p;
}
/* How many keys from j on any entry may see, and that number rounded up to whole vectors. */
static int keys_seen(Span p, int j) { return imin(KB, p.high - j); }
static int in_vectors(int n) { return (n + W - 1) / W * W; }
static bool span_meets(Span p, int j0, int j1) { return (j1 > p.low && j0 < p.high) || (j1 > p.sink0 && j0 < p.sink1); }

/* The rows with keys and values in f32. */
static Kv kv_in_reals(Run *r, const Kv *kv) {
    Kv wide = *kv;
    wide.k = in_reals(r, "keys in f32", kv->k), wide.v = in_reals(r, "values in f32", kv->v);
    return wide;
}

/* The keys and values of a lane without those that its decisions have evicted (bias -inf), packed again: what queries
 * more than `delay` positions later read. A block of 64 keys rarely has lost all of them; so blocks of what is left
 * are made. */
enum { KEPT_LEAST = 256 }; /* rows of a sequence: below, packing costs more than it saves */
typedef struct {
    int *n, *row, *pos; /* (B,lanes); (lanes,N): rows off[s].. of a lane hold those of sequence s, the oldest first */
    real *kt, *v;       /* panels as pack_all's; (lanes,N,Dv) */
} Kept;
static Kept kept_take(Run *r, int lanes, int Dk, int Dv) {
    const Batch *b = r->batch;
    size_t rows = (size_t)b->N * (size_t)lanes;
    return (Kept){.n = arena_take(r->scratch, (size_t)b->B * (size_t)lanes * sizeof(int), "kept rows of lanes"),
                  .row = arena_take(r->scratch, rows * sizeof(int), "kept rows"),
                  .pos = arena_take(r->scratch, rows * sizeof(int), "positions of kept rows"),
                  .kt = R(panels(r, "kept keys", rows_of(r, lanes, Dk))),
                  .v = R(SCRATCH(r, "kept values", b->N, lanes, Dv))};
}
/* How many rows of the lane stay; 0: they are read as they are. That is so for short sequences, several documents, and
 * decisions that are still soft. */
static int kept_rows(const Batch *b, const Kv *kv, int s, int h, int *row) {
    const int from = b->off[s], end = b->off[s + 1];
    int n = 0;
    if (end - from < KEPT_LEAST || b->first[end - 1] > from || b->first[end - 1] != b->first[from]) return 0;
    for (int j = from; j < end; j++) {
        const real bias = R(kv->bias)[(size_t)j * (size_t)kv->s.lanes + (size_t)h];
        if (bias == 0)
            row[n++] = j;
        else if (bias != -INFINITY)
            return 0;
    }
    return n < (end - from) * 3 / 4 ? n : 0;
}
static void kept_pack(const Run *r, Kept *x, const Kv *kv) {
    const Batch *b = r->batch;
    const int lanes = kv->s.lanes, D = kv->s.kdim, Dv = kv->s.vdim;
    size_t stepv, ldv, ld = (size_t)lanes * (size_t)D;
    const real *values = kv_values(kv, &stepv, &ldv);
#pragma omp parallel for collapse(2) schedule(static) num_threads(r->dev->threads) if ((long)b->N * (long)ld > ALONE)
    for (int s = 0; s < b->B; s++)
        for (int h = 0; h < lanes; h++) {
            const size_t at = (size_t)h * (size_t)b->N + (size_t)b->off[s];
            const int *row = x->row + at, n = kept_rows(b, kv, s, h, x->row + at);
            x->n[s * lanes + h] = n;
            for (int i = 0; i < n; i++) {
                x->pos[at + (size_t)i] = b->pos[row[i]];
                memcpy(x->v + (at + (size_t)i) * (size_t)Dv, values + (size_t)row[i] * ldv + (size_t)h * stepv,
                       (size_t)Dv * sizeof(real));
            }
            for (int j = 0, p = panels_of(b, s); j < n; j += KB, p++) {
                real *t = x->kt + ((size_t)p * (size_t)lanes + (size_t)h) * (size_t)D * KB;
                memset(t, 0, (size_t)D * KB * sizeof(real));
                for (int i = 0; i < imin(KB, n - j); i++)
                    for (int k = 0; k < D; k++)
                        t[k * KB + i] = R(kv->k)[(size_t)row[j + i] * ld + (size_t)h * (size_t)D + (size_t)k];
            }
        }
}
/* Merges the kept rows that are older than the delay of all entries. Returns the row of the pass from which on keys
 * have still to be read. */
static int kept_absorb(Block *k, const Kept *x, const Batch *b, int s, int h, int lanes) {
    const int n = x->n[s * lanes + h], from = b->off[s];
    int oldest = INT32_MAX, old = 0;
    for (int i = 0; i < k->n; i++) oldest = imin(oldest, k->row[i]);
    const int cut = from + imax(0, oldest - k->delay - from) / KB * KB;
    if (!n || cut == from) return from;
    const size_t at = (size_t)h * (size_t)b->N + (size_t)from;
    while (old < n && x->row[at + (size_t)old] < cut) old++;
    for (int j = 0, p = panels_of(b, s); j < old; j += KB, p++) {
        const int m = imin(KB, old - j);
        memset(k->s, 0, (size_t)k->n * KB * sizeof(real));
        tile_mm(k->s, KB, k->q, (size_t)k->Dk, 1, x->kt + ((size_t)p * (size_t)lanes + (size_t)h) * (size_t)k->Dk * KB,
                KB, k->n, k->Dk, in_vectors(m));
        absorb(k, x->v + (at + (size_t)j) * (size_t)k->Dv, (size_t)k->Dv, NULL, x->pos + at + (size_t)j, NULL, from + j,
               m);
    }
    return cut;
}
static void attend(Run *r, Tensor o, Tensor lse, Tensor q, const Kv *rows, AttnSpec spec, bool merge) {
    const Batch *b = r->batch;
    int lanes = rows->s.lanes, group = spec.heads / lanes, Dk = rows->s.kdim, Dv = rows->s.vdim;
    check_attend(&rows->s, spec, q, o);
    if (r->out.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    const Kv wide = kv_in_reals(r, rows), *kv = &wide;
    bool pairs = by_pairs(r, spec, Dk, Dv);
    Tensor kt = pairs ? ABSENT : panels(r, "attend keys", rows_of(r, lanes, Dk));
    Pair *kp = pairs ? pair_panels(r, "attend keys", rows_of(r, lanes, Dk)) : NULL,
         *vp = pairs ? pair_panels(r, "attend values", rows_of(r, lanes, Dv)) : NULL;
    Tensor mem = SCRATCH(r, "attend block", r->dev->threads, (int)(block_numbers(Dk, Dv) + pairs * block_pairs(Dk)));
    int *start = arena_take(r->scratch, (size_t)(b->B + 1) * sizeof *start, "attend rows"), blocks = 0;
    const bool keeps = present(kv->bias) && !pairs && !spec.window && b->N >= KEPT_LEAST;
    Kept kept = keeps ? kept_take(r, lanes, Dk, Dv) : (Kept){0};
    if (!measuring(r)) {
        wanted(r, start);
        if (keeps) kept_pack(r, &kept, kv);
        if (pairs)
            pack_pairs(r, kp, NULL, kv->k, start, group), pack_pairs(r, NULL, vp, kv->v, start, group);
        else
            pack_all(r, R(kt), kv->k, start, group);
        for (int s = 0; s < b->B; s++) blocks = imax(blocks, ((start[s + 1] - start[s]) * group + QB - 1) / QB);
        size_t stepv, ldv;
        const real *values = kv_values(kv, &stepv, &ldv);
        long work = (long)r->out.n * spec.heads * (Dk + Dv) * 16;
#pragma omp parallel for collapse(3) schedule(dynamic) num_threads(r->dev->threads) if (work > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < lanes; h++)
                for (int c = 0; c < blocks; c++) {
                    int e0 = c * QB, n = imin(QB, (start[s + 1] - start[s]) * group - e0);
                    if (n <= 0) continue;
                    Block k;
                    int thread = omp_get_thread_num();
                    real *own = R(mem) + (size_t)thread * (size_t)mem.n[1];
                    block_place(&k, own, Dk, Dv, spec);
                    bool few = few_scores(b, s, (start[s + 1] - start[s]) * group);
                    if (pairs && !few) block_place_pairs(&k, r->dev->pair_product, own + block_numbers(Dk, Dv));
                    k.delay = kv->s.delay;
                    block_load(&k, n, e0, start[s], h, group, q, o, lse, merge);
                    Span span = block_rows(&k, b, s, r->out.idx, e0, group, start[s]);
                    if (k.qp) soften_begin(&k);
                    const int from = keeps && !few ? kept_absorb(&k, &kept, b, s, h, lanes) : b->off[s];
                    for (int j = from, p = panels_of(b, s) + (from - b->off[s]) / KB; j < span.high; j += KB, p++) {
                        int m = keys_seen(span, j);
                        if (!span_meets(span, j, j + m)) continue;
                        real bias[KB];
                        size_t panel = ((size_t)p * (size_t)lanes + (size_t)h) * KB;
                        if (k.qp) {
                            pairs_mm(k.tiles, k.s, KB, k.qp, (size_t)Dk / 2, 1, kp + panel * (size_t)Dk / 2, KB, n,
                                     Dk / 2, in_vectors(m), false);
                        } else if (few) {
                            scores(&k, R(kv->k) + ((size_t)j * (size_t)lanes + (size_t)h) * (size_t)Dk,
                                   (size_t)lanes * (size_t)Dk, m, NULL, NULL, 0);
                        } else {
                            memset(k.s, 0, (size_t)n * KB * sizeof(real));
                            tile_mm(k.s, KB, k.q, (size_t)Dk, 1, R(kt) + panel * (size_t)Dk, KB, n, Dk, in_vectors(m));
                        }
                        absorb(&k, values + (size_t)j * ldv + (size_t)h * stepv, ldv,
                               pairs ? vp + panel * (size_t)Dv / 2 : NULL, b->pos + j, bias_of(bias, kv, h, j, m), j,
                               m);
                    }
                    if (k.qp) soften_end(&k);
                    block_store(&k, e0, start[s], h, group, o, lse);
                }
    }
    arena_release(r->scratch, mark);
}
