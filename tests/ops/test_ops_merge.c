/* Running means over runs of rows and their backward, against sums over pairs and triples of rows. Passes are drawn:
 * ragged sequences, documents that begin and continue, windows, rows carried from before the pass. Each bound is also
 * held against references with one mistake planted in them. */
#include "tests/lib/rig.h"

enum { SEQS = 4, DRAWS = 40 };
typedef struct {
    Batch b;
    int off[SEQS + 1], seq[SEQS], *of, *pos, *first;
    uint64_t id[SEQS];
    int lanes, D, window, rows; /* rows carried; 0: none */
    Tensor x, a, w, past;
} Pass;

static void draw_pass(Pass *p, Rig *g, Dice *dice, int draw, bool history) {
    static const int length[] = {1, 9, 30, 0, 5}, window[] = {0, 1, 2, 5, 12};
    *p = (Pass){.lanes = 1 + roll(dice, 3), .D = 1 + roll(dice, 20), .window = window[draw % 5]};
    int N = 0, kind = roll(dice, 3);
    for (int s = 0; s < SEQS; s++) p->seq[s] = SEQS - 1 - s, p->off[s + 1] = N += draw == 0 ? 0 : length[roll(dice, 5)];
    p->of = xcalloc((size_t)N + 1, sizeof(int)), p->pos = xcalloc((size_t)N + 1, sizeof(int));
    p->first = xcalloc((size_t)N + 1, sizeof(int));
    for (int s = 0; s < SEQS; s++)
        for (int i = p->off[s]; i < p->off[s + 1]; i++) {
            bool opens = i == p->off[s], start = opens ? !history || roll(dice, 3) == 0 : kind && roll(dice, 6) == 0;
            p->of[i] = s;
            p->first[i] = start ? i : opens ? -1 : p->first[i - 1];
            p->pos[i] = start ? 0 : opens ? 1 + roll(dice, 20) : p->pos[i - 1] + 1;
        }
    p->b = (Batch){.B = SEQS,
                   .N = N,
                   .off = p->off,
                   .seq = p->seq,
                   .of = p->of,
                   .pos = p->pos,
                   .first = p->first,
                   .id = p->id,
                   .history = history};
    p->x = RANDOM(g, "x", N, p->lanes, p->D), p->a = RANDOM(g, "a", N, p->lanes), p->w = RANDOM(g, "w", N, p->lanes);
    p->rows = history ? p->window ? p->window - 1 : 1 : 0;
    if (p->rows) p->past = RANDOM(g, "past", SEQS, p->lanes, p->rows, p->D + 5);
    /* chances of every size, some certain; weights away from 0 */
    for (size_t i = 0; i < tensor_count(p->a); i++) {
        R(p->a)[i] = roll(dice, 4) == 0 ? 0 : roll(dice, 3) == 0 ? 1 : (real)(roll(dice, 1000) / 1000.0);
        R(p->w)[i] = (real)(0.1 + roll(dice, 1000) / 900.0);
    }
    for (int i = 0; i < SEQS * p->lanes * p->rows; i++) {
        real *end = R(p->past) + (i + 1) * (p->D + 5);
        end[-2] = (real)(0.1 + roll(dice, 1000) / 900.0);
        end[-1] = p->window ? (real)(roll(dice, 5) / 4.0) : 0;
    }
    g->run.batch = &p->b;
}
static void free_pass(Pass *p) { free(p->of), free(p->pos), free(p->first); }

typedef enum { RIGHT, WIDER_WINDOW, SHIFTED, IGNORES_DOCUMENTS, NO_PAST, FAULTS } Fault;
static const char *const fault_name[FAULTS] = {"", "a window of one more", "the decision of the row before",
                                               "ignored documents", "a forgotten past"};

/* The i-th row before row t in its lane, newest (t itself) first: its x, w and a. False: there is none. */
typedef struct {
    const real *x;
    wide w, a;
} Before;
static bool before(const Pass *p, int t, int h, int i, Fault f, Before *out) {
    int s = p->of[t], j = t - i, from = f == IGNORES_DOCUMENTS ? p->off[s] : imax(p->first[t], p->off[s]);
    if (p->window && i >= p->window + (f == WIDER_WINDOW)) return false;
    if (j >= from) {
        int decides = f == SHIFTED && j > from ? j - 1 : j;
        bool begins = p->first[j] == j && f != IGNORES_DOCUMENTS;
        *out = (Before){R(p->x) + (j * p->lanes + h) * p->D, R(p->w)[j * p->lanes + h],
                        begins ? 0 : R(p->a)[decides * p->lanes + h]};
        return true;
    }
    int back = from - j; /* 1: the newest before the pass */
    if (!p->rows || f == NO_PAST || p->first[t] >= 0 || back > p->rows || back > p->pos[from]) return false;
    const real *row = R(p->past) + ((p->seq[s] * p->lanes + h) * p->rows + p->rows - back) * (p->D + 5);
    *out = (Before){row + 3, row[p->D + 3], row[p->D + 4]};
    return true;
}

typedef struct {
    Ref *y, *z;
    bool differs;
} Forward;
static Forward forward_ref(const Pass *p, Fault f) {
    int N = p->b.N, K = p->lanes, D = p->D;
    Forward r = {refs((size_t)(N * K * D)), refs((size_t)(N * K)), false};
    for (int t = 0; t < N; t++)
        for (int h = 0; h < K; h++) {
            Ref *z = &r.z[t * K + h];
            wide prod = 1, usual = 1;
            Before o, u;
            for (int i = 0;; prod *= o.a, i++) {
                bool is = before(p, t, h, i, f, &o), should = before(p, t, h, i, RIGHT, &u);
                r.differs |= (is ? prod : 0) != (should ? usual : 0);
                usual = should ? usual * u.a : 0;
                if (!is) break;
                ref_term(z, prod * o.w);
                for (int k = 0; k < D; k++) ref_term(&r.y[(t * K + h) * D + k], prod * o.w * o.x[k]);
            }
            for (int k = 0; k < D; k++) {
                Ref *y = &r.y[(t * K + h) * D + k];
                y->want /= z->want;
                y->square = y->square / (z->want * z->want) + y->want * y->want;
            }
        }
    return r;
}
static void forward(Rig *g, int draw, int noticed[FAULTS]) {
    Dice dice = {rng_mix(0x3E6E, (uint64_t)draw), 0};
    Pass p;
    Table tables[TABLES_MAX];
    draw_pass(&p, g, &dice, draw, draw % 2);
    Forward want = forward_ref(&p, RIGHT);
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        uint64_t alone = 0;
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Mark mark = arena_mark(&g->mem);
            Tensor y = EMPTY(g, "y", p.b.N, p.lanes, p.D), z = EMPTY(g, "z", p.b.N, p.lanes);
            rig_use(g, tables[k], threads);
            OP(g, merge, y, z, p.x, p.a, p.w, p.window, p.past, 3);
            CHECK_REF(g, "merge", "y", y, want.y);
            CHECK_REF(g, "merge", "z", z, want.z);
            if (threads == 1) alone = g->hash;
            cr_assert(g->hash == alone, "%s: %d threads give another result", g->table, threads);
            for (int i = 0; i < p.b.N * p.lanes; i++) { /* a row alone is itself */
                bool begins = p.first[i / p.lanes] == i / p.lanes || R(p.a)[i] == 0;
                if (begins) CHECK_BYTES("a row alone", R(y) + i * p.D, R(p.x) + i * p.D, (size_t)p.D * sizeof(real));
            }
            for (Fault f = WIDER_WINDOW; k == 0 && threads == 1 && f < FAULTS; f++) {
                Forward wrong = forward_ref(&p, f);
                if (wrong.differs) {
                    noticed[f]++;
                    CHECK_MISSED("merge", fault_name[f], y, wrong.y);
                    CHECK_MISSED("merge", fault_name[f], z, wrong.z);
                }
                free(wrong.y), free(wrong.z);
            }
            arena_release(&g->mem, mark);
        }
    }
    free(want.y), free(want.z);
    free_pass(&p);
}
void case_merge(Rig *g, int draw, int d) { forward(g, draw, (int[FAULTS]){d}); }
OP_CASE(merge, case_merge, 12);
static void draws(void (*f)(Rig *, int, int *), int least, Fault last) {
    int noticed[FAULTS] = {0};
    for (int draw = 0; draw < DRAWS; draw++) {
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)4 << 20);
        f(&g, draw, noticed);
        rig_close(&g);
    }
    for (Fault i = WIDER_WINDOW; i <= last; i++)
        cr_assert(noticed[i] >= least, "%s was tried %d times", fault_name[i], noticed[i]);
}
Test(ops, merge) { draws(forward, 5, NO_PAST); }

/* ---- backward -----------------------------------------------------------------------------------------------------
 */
typedef struct {
    Ref *dx, *da, *dw;
    bool differs;
} Grad;
static wide dot_of(const real *a, const real *b, int n) {
    wide square;
    return rig_score(a, b, n, 1, &square);
}
/* From the definition: every product is multiplied out. y and z are those given. */
static Grad backward_ref(const Pass *p, Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor y, Tensor z, Fault f) {
    int K = p->lanes, D = p->D;
    Grad r = {refs_of(dx), refs_of(da), refs_of(dw), false};
    for (int t = 0; t < p->b.N; t++)
        for (int h = 0; h < K; h++) {
            const real *g = R(dy) + (t * K + h) * D, *mean = R(y) + (t * K + h) * D;
            Before o, m, u;
            for (int i = 0; before(p, t, h, i, f, &o); i++) {
                int j = t - i;
                wide prod = 1, zt = R(z)[t * K + h], scale = 0;
                for (int k = 0; k < D; k++)
                    scale += wide_fabs((wide)g[k]) * (wide_fabs((wide)o.x[k]) + wide_fabs((wide)mean[k]));
                wide e = (dot_of(o.x, g, D) - dot_of(mean, g, D)) / zt;
                scale /= zt;
                for (int n = 0; n < i; n++) before(p, t, h, n, f, &m), prod *= m.a;
                for (int k = 0; k < D; k++) ref_term(&r.dx[(j * K + h) * D + k], prod * o.w / zt * g[k]);
                ref_term(&r.dw[j * K + h], prod * e);
                r.dw[j * K + h].square += prod * prod * scale * scale;
                for (int skip = 0; skip < i; skip++) {
                    wide others = 1, right = before(p, t, h, i, RIGHT, &u);
                    for (int n = 0; n < i; n++) {
                        before(p, t, h, n, f, &m), others *= n == skip ? 1 : m.a;
                        right *= before(p, t, h, n, RIGHT, &u) && n != skip ? u.a : 1;
                    }
                    r.differs |= right != others;
                    ref_term(&r.da[(t - skip) * K + h], others * o.w * e);
                    r.da[(t - skip) * K + h].square += others * others * o.w * o.w * scale * scale;
                }
            }
        }
    return r;
}
static void grad_free(Grad r) { free(r.dx), free(r.da), free(r.dw); }
static void backward(Rig *g, int draw, int noticed[FAULTS]) {
    Dice dice = {rng_mix(0x3E6B, (uint64_t)draw), 0};
    Pass p;
    Table tables[TABLES_MAX];
    draw_pass(&p, g, &dice, draw, false);
    int N = p.b.N, K = p.lanes, D = p.D;
    Tensor dy = RANDOM(g, "dy", N, K, D), y = EMPTY(g, "y", N, K, D), z = EMPTY(g, "z", N, K);
    Tensor dx0 = RANDOM(g, "dx", N, K, D), da0 = RANDOM(g, "da", N, K), dw0 = RANDOM(g, "dw", N, K);
    Forward seen = forward_ref(&p, RIGHT);
    for (size_t i = 0; i < tensor_count(y); i++) R(y)[i] = (real)seen.y[i].want;
    for (size_t i = 0; i < tensor_count(z); i++) R(z)[i] = (real)seen.z[i].want;
    Grad want = backward_ref(&p, dx0, da0, dw0, dy, y, z, RIGHT);
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        uint64_t alone = 0;
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Mark mark = arena_mark(&g->mem);
            Tensor dx = tensor_copy(g, dx0), da = tensor_copy(g, da0), dw = tensor_copy(g, dw0);
            rig_use(g, tables[k], threads);
            rig_measure(g);
            g->run.ops->merge_backward(&g->run, dx, da, dw, dy, p.x, y, z, p.a, p.w, p.window);
            rig_place(g);
            g->run.ops->merge_backward(&g->run, dx, da, dw, dy, p.x, y, z, p.a, p.w, p.window);
            rig_done(g);
            CHECK_REF(g, "merge_backward", "dx", dx, want.dx);
            CHECK_REF(g, "merge_backward", "da", da, want.da);
            CHECK_REF(g, "merge_backward", "dw", dw, want.dw);
            if (threads == 1) alone = g->hash;
            cr_assert(g->hash == alone, "%s: %d threads give another result", g->table, threads);
            for (Fault f = WIDER_WINDOW; k == 0 && threads == 1 && f < NO_PAST; f++) {
                Grad wrong = backward_ref(&p, dx0, da0, dw0, dy, y, z, f);
                if (wrong.differs && D > 1) {
                    noticed[f]++;
                    CHECK_MISSED("merge_backward", fault_name[f], da, wrong.da);
                }
                grad_free(wrong);
            }
            arena_release(&g->mem, mark);
        }
    }
    grad_free(want);
    free(seen.y), free(seen.z);
    free_pass(&p);
}
void case_merge_backward(Rig *g, int draw, int d) { backward(g, draw, (int[FAULTS]){d}); }
OP_CASE(merge_backward, case_merge_backward, 24);
Test(ops, merge_backward) { draws(backward, 5, IGNORES_DOCUMENTS); }
