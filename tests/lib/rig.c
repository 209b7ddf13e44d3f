#include "rig.h"
#include "ops/amx.h"
#include <sys/mman.h>
#include <unistd.h>

/* ---- cases ----------------------------------------------------------------------------------------------------------
 */
static const struct {
    const char *op;
    const OpCase *is; /* NULL: its file is not in this program, or there is none */
} all_cases[] = {
#define DEF(result, op, ...) {#op, &op_case_##op},
#include "ops/ops.def"
    {"gemm", &op_case_gemm},
    {"adamw_bf16", &op_case_adamw_bf16},
    {"momentum_bf16", &op_case_momentum_bf16},
};
const OpCase *rig_case(const char *op) {
    for (size_t i = 0; i < sizeof all_cases / sizeof *all_cases; i++)
        if (!strcmp(all_cases[i].op, op)) return all_cases[i].is;
    return NULL;
}
double rig_limit(const char *op) {
    const OpCase *c = rig_case(op);
    cr_assert(c, "no case for op %s", op);
    return c->units;
}
static const double unit = sizeof(real) == 4 ? 0x1p-24 : 0x1p-53;

/* ---- op tables ---- */
int rig_tables(Table out[TABLES_MAX]) {
    int n = 0;
    if (cuda_ops()) { /* a runner that has the CUDA backend is there for it; the CPU's tables have their own */
        out[0] = (Table){"cuda", cuda_ops(), NULL};
        return 1;
    }
#if defined(__aarch64__)
    out[n++] = (Table){"neon", &ops_cpu_baseline, NULL};
#else
    out[n++] = (Table){"baseline", &ops_cpu_baseline, NULL};
#endif
#if defined(__x86_64__) && !defined(KV_DOUBLE)
    __builtin_cpu_init();
    #define HAS __builtin_cpu_supports
    bool avx2 = HAS("avx2") && HAS("fma") && HAS("bmi2");
    bool avx512 = HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl") && HAS("avx512cd");
    if (avx2) out[n++] = (Table){"avx2", &ops_cpu_avx2, NULL};
    if (avx2 && avx512) out[n++] = (Table){"avx512", &ops_cpu_avx512, NULL};
    if (avx2 && avx512 && HAS("avx512bf16")) out[n++] = (Table){"avx512bf16", &ops_cpu_avx512bf16, NULL};
#endif
#ifdef __SANITIZE_ADDRESS__ /* all others run without it, and it triples their time: the plainest and the widest vectors */
    if (n > 2) out[1] = out[n - 1], n = 2;
#endif
    return n;
}

#if defined(__x86_64__) && !defined(KV_DOUBLE)
extern PairProduct pair_product_amx_emulated __attribute__((weak)); /* of tests-f32 alone */
#endif
int rig_pairs(Table out[TABLES_MAX]) {
    int n = rig_tables(out);
#if defined(__x86_64__) && !defined(KV_DOUBLE)
    Err e = {0};
    const Ops *ops = out[n - 1].ops;
    if (ops != &ops_cpu_avx512bf16) return n;
    cr_assert(pair_product_amx_emulated, "no emulation of tiles in this program");
    out[n++] = (Table){"avx512bf16, tiles emulated", ops, pair_product_amx_emulated};
    if (amx_there() && amx_permitted(&e)) out[n++] = (Table){"avx512bf16+amx", ops, pair_product_amx};
#endif
    return n;
}

Table rig_first(void) {
    Table t[TABLES_MAX];
    rig_tables(t);
    return t[0];
}
#ifdef __SANITIZE_ADDRESS__
enum { THREADS = 2 };
#else
enum { THREADS = 3 };
#endif
int rig_threads(void) { return cuda_ops() ? 1 : THREADS; }
bool rig_emulated(Device *d) { return !strcmp(device_isa(d), "emulated device"); }
bool rig_invariant(Device *d) { return !d->cuda || rig_emulated(d); }

/* ---- rig ---- */
/* Regions of the host that cases are done with, poisoned as new ones: there are tens of thousands of cases, which would
 * spend a third of their time on new pages. All have room for REGION bytes, of which a case sees what it asks for. */
enum { REGION = 64 << 20, SPARE = 4 };
static Arena spare[SPARE];
static int spares;
static void region_open(Arena *a, const Memory *home, const char *name, size_t size) {
    Err e = {0};
    const bool own = !home && size && size <= REGION;
    if (own && spares)
        *a = spare[--spares];
    else
        cr_assert(arena_open_at(a, home, name, own ? REGION : size, true, &e), "%s", e.msg);
    a->name = name, a->size = size, a->peak = 0;
}
static void region_close(Arena *a) {
    const bool own = a->base && !a->home && a->size && a->size <= REGION;
    if (own) {
        arena_release(a, (Mark){0}); /* which checks all guards */
        a->size = REGION;
        if (spares < SPARE) {
            spare[spares++] = *a;
            *a = (Arena){.name = a->name};
            return;
        }
    }
    arena_close(a);
}
void rig_open(Rig *g, Table t, int threads, size_t mem_bytes) {
    Err e = {0};
    *g = (Rig){.table = t.name};
    static Device *cuda; /* opening is slow: once per process */
    bool on_cuda = t.ops == cuda_ops();
    if (!on_cuda || !cuda) cr_assert(device_open(&g->dev, on_cuda ? "cuda" : "cpu", threads, &e), "%s", e.msg);
    if (on_cuda)
        g->dev = cuda ? cuda : (cuda = g->dev);
    else
        g->dev->isa = t.name;
    g->dev->ops = t.ops, g->dev->pair_product = t.pairs;
    /* Cases write and read tensors where they lie, so that they lie where the host can. */
    region_open(&g->mem, device_memory(g->dev, true), "test", mem_bytes);
    g->run = run_make(g->dev, &g->scratch);
    g->run.batch = &g->batch;
}
void rig_close(Rig *g) {
    region_close(&g->mem);
    if (!g->dev->cuda) device_close(g->dev);
}
void rig_use(Rig *g, Table t, int threads) {
    g->run.ops = g->dev->ops = t.ops;
    g->dev->pair_product = t.pairs;
    g->table = t.name;
    g->dev->threads = threads;
    g->hash = 0;
}
static void reach(Rig *g, int protection) {
    device_sync(g->dev);
    if (g->dev->cuda && !rig_emulated(g->dev)) return; /* pages that the driver moves are not ours to protect */
    if (g->mem.used) cr_assert(mprotect(g->mem.base, g->mem.used, protection) == 0, "mprotect");
}
void rig_measure(Rig *g) {
    g->scratch = (Arena){.name = "scratch"};
    reach(g, PROT_NONE);
}
void rig_place(Rig *g) {
    size_t peak = g->scratch.peak;
    reach(g, PROT_READ | PROT_WRITE);
    cr_assert(g->scratch.used == 0, "%s: measured scratch is not given back: %zu bytes", g->table, g->scratch.used);
    region_open(&g->scratch, device_memory(g->dev, false), "scratch", peak);
}
void rig_done_within(Rig *g) {
    device_sync(g->dev);
    cr_assert(g->scratch.used == 0, "%s: scratch is not given back: %zu bytes", g->table, g->scratch.used);
    cr_assert(g->scratch.peak <= g->scratch.size, "%s: took %zu bytes of scratch, measured %zu", g->table,
              g->scratch.peak, g->scratch.size);
    region_close(&g->scratch);
    arena_guards(&g->mem);
}
void rig_done(Rig *g) {
    cr_assert(g->scratch.peak == g->scratch.size, "%s: took %zu bytes of scratch, measured %zu", g->table,
              g->scratch.peak, g->scratch.size);
    rig_done_within(g);
}
Tensor rig_random(Tensor t, const char *name) {
    uint64_t key = rng_name(0, name);
    const size_t n = tensor_count(t);
    for (int i = 0; i < t.rank; i++) key = rng_mix(key, (uint64_t)t.n[i]);
    for (size_t i = 0; i < n; i++) R(t)[i] = (real)check_normal(key, i);
    return t;
}
Tensor tensor_copy(Rig *g, Tensor t) {
    Tensor c = arena_tensor(&g->mem, "copy", t.dtype, t.rank, t.n);
    memcpy(c.p, t.p, tensor_bytes(t));
    return c;
}
void rig_result(Rig *g, Tensor t) {
    const char *p = t.p;
    uint64_t h = g->hash ^ 0xcbf29ce484222325u;
    for (size_t n = tensor_bytes(t), step; n; p += step, n -= step) {
        uint64_t word = 0;
        step = zmin(n, sizeof word);
        memcpy(&word, p, step);
        h = rng_mix(h, word);
    }
    g->hash = h;
}

/* ---- references ---- */
Ref *refs(size_t n) { return xcalloc(n, sizeof(Ref)); }
Ref *refs_of(Tensor t) {
    Ref *r = refs(tensor_count(t));
    for (size_t i = 0, n = tensor_count(t); i < n; i++) ref_term(&r[i], R(t)[i]);
    return r;
}
static double worst_of(Tensor got, const Ref *want, size_t *at) {
    double worst = -1;
    for (size_t i = 0, n = tensor_count(got); i < n; i++) {
        wide size = wide_sqrt(want[i].square * (wide)imax(1, want[i].terms)),
             d = wide_fabs((wide)R(got)[i] - want[i].want);
        double e = (wide)R(got)[i] == want[i].want ? 0 : (double)(d / (size * unit));
        if (!(e <= worst) && !isnan(worst)) worst = e, *at = i;
    }
    return worst;
}
double rig_error(Tensor got, const Ref *want) {
    size_t at;
    return worst_of(got, want, &at);
}
bool rig_close_to(char msg[512], const char *op, const char *what, Tensor got, const Ref *want) {
    size_t at = 0;
    if (tensor_count(got) == 0) return true; /* a pass of no rows */
    double worst = worst_of(got, want, &at), limit = rig_limit(op);
    char shape[64];
    snprintf(msg, 512, "%s: %s %s: worst error %.3g units at %zu: got %.17g, want %.17g; bound %g", op, what,
             tensor_shape(got, shape), worst, at, (double)R(got)[at], (double)want[at].want, limit);
    const char *v = getenv("CHECK_VERBOSE");
    if (v && *v == '1') fprintf(stderr, "%s\n", msg);
    char field[128];
    snprintf(field, sizeof field, "%.40s: %.40s, units of rounding", op, what);
    check_log(field, worst, limit, at, tensor_count(got));
    return worst <= limit;
}

/* ---- attention of one query ---- */
wide rig_score(const real *a, const real *b, int n, wide scale, wide *squares) {
    wide s = 0;
    *squares = 0;
    for (int k = 0; k < n; k++) {
        wide t = scale * a[k] * b[k];
        s += t, *squares += t * t;
    }
    return s;
}
wide rig_cap(wide s, wide cap, wide *slope) {
    wide x = cap > 0 ? wide_tanh(s / cap) : 0;
    *slope = 1 - x * x;
    return cap > 0 ? cap * x : s;
}
Seen seen_make(int most, int Dk, int Dv) {
    size_t n = (size_t)most + 1;
    return (Seen){.Dk = Dk,
                  .Dv = Dv,
                  .s = xcalloc(n, sizeof(wide)),
                  .e = xcalloc(n, sizeof(wide)),
                  .v = xcalloc(n, sizeof(real *)),
                  .part = -INFINITY};
}
void seen_free(Seen *x) { free(x->s), free(x->e), free(x->v); }
void seen_add(Seen *x, const real *q, const real *k, const real *v, wide scale) {
    wide slope, s = rig_cap(rig_score(q, k, x->Dk, scale, &x->e[x->n]), x->cap, &slope);
    x->s[x->n] = s;
    x->e[x->n] = x->e[x->n] * slope * slope + (x->cap > 0 ? 16 * s * s : 0);
    x->v[x->n++] = v;
}
void seen_ref(const Seen *x, Ref *o, Ref *lse) {
    wide top = x->part, sum = 0, err = 0;
    for (int j = 0; j < x->n; j++) top = x->s[j] > top ? x->s[j] : top;
    wide own = x->part == -INFINITY ? 0 : wide_exp(x->part - top);
    for (int j = 0; j < x->n; j++) sum += wide_exp(x->s[j] - top);
    sum += own;
    for (int k = 0; k < x->Dv; k++) o[k] = (Ref){.terms = x->n + 1};
    *lse = (Ref){-INFINITY, 0, x->Dk};
    if (top == -INFINITY) return;
    for (int j = 0; j <= x->n; j++) {
        bool partial = j == x->n;
        wide w = (partial ? own : wide_exp(x->s[j] - top)) / sum, e = partial ? x->part * x->part : x->e[j];
        if (w == 0) continue;
        err += w * e;
        for (int k = 0; k < x->Dv; k++) {
            wide t = w * (partial ? x->o0 : x->v[j])[k];
            o[k].want += t, o[k].square += t * t * (1 + e);
        }
    }
    for (int k = 0; k < x->Dv; k++) o[k].square += o[k].want * o[k].want;
    lse->want = wide_log(sum) + top;
    lse->square = lse->want * lse->want + 1 + err;
}

/* ---- sizes ---- */
void rig_sweep(const char *op, Case *f, unsigned flags) {
    static const int rows[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 150}, widths[] = {1, 3, 8, 15, 16, 17, 64, 100};
    Table tables[TABLES_MAX];
    int ntables = rig_tables(tables);
    for (int k = 0; k < ntables; k++)
        for (int size = 0; size < 82; size++) {
            bool large = size >= 80;
            int N = large ? 150 : rows[size / 8], d = large ? 300 + 41 * (size - 80) : widths[size % 8];
            uint64_t alone = 0;
            bool device = cuda_ops() != NULL;
            /* Some pairs of rows and widths for each table, every one of both in some pair; an emulation is slow. */
            if (!large && (size / 8 + size % 8 + k) % (device ? 4 : k ? 3 : 2)) continue;
            for (int threads = 1; threads <= (large ? rig_threads() : 1); threads++) {
                Rig g;
                rig_open(&g, tables[k], threads, (size_t)(large ? 8 : 2) << 20);
                int *of = xcalloc((size_t)N + 1, sizeof *of), *at = xcalloc((size_t)N + 1, sizeof *at);
                for (int m = 0; m < N; m++) at[m] = m;
                g.batch = (Batch){.B = 1, .N = N, .off = (int[]){0, N}, .of = of, .pos = at, .id = (uint64_t[]){5}};
                g.run.in = g.run.out = (RowList){N, at};
                f(&g, N, d);
                if (threads == 1) alone = g.hash;
                cr_assert(!(flags & EXACT) || g.hash == alone,
                          "%s %s: %d threads give another result for %d rows of %d", g.table, op, threads, N, d);
                rig_close(&g);
                free(of), free(at);
            }
        }
}
