/* Attention over the rows of a pass and its backward, against plain loops over pairs of rows. Passes are drawn: ragged
 * sequences, documents that begin and continue, windows, sinks, groups of heads, widths. Each bound is also held
 * against references with one mistake planted in them. */
#include "tests/lib/rig.h"

/* ---- a drawn pass -------------------------------------------------------------------------------------------------
 */
enum { SEQS = 5, DRAWS = 48 };
typedef struct {
    Batch b;
    int off[SEQS + 1], seq[SEQS], *of, *pos, *first, *all, *picked;
    uint64_t id[SEQS];
    RowList out;
    KvShape s;
    AttnSpec spec;
} Pass;

static Pass *pass_draw(Dice *dice, int draw, bool whole) {
    static const int length[] = {1, 63, 64, 65, 150, 0, 7}, window[] = {0, 1, 5, 70};
    static const int dims[][2] = {{24, 40}, {64, 64}, {8, 16}, {17, 3}, {1, 1}},
                     heads[][2] = {{2, 2}, {4, 2}, {4, 1}, {8, 2}, {3, 1}};
    Pass *p = xcalloc(1, sizeof *p);
    int N = 0, D = roll(dice, 5), H = roll(dice, 5), kind = roll(dice, 3), wanted = whole ? 0 : roll(dice, 4), n = 0;
    p->b.B = draw == 0 ? 1 : 1 + roll(dice, 4);
    for (int s = 0; s < p->b.B; s++) {
        p->seq[s] = s, p->id[s] = (uint64_t)s;
        p->off[s + 1] = N += draw == 0 ? 0 : length[roll(dice, 7)]; /* draw 0 has no rows at all */
    }
    p->of = xcalloc((size_t)N + 1, sizeof(int)), p->pos = xcalloc((size_t)N + 1, sizeof(int));
    p->first = xcalloc((size_t)N + 1, sizeof(int));
    p->all = xcalloc((size_t)N + 1, sizeof(int)), p->picked = xcalloc((size_t)N + 1, sizeof(int));
    for (int s = 0; s < p->b.B; s++)
        for (int i = p->off[s]; i < p->off[s + 1]; i++) {
            bool start = i == p->off[s] ? roll(dice, 2) : kind && roll(dice, kind == 1 ? 20 : 3) == 0;
            p->of[i] = s;
            p->all[i] = i;
            if (start)
                p->first[i] = i, p->pos[i] = 0;
            else if (i == p->off[s])
                p->first[i] = -1, p->pos[i] = 1 + roll(dice, roll(dice, 2) ? 3 : 200);
            else
                p->first[i] = p->first[i - 1], p->pos[i] = p->pos[i - 1] + 1;
            bool last = i == p->off[s + 1] - 1;
            if (wanted == 0 || (wanted == 1 && last) || (wanted == 2 && roll(dice, 3) == 0)) p->picked[n++] = i;
        }
    p->out = (RowList){n, p->picked}; /* wanted == 3: none */
    p->b = (Batch){
        .B = p->b.B, .N = N, .off = p->off, .seq = p->seq, .of = p->of, .pos = p->pos, .first = p->first, .id = p->id};
    p->s = (KvShape){.lanes = heads[H][1], .kdim = dims[D][0], .vdim = dims[D][1]};
    p->spec = (AttnSpec){.heads = heads[H][0],
                         .window = window[draw % 4],
                         .sinks = draw / 4 % 2 ? 3 : 0,
                         .scale = (real)(1.1 / sqrt(dims[D][0]))};
    p->spec.cap = rng_mix((uint64_t)draw, 3) % 3 == 0 ? (real)0.4 : 0;
    p->s.evicts = rng_mix((uint64_t)draw, 1) % 3 < 2; /* not rolled: the passes stay what they are */
    p->s.delay = p->s.evicts ? (int[]){0, 1, 6}[rng_mix((uint64_t)draw, 2) % 3] : 0;
    return p;
}
static void pass_free(Pass *p) { free(p->of), free(p->pos), free(p->first), free(p->all), free(p->picked), free(p); }
static void rig_pass(Rig *g, const Pass *p) {
    g->run.batch = &p->b;
    g->run.in = (RowList){p->b.N, p->all};
    g->run.out = p->out;
}
static Kv pass_kv(Rig *g, const Pass *p, bool hard) {
    Kv kv = {.s = p->s,
             .k = RANDOM(g, "k", p->b.N, p->s.lanes, p->s.kdim),
             .v = RANDOM(g, "v", p->b.N, p->s.lanes, p->s.vdim)};
    const real some[] = {0, -1, -3, -6, hard ? -INFINITY : -2};
    if (!p->s.evicts) return kv;
    kv.bias = RANDOM(g, "bias", p->b.N, p->s.lanes);
    for (size_t i = 0; i < tensor_count(kv.bias); i++) R(kv.bias)[i] = some[rng_mix(3, i) % 5];
    return kv;
}
/* ---- references ---------------------------------------------------------------------------------------------------
 */
/* Mistakes that a bound must notice. */
typedef enum {
    RIGHT,
    DROPS_A_KEY,
    STRICTLY_CAUSAL,
    SEES_THE_NEXT,
    WIDER_WINDOW,
    ONE_SINK_LESS,
    IGNORES_DOCUMENTS,
    NO_SCALE,
    NO_BIAS,
    BIASED_EARLY,
    BIAS_OF_THE_NEXT,
    NO_CAP,
    NO_DELTA,
    FAULTS
} Fault;
static const char *const fault_name[FAULTS] = {"",
                                               "a dropped key",
                                               "j < i",
                                               "j <= i + 1",
                                               "a window of one more",
                                               "a sink less",
                                               "ignored documents",
                                               "a missing scale",
                                               "a missing bias",
                                               "a delay of one less",
                                               "the bias of the key before",
                                               "a missing cap",
                                               "a missing delta"};
static bool visible(const Pass *p, int i, int j, Fault f) {
    const Batch *b = &p->b;
    int age = b->pos[i] - b->pos[j], limit = f == STRICTLY_CAUSAL ? i - 1 : f == SEES_THE_NEXT ? i + 1 : i;
    int window = p->spec.window + (f == WIDER_WINDOW), sinks = p->spec.sinks - (f == ONE_SINK_LESS);
    if (b->of[i] != b->of[j] || j > limit) return false;
    if (f != IGNORES_DOCUMENTS && b->first[i] != b->first[j]) return false;
    if (f == DROPS_A_KEY && j == imax(b->first[i], b->off[b->of[i]]) && i > j) return false;
    return p->spec.window == 0 || age < window || b->pos[j] < sinks;
}
/* Of key j for query i: added to the score. */
static wide bias(const Pass *p, const Kv *kv, int i, int j, int lane, Fault f) {
    if (!p->s.evicts || f == NO_BIAS) return 0;
    if (p->b.pos[i] - p->b.pos[j] <= p->s.delay - (f == BIASED_EARLY)) return 0;
    wide b = R(kv->bias)[(f == BIAS_OF_THE_NEXT && j ? j - 1 : j) * p->s.lanes + lane];
    return i == j ? fmaxl(b, -6) : b; /* by mistake alone: some key must be left */
}
static const real *row(Tensor t, int i, int h) {
    return R(t) + ((size_t)i * (size_t)t.n[1] + (size_t)h) * (size_t)t.n[2];
}

typedef struct {
    Ref *o, *lse;
    bool differs; /* a fault changed what some wanted row sees */
} Forward;
static Forward attend_ref(const Pass *p, Tensor q, const Kv *kv, Tensor o0, Tensor lse0, Fault f) {
    int H = p->spec.heads, G = H / p->s.lanes, Dv = p->s.vdim, M = p->out.n;
    wide scale = f == NO_SCALE ? 1 : p->spec.scale;
    Forward r = {refs((size_t)(M * H * Dv)), refs((size_t)(M * H)), false};
    Seen x = seen_make(p->b.N, p->s.kdim, Dv);
    for (int m = 0; m < M; m++)
        for (int h = 0; h < H; h++) {
            int i = p->out.idx[m], at = m * H + h;
            bool biased = false;
            x.n = 0, x.cap = f == NO_CAP ? 0 : p->spec.cap;
            if (present(o0)) x.part = R(lse0)[at], x.o0 = row(o0, m, h);
            for (int j = p->off[p->of[i]]; j < p->off[p->of[i] + 1]; j++) {
                bool sees = visible(p, i, j, f);
                r.differs |= sees != visible(p, i, j, RIGHT);
                if (!sees) continue;
                wide more = bias(p, kv, i, j, h / G, f);
                biased |= more != bias(p, kv, i, j, h / G, RIGHT);
                seen_add(&x, row(q, m, h), row(kv->k, j, h / G), row(kv->v, j, h / G), scale);
                x.s[x.n - 1] += more;
            }
            r.differs |= biased && x.n > 1;
            r.differs |= (f == NO_SCALE || (f == NO_CAP && p->spec.cap > 0)) &&
                         x.n > 1; /* one key has all the weight whatever its score */
            seen_ref(&x, &r.o[at * Dv], &r.lse[at]);
        }
    seen_free(&x);
    return r;
}

/* ---- forward ------------------------------------------------------------------------------------------------------
 */
/* A partial over a few other keys per row and head, or over none. */
static void partial(Dice *dice, const Pass *p, Tensor o, Tensor lse) {
    int Dv = p->s.vdim;
    for (int i = 0; i < p->out.n * p->spec.heads; i++) {
        bool none = roll(dice, 3) == 0;
        R(lse)[i] = none ? -INFINITY : (real)(roll(dice, 1000) / 100.0 - 5);
        for (int k = 0; k < Dv; k++) R(o)[i * Dv + k] = none ? 0 : (real)(roll(dice, 2000) / 1000.0 - 1);
    }
}
static void attend_with(Rig *g, const Pass *p, Tensor q, const Kv *kv, Tensor o0, Tensor lse0, int *noticed) {
    bool merge = present(o0);
    int H = p->spec.heads;
    Forward want = attend_ref(p, q, kv, o0, lse0, RIGHT);
    Table tables[TABLES_MAX];
    rig_pass(g, p);
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        uint64_t alone = 0;
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Mark mark = arena_mark(&g->mem);
            Tensor o = EMPTY(g, "o", p->out.n, H, p->s.vdim), lse = EMPTY(g, "lse", p->out.n, H);
            rig_use(g, tables[k], threads);
            if (merge) memcpy(o.p, o0.p, tensor_bytes(o)), memcpy(lse.p, lse0.p, tensor_bytes(lse));
            if (merge) { /* adds to what is there: only one call may find it */
                rig_measure(g);
                g->run.ops->attend(&g->run, o, lse, q, kv, p->spec, true);
                rig_place(g);
                g->run.ops->attend(&g->run, o, lse, q, kv, p->spec, true);
                rig_done(g);
            } else
                OP(g, attend, o, lse, q, kv, p->spec, false);
            CHECK_REF(g, "attend", merge ? "merged o" : "o", o, want.o);
            CHECK_REF(g, "attend", merge ? "merged lse" : "lse", lse, want.lse);
            if (threads == 1) alone = g->hash;
            cr_assert(g->hash == alone, "%s: %d threads give another result", g->table, threads);
            for (Fault f = DROPS_A_KEY; noticed && k == 0 && threads == 1 && f < NO_DELTA; f++) {
                Forward wrong = attend_ref(p, q, kv, o0, lse0, f);
                if (wrong.differs && p->out.n) {
                    noticed[f]++;
                    CHECK_MISSED("attend", fault_name[f], o, wrong.o);
                    CHECK_MISSED("attend", fault_name[f], lse, wrong.lse);
                }
                free(wrong.o), free(wrong.lse);
            }
            arena_release(&g->mem, mark);
        }
    }
    free(want.o), free(want.lse);
}
typedef struct {
    int kdim, vdim;
    bool alias;
} Widths;
static void append_ones(Pass *p, const Widths *w) {
    if (!w) return;
    p->s.kdim = w->kdim, p->s.vdim = w->vdim, p->s.alias = w->alias;
    p->spec.scale = (real)(1.1 / sqrt(w->kdim));
}
static void forward_of(Rig *g, int draw, const Widths *w, int noticed[FAULTS]) {
    Dice dice = {rng_mix(0xA77E, (uint64_t)draw), 0};
    Pass *p = pass_draw(&dice, draw, false);
    append_ones(p, w);
    Kv kv = pass_kv(g, p, true);
    for (int i = 0; p->s.alias && i < p->b.N * p->s.lanes; i++) /* for the reference; an op reads the keys */
        memcpy(R(kv.v) + i * p->s.vdim, R(kv.k) + i * p->s.kdim, (size_t)p->s.vdim * sizeof(real));
    Tensor q = RANDOM(g, "q", p->out.n, p->spec.heads, p->s.kdim);
    Tensor o = EMPTY(g, "o before", p->out.n, p->spec.heads, p->s.vdim),
           lse = EMPTY(g, "lse before", p->out.n, p->spec.heads);
    attend_with(g, p, q, &kv, ABSENT, ABSENT, draw % 3 != 1 && p->s.kdim > 1 ? noticed : NULL);
    partial(&dice, p, o, lse);
    attend_with(g, p, q, &kv, o, lse, NULL);
    pass_free(p);
}
static void forward(Rig *g, int draw, int noticed[FAULTS]) { forward_of(g, draw, NULL, noticed); }
void case_attend(Rig *g, int draw, int d) { forward(g, draw, (int[FAULTS]){d}); }
OP_CASE(attend, case_attend, 20); /* with keys of 576 numbers; 12 are enough for 64 */
/* All draws; the mistakes up to `last` must have been tried. */
static void draws(void (*f)(Rig *, int draw, int noticed[FAULTS]), Fault last) {
    int noticed[FAULTS] = {0};
    for (int draw = 0; draw < DRAWS; draw++) {
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)24 << 20);
        f(&g, draw, noticed);
        rig_close(&g);
    }
    for (Fault i = DROPS_A_KEY; i <= last; i++)
        cr_assert(noticed[i] >= 3, "%s was tried %d times", fault_name[i], noticed[i]);
}
Test(ops, attend) { draws(forward, NO_CAP); }

/* Heads of all widths that models have, and wider than a block of a device takes at once. */
static const Widths wide_heads[] = {{16, 16, false},   {80, 80, false},   {128, 128, false}, {192, 128, false},
                                    {129, 257, false}, {256, 256, false}, {576, 512, true},  {40, 24, true}};
enum { WIDE = sizeof wide_heads / sizeof *wide_heads };
Test(ops, attend_with_wide_heads) {
    for (int k = 0; k < 2 * WIDE; k++) {
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)64 << 20);
        forward_of(&g, 3 + k, &wide_heads[k / 2], (int[FAULTS]){0});
        rig_close(&g);
    }
}

/* Scores of +-1e4: the largest must win without an overflow, and equal ones share. */
Test(ops, attend_with_extreme_scores) {
    for (int draw = 1; draw < 12; draw++) {
        Dice dice = {rng_mix(0xE87, (uint64_t)draw), 0};
        Pass *p = pass_draw(&dice, draw, true);
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)24 << 20);
        Kv kv = pass_kv(&g, p, true);
        Tensor q = RANDOM(&g, "q", p->out.n, p->spec.heads, p->s.kdim);
        p->spec.scale = (real)(1e4 / sqrt(p->s.kdim));
        attend_with(&g, p, q, &kv, ABSENT, ABSENT, NULL);
        for (size_t i = 0; i < tensor_count(q); i++) R(q)[i] = 0; /* every visible key weighs the same */
        attend_with(&g, p, q, &kv, ABSENT, ABSENT, NULL);
        rig_close(&g);
        pass_free(p);
    }
}

/* A NaN reaches every row that looks at it, and no other sequence and no other lane. */
Test(ops, attend_lets_nan_through) {
    Table tables[TABLES_MAX];
    for (int draw = 1; draw < 25; draw++)
        for (int what = 0; what < 3; what++) {
            Dice dice = {rng_mix(0x9A9, (uint64_t)draw), 0};
            Pass *p = pass_draw(&dice, draw, true);
            Rig g;
            rig_open(&g, rig_first(), 1, (size_t)24 << 20);
            int H = p->spec.heads, G = H / p->s.lanes, Dv = p->s.vdim, N = p->b.N;
            Kv kv = pass_kv(&g, p, false);
            Tensor q = RANDOM(&g, "q", N, H, p->s.kdim), o = EMPTY(&g, "o", N, H, Dv), lse = EMPTY(&g, "lse", N, H);
            int bad = N ? roll(&dice, N) : -1, lane = roll(&dice, p->s.lanes),
                column = roll(&dice, what == 2 ? Dv : p->s.kdim);
            if (N) ((real *)row(what == 0 ? q : what == 1 ? kv.k : kv.v, bad, what ? lane : lane * G))[column] = NAN;
            rig_pass(&g, p);
            for (int k = 0, n = rig_tables(tables); k < n; k++) {
                rig_use(&g, tables[k], 1);
                OP(&g, attend, o, lse, q, &kv, p->spec, false);
                for (int i = 0; i < N; i++)
                    for (int h = 0; h < H; h++) {
                        bool hit = what == 0 ? i == bad && h == lane * G : visible(p, i, bad, RIGHT) && h / G == lane;
                        bool near = what == 0 ? i == bad && h == lane * G : p->of[i] == p->of[bad] && h / G == lane;
                        bool nan = false, all = true;
                        for (int c = 0; c < Dv; c++)
                            nan |= isnan(row(o, i, h)[c]), all &= isnan(row(o, i, h)[c]) || (what == 2 && c != column);
                        cr_assert(!hit || all, "%s: NaN in %c vanished at row %d, head %d", g.table, "qkv"[what], i, h);
                        cr_assert(!hit || what == 2 || isnan(R(lse)[i * H + h]), "%s: NaN in %c vanished from lse",
                                  g.table, "qkv"[what]);
                        cr_assert(near || (!nan && !isnan(R(lse)[i * H + h])),
                                  "%s: NaN in %c spread to row %d, head %d", g.table, "qkv"[what], i, h);
                    }
            }
            rig_close(&g);
            pass_free(p);
        }
}

/* ---- backward -----------------------------------------------------------------------------------------------------
 */
typedef struct {
    Ref *dq, *dk, *dv, *dbias;
    bool differs, mixes; /* some row sees more keys than one */
} Grad;
typedef struct {
    Tensor q, o, lse, dout, dq, dk, dv, dbias;
    Kv kv;
} Tape;
/* Adds an entry of ds or p, whose error squared is `square`, times x to a gradient. */
static void grad_add(Ref *r, wide entry, wide square, real x) {
    r->want += entry * x, r->square += square * x * x, r->terms++;
}
static Grad backward_ref(const Pass *p, const Tape *t, Fault f) {
    int H = p->spec.heads, G = H / p->s.lanes, Dk = p->s.kdim, Dv = p->s.vdim, N = p->b.N;
    Grad r = {refs_of(t->dq), refs_of(t->dk), refs_of(t->dv), refs_of(t->dbias), f == NO_DELTA, false};
    for (int i = 0; i < N; i++)
        for (int h = 0; h < H; h++) {
            wide delta_sq, delta = rig_score(row(t->dout, i, h), row(t->o, i, h), Dv, 1, &delta_sq),
                           lse = R(t->lse)[i * H + h];
            int keys = 0;
            for (int j = p->off[p->of[i]]; j < p->off[p->of[i] + 1]; j++) {
                bool sees = visible(p, i, j, f);
                r.differs |= sees != visible(p, i, j, RIGHT);
                if (!sees) continue;
                r.mixes |= keys++ > 0;
                const real *qi = row(t->q, i, h), *kj = row(t->kv.k, j, h / G), *vj = row(t->kv.v, j, h / G),
                           *gi = row(t->dout, i, h);
                wide e, g_sq, s = rig_score(qi, kj, Dk, p->spec.scale, &e), gv = rig_score(gi, vj, Dv, 1, &g_sq);
                wide slope, size = f == NO_CAP ? 0 : p->spec.cap;
                s = rig_cap(s, size, &slope);
                e = e * slope * slope + (size > 0 ? 16 * s * s : 0);
                wide more = bias(p, &t->kv, i, j, h / G, f), right = bias(p, &t->kv, i, j, h / G, RIGHT);
                s += more, r.differs |= more != right && r.mixes;
                wide w = wide_exp(s - lse), scale = f == NO_SCALE ? 1 : p->spec.scale,
                     x = gv - (f == NO_DELTA ? 0 : delta);
                wide p_sq = w * w * (1 + e + s * s + lse * lse), ds = w * x * scale;
                wide ds_sq = scale * scale * (x * x * p_sq + w * w * (g_sq + delta_sq)), dbias = ds / scale;
                ds *= slope, ds_sq += size > 0 ? 4 * ds_sq + 4 * scale * scale * w * w * x * x : 0;
                for (int c = 0; c < Dk; c++) {
                    grad_add(&r.dq[(i * H + h) * Dk + c], ds, ds_sq, kj[c]);
                    grad_add(&r.dk[(j * p->s.lanes + h / G) * Dk + c], ds, ds_sq, qi[c]);
                }
                if (p->s.evicts && p->b.pos[i] - p->b.pos[j] > p->s.delay)
                    grad_add(&r.dbias[j * p->s.lanes + h / G], dbias, ds_sq / (scale * scale), 1);
                for (int c = 0; c < Dv; c++) grad_add(&r.dv[(j * p->s.lanes + h / G) * Dv + c], w, p_sq, gi[c]);
            }
        }
    r.differs |=
        (f == NO_SCALE || (f == NO_CAP && p->spec.cap > 0)) && r.mixes; /* of one key the score has no gradient */
    return r;
}
static void grad_free(Grad r) { free(r.dq), free(r.dk), free(r.dv), free(r.dbias); }
static void backward_of(Rig *g, int draw, const Widths *w, int noticed[FAULTS]) {
    Dice dice = {rng_mix(0xBAC, (uint64_t)draw), 0};
    Pass *p = pass_draw(&dice, draw, true);
    append_ones(p, w);
    int N = p->b.N, H = p->spec.heads, Dk = p->s.kdim, Dv = p->s.vdim, K = p->s.lanes;
    Tape t = {.kv = pass_kv(g, p, false),
              .q = RANDOM(g, "q", N, H, Dk),
              .dout = RANDOM(g, "dout", N, H, Dv),
              .o = EMPTY(g, "o", N, H, Dv),
              .lse = EMPTY(g, "lse", N, H),
              .dq = RANDOM(g, "dq", N, H, Dk),
              .dk = RANDOM(g, "dk", N, K, Dk),
              .dv = RANDOM(g, "dv", N, K, Dv),
              .dbias = RANDOM(g, "dbias", N, K)};
    Forward seen = attend_ref(p, t.q, &t.kv, ABSENT, ABSENT, RIGHT);
    for (size_t i = 0; i < tensor_count(t.o); i++) R(t.o)[i] = (real)seen.o[i].want;
    for (size_t i = 0; i < tensor_count(t.lse); i++) R(t.lse)[i] = (real)seen.lse[i].want;
    Grad want = backward_ref(p, &t, RIGHT);
    Table tables[TABLES_MAX];
    rig_pass(g, p);
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        uint64_t alone = 0;
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Mark mark = arena_mark(&g->mem);
            Tensor dq = tensor_copy(g, t.dq);
            Kv dkv = {.s = p->s, .k = tensor_copy(g, t.dk), .v = tensor_copy(g, t.dv), .bias = tensor_copy(g, t.dbias)};
            rig_use(g, tables[k], threads);
            OP(g, attend_backward, add_to(dq), &(KvInto){dkv, false}, t.dout, t.q, &t.kv, p->spec, t.o, t.lse);
            CHECK_REF(g, "attend_backward", "dq", dq, want.dq);
            CHECK_REF(g, "attend_backward", "dk", dkv.k, want.dk);
            CHECK_REF(g, "attend_backward", "dv", dkv.v, want.dv);
            CHECK_REF(g, "attend_backward", "dbias", dkv.bias, want.dbias);
            if (threads == 1) alone = g->hash;
            cr_assert(g->hash == alone, "%s: %d threads give another result", g->table, threads);
            for (Fault f = DROPS_A_KEY; draw % 3 != 1 && Dk > 1 && k == 0 && threads == 1 && f < FAULTS; f++) {
                Grad wrong = backward_ref(p, &t, f);
                noticed[f] += wrong.differs;
                bool lone = f == STRICTLY_CAUSAL && !want.mixes; /* ds = 0, seen or not */
                if (wrong.differs && N && !lone) {
                    CHECK_MISSED("attend_backward", fault_name[f], dq, wrong.dq);
                    CHECK_MISSED("attend_backward", fault_name[f], dkv.k, wrong.dk);
                }
                if (wrong.differs && N && f < NO_SCALE) CHECK_MISSED("attend_backward", fault_name[f], dkv.v, wrong.dv);
                grad_free(wrong);
            }
            arena_release(&g->mem, mark);
        }
    }
    grad_free(want), free(seen.o), free(seen.lse);
    pass_free(p);
}
static void backward(Rig *g, int draw, int noticed[FAULTS]) { backward_of(g, draw, NULL, noticed); }
void case_attend_backward(Rig *g, int draw, int d) { backward(g, draw, (int[FAULTS]){d}); }
OP_CASE(attend_backward, case_attend_backward, 28); /* so, too: 16 */
Test(ops, attend_backward) { draws(backward, NO_DELTA); }
Test(ops, attend_backward_with_wide_heads, .timeout = 200) {
    for (int k = 0; k < WIDE; k++) {
        if (wide_heads[k].alias) continue; /* not trained on */
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)64 << 20);
        backward_of(&g, 3 + 3 * k + 1, &wide_heads[k], (int[FAULTS]){0});
        rig_close(&g);
    }
}

#ifndef KV_DOUBLE /* the bounds of bf16 are no tighter in double */
/* ---- operands in bf16 ----------------------------------------------------------------------------------------------
 * Queries, keys, values and gradients are numbers of bf16 to begin with, so that what the bounds leave room for is what
 * the ops round themselves: scaled queries, probabilities and their gradients. Every table has the form, whether or not
 * its processor's instruction makes it worth while. */
static const double rounded_bound = 4e-3;
static const Widths whole_vectors[] = {{64, 64, false}, {16, 48, false}, {128, 128, false}, {80, 96, false}};
enum { WHOLE = sizeof whole_vectors / sizeof *whole_vectors, ROUNDED_DRAWS = 24 };
static Tensor rounded(Tensor t) {
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)bf16_to(bf16_from((float)R(t)[i]));
    return t;
}
/* Of what was added to `before` (absent: 0), beside all of what should have been. */
static double rms_of(Tensor got, Tensor before, const Ref *want) {
    wide error = 0, size = 0;
    for (size_t i = 0; i < tensor_count(got); i++) {
        wide w = want[i].want, d = R(got)[i] - (present(before) ? R(before)[i] : 0) - w;
        if (isinf((double)w)) { /* the lse of a row that sees nothing */
            d = w == R(got)[i] ? 0 : INFINITY, w = 0;
        }
        error += d * d, size += w * w;
    }
    return error == 0 ? 0 : (double)wide_sqrt(error / size);
}
static void rounded_forward(Rig *g, int draw, int noticed[FAULTS], double *worst) {
    Dice dice = {rng_mix(0xB16F, (uint64_t)draw), 0};
    Pass *p = pass_draw(&dice, draw, false);
    append_ones(p, &whole_vectors[draw % WHOLE]);
    Kv kv = pass_kv(g, p, true);
    rounded(kv.k), rounded(kv.v);
    Tensor q = rounded(RANDOM(g, "q", p->out.n, p->spec.heads, p->s.kdim)),
           o = EMPTY(g, "o", p->out.n, p->spec.heads, p->s.vdim), lse = EMPTY(g, "lse", p->out.n, p->spec.heads);
    Forward want = attend_ref(p, q, &kv, ABSENT, ABSENT, RIGHT);
    Table tables[TABLES_MAX];
    rig_pass(g, p);
    for (int k = 0, n = rig_pairs(tables); k < n; k++) {
        uint64_t alone = 0;
        for (int threads = 1; threads <= rig_threads(); threads++) {
            rig_use(g, tables[k], threads);
            OP(g, attend, o, lse, q, &kv, p->spec, false);
            double eo = rms_of(o, ABSENT, want.o), el = rms_of(lse, ABSENT, want.lse);
            *worst = fmax(*worst, fmax(eo, el));
            cr_assert(eo <= rounded_bound && el <= rounded_bound, "%s, draw %d: o is %.3g off, lse %.3g", g->table,
                      draw, eo, el);
            if (threads == 1) alone = g->hash;
            cr_assert(g->hash == alone, "%s: %d threads give another result", g->table, threads);
        }
    }
    for (Fault f = DROPS_A_KEY; f < NO_DELTA; f++) {
        Forward wrong = attend_ref(p, q, &kv, ABSENT, ABSENT, f);
        noticed[f] += rms_of(o, ABSENT, wrong.o) > 10 * rounded_bound;
        free(wrong.o), free(wrong.lse);
    }
    free(want.o), free(want.lse), pass_free(p);
}
static void rounded_backward(Rig *g, int draw, int noticed[FAULTS], double *worst) {
    static const char *const name[] = {"dq", "dk", "dv", "dbias"};
    Dice dice = {rng_mix(0xB16B, (uint64_t)draw), 0};
    Pass *p = pass_draw(&dice, draw, true);
    append_ones(p, &whole_vectors[draw % WHOLE]);
    int N = p->b.N, H = p->spec.heads, Dk = p->s.kdim, Dv = p->s.vdim, K = p->s.lanes;
    Tape t = {.kv = pass_kv(g, p, false),
              .q = rounded(RANDOM(g, "q", N, H, Dk)),
              .dout = rounded(RANDOM(g, "dout", N, H, Dv)),
              .o = EMPTY(g, "o", N, H, Dv),
              .lse = EMPTY(g, "lse", N, H),
              .dq = RANDOM(g, "dq", N, H, Dk),
              .dk = RANDOM(g, "dk", N, K, Dk),
              .dv = RANDOM(g, "dv", N, K, Dv),
              .dbias = RANDOM(g, "dbias", N, K)};
    rounded(t.kv.k), rounded(t.kv.v);
    Forward seen = attend_ref(p, t.q, &t.kv, ABSENT, ABSENT, RIGHT);
    for (size_t i = 0; i < tensor_count(t.o); i++) R(t.o)[i] = (real)seen.o[i].want;
    for (size_t i = 0; i < tensor_count(t.lse); i++) R(t.lse)[i] = (real)seen.lse[i].want;
    const Tensor none[] = {t.dq, t.dk, t.dv, t.dbias};
    for (int k = 0; k < 4; k++)
        memset(none[k].p, 0, tensor_bytes(none[k])); /* backward_ref begins with what is there */
    Grad want = backward_ref(p, &t, RIGHT), wrong[FAULTS];
    for (Fault f = DROPS_A_KEY; f < FAULTS; f++) wrong[f] = backward_ref(p, &t, f);
    Table tables[TABLES_MAX];
    rig_pass(g, p);
    for (int k = 0, n = rig_pairs(tables); k < n; k++) {
        uint64_t alone = 0;
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Mark mark = arena_mark(&g->mem);
            Tensor before[4], got[4];
            for (int x = 0; x < 4; x++) {
                before[x] = tensor_copy(g, none[x]);
                for (size_t i = 0; i < tensor_count(before[x]); i++) R(before[x])[i] = (real)(i % 3) - 1;
                got[x] = tensor_copy(g, before[x]);
            }
            Kv dkv = {.s = p->s, .k = got[1], .v = got[2], .bias = got[3]};
            rig_use(g, tables[k], threads);
            OP(g, attend_backward, add_to(got[0]), &(KvInto){dkv, false}, t.dout, t.q, &t.kv, p->spec, t.o, t.lse);
            const Ref *right[] = {want.dq, want.dk, want.dv, want.dbias};
            for (int x = 0; x < (p->s.evicts ? 4 : 3) && N; x++) {
                double e = want.mixes || x == 2 ? rms_of(got[x], before[x], right[x]) : 0; /* of one key ds is 0 */
                *worst = fmax(*worst, e);
                cr_assert(e <= rounded_bound, "%s, draw %d: %s is %.3g off", g->table, draw, name[x], e);
            }
            for (Fault f = DROPS_A_KEY; f < FAULTS && N && want.mixes && k == 0 && threads == 1; f++)
                noticed[f] += rms_of(got[0], before[0], wrong[f].dq) > 10 * rounded_bound &&
                              rms_of(got[1], before[1], wrong[f].dk) > 10 * rounded_bound;
            if (threads == 1) alone = g->hash;
            cr_assert(g->hash == alone, "%s: %d threads give another result", g->table, threads);
            arena_release(&g->mem, mark);
        }
    }
    for (Fault f = DROPS_A_KEY; f < FAULTS; f++) grad_free(wrong[f]);
    grad_free(want), free(seen.o), free(seen.lse), pass_free(p);
}
static void rounded_draws(void (*f)(Rig *, int, int[FAULTS], double *), Fault last) {
    int noticed[FAULTS] = {0};
    double worst = 0;
    if (cuda_ops()) return; /* tests/simt/test_cuda_bf16.c */
    for (int draw = 0; draw < ROUNDED_DRAWS; draw++) {
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)64 << 20);
        g.dev->pairs = true;
        f(&g, draw, noticed, &worst);
        rig_close(&g);
    }
    check_log("attention of rounded rows", worst, rounded_bound, 0, ROUNDED_DRAWS);
    for (Fault i = DROPS_A_KEY; i <= last; i++)
        cr_assert(noticed[i] >= 2, "%s misses the bound tenfold in %d passes", fault_name[i], noticed[i]);
}
Test(ops, attend_in_bf16, .timeout = 120) { rounded_draws(rounded_forward, BIAS_OF_THE_NEXT); }
Test(ops, attend_backward_in_bf16, .timeout = 200) { rounded_draws(rounded_backward, NO_DELTA); }

/* ---- activations that are bf16 in memory: the bits of those that were f32, each rounded once ------------------- */
static Tensor rounded_of(Rig *g, Tensor t, bool overwrite) { /* overwrite: NaN */
    Tensor h = arena_tensor(&g->mem, "in bf16", BF16, t.rank, t.n);
    uint16_t *p = h.p;
    for (size_t i = 0; !overwrite && i < tensor_count(t); i++) p[i] = bf16_from((float)R(t)[i]);
    return h;
}
static void same_rounded(const Rig *g, const char *what, int draw, Tensor got, Tensor want) {
    for (size_t i = 0; i < tensor_count(want); i++) {
        uint16_t x = ((const uint16_t *)got.p)[i], y = bf16_from((float)R(want)[i]);
        cr_assert(x == y, "%s, draw %d: %s, number %zu is %g, not %g", g->table, draw, what, i, (double)bf16_to(x),
                  (double)bf16_to(y));
    }
}
static void in_memory(Rig *g, int draw) {
    Dice dice = {rng_mix(0xB16C, (uint64_t)draw), 0};
    Pass *p = pass_draw(&dice, draw, true);
    append_ones(p, &whole_vectors[draw % WHOLE]);
    int N = p->b.N, H = p->spec.heads, Dk = p->s.kdim, Dv = p->s.vdim, K = p->s.lanes;
    Kv kv = pass_kv(g, p, false), half = kv;
    half.k = rounded_of(g, rounded(kv.k), false), half.v = rounded_of(g, rounded(kv.v), false);
    Tensor q = rounded(RANDOM(g, "q", N, H, Dk)), dout = rounded(RANDOM(g, "dout", N, H, Dv)),
           hq = rounded_of(g, q, false), hdout = rounded_of(g, dout, false), o = EMPTY(g, "o", N, H, Dv),
           lse = EMPTY(g, "lse", N, H), ho = rounded_of(g, o, true), hlse = EMPTY(g, "lse", N, H);
    rig_pass(g, p);
    OP(g, attend, o, lse, q, &kv, p->spec, false);
    OP(g, attend, ho, hlse, hq, &half, p->spec, false);
    same_rounded(g, "o", draw, ho, o);
    CHECK_BYTES("lse", hlse.p, lse.p, tensor_bytes(lse));
    rounded(o);
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        Tensor d[3] = {RANDOM(g, "dq", N, H, Dk), RANDOM(g, "dk", N, K, Dk), RANDOM(g, "dv", N, K, Dv)}, h[3],
               dbias = EMPTY(g, "dbias", N, K), hdbias = EMPTY(g, "dbias", N, K);
        memset(dbias.p, 0, tensor_bytes(dbias)), memset(hdbias.p, 0, tensor_bytes(hdbias));
        for (int x = 0; x < 3; x++) {
            if (overwrite) memset(d[x].p, 0, tensor_bytes(d[x]));
            h[x] = rounded_of(g, rounded(d[x]), overwrite);
        }
        Kv dkv = {.s = p->s, .k = d[1], .v = d[2], .bias = dbias},
           hdkv = {.s = p->s, .k = h[1], .v = h[2], .bias = hdbias};
        OP(g, attend_backward, add_to(d[0]), &(KvInto){dkv, false}, dout, q, &kv, p->spec, o, lse);
        OP(g, attend_backward, ((Into){h[0], overwrite}), &((KvInto){hdkv, overwrite}), hdout, hq, &half, p->spec, ho,
           lse);
        same_rounded(g, "dq", draw, h[0], d[0]), same_rounded(g, "dk", draw, h[1], d[1]);
        same_rounded(g, "dv", draw, h[2], d[2]);
        if (p->s.evicts) CHECK_BYTES("dbias", hdbias.p, dbias.p, tensor_bytes(dbias));
    }
    pass_free(p);
}
Test(ops, attend_of_activations_in_bf16) {
    Table tables[TABLES_MAX];
    if (cuda_ops()) return; /* tests/simt/test_cuda_bf16.c */
    for (int k = 0, n = rig_pairs(tables); k < n; k++)
        for (int draw = 0; draw < ROUNDED_DRAWS; draw++) {
            Rig g;
            rig_open(&g, tables[k], 1 + draw % 3, (size_t)64 << 20);
            g.dev->pairs = draw % 2;
            in_memory(&g, draw);
            rig_close(&g);
        }
}
#endif
