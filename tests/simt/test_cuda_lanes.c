/* test_cuda_lanes.c: attention over long cached histories on the device, gone through in pieces by several blocks,
 * beside the CPU's over the same cache; what a sequence gets is its own, whoever stands beside it. */
#include "tests/lib/check.h"
#include "layers/cache/cache.h"
#include "layers/cache/codec.h"
#include "ops/cuda/cuda.h"
#include "ops/host.h"

enum { SEQS = 4, ROOM = 720, ROWS = 24 };
typedef struct {
    Device *dev;
    Arena mem, scratch;
    Cache cache;
    Run run;
} Side;
typedef struct {
    KvShape s; /* rows in bf16: products with operands in bf16, too */
    AttnSpec spec;
    bool merge;
} Form;
/* Rows of history, then wanted rows of the pass: long ones of one, of few and of too many rows; a short one; and in a
 * second pass one that begins a document beside its history. */
static const int history[SEQS] = {ROOM, 130, 400, 5}, rows_of[SEQS] = {1, 3, 9, 2};

static void side_open(Side *s, const char *device, const Form *f) {
    Err e = {0};
    *s = (Side){0};
    cr_assert(device_open(&s->dev, device, 1, &e), "%s", e.msg);
    if (!strcmp(device, "cuda")) cr_assert(device_bf16(s->dev, rows_as(&f->s) == ROWS_BF16, &e), "%s", e.msg);
    cr_assert(kv_open_at(&s->cache, s->dev, &f->s, 1, SEQS, ROOM + ROWS, ROOM, 0, true, false, &e), "%s", e.msg);
    cr_assert(arena_open_at(&s->mem, device_memory(s->dev, true), "tensors", (size_t)16 << 20, true, &e), "%s", e.msg);
    s->run = run_make(s->dev, &s->scratch);
}
static void side_close(Side *s) {
    arena_close(&s->mem);
    kv_close(&s->cache);
    device_close(s->dev);
}
static Tensor drawn(Side *s, const char *name, int rank, const int n[]) {
    Tensor t = arena_tensor(&s->mem, name, REAL, rank, n);
    uint64_t key = rng_name(5, name);
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)rng_normal(key, i);
    return t;
}
/* Which rows are evicted the one before them: none that begins a history. */
static Tensor retiring(Side *s, const Form *f, int q, int n) {
    Tensor t = ABSENT;
    if (!f->s.evicts) return t;
    t = arena_tensor(&s->mem, "evicted", REAL, 2, (int[]){n, f->s.lanes});
    for (int i = 0; i < n * f->s.lanes; i++)
        R(t)[i] = i >= f->s.lanes && rng_mix(rng_mix(17, (uint64_t)q), (uint64_t)i) % 3 == 0;
    return t;
}
/* Measured and done; `host` is what the host itself takes. */
static void with_scratch(Side *s, void (*act)(Side *, void *), void *x) {
    Err e = {0};
    Arena host = {.name = "host"};
    s->scratch = (Arena){.name = "scratch"};
    if (device_apart(s->dev)) s->run.host = &host;
    act(s, x);
    cr_assert(arena_open_at(&s->scratch, device_memory(s->dev, false), "scratch", s->scratch.peak, true, &e) &&
                  arena_open(&host, "host", host.peak, true, &e),
              "%s", e.msg);
    act(s, x);
    device_sync(s->dev);
    arena_close(&s->scratch);
    arena_close(&host);
}
static void see_append(Side *s, void *kv) { kv_append(&s->run, kv_slot(&s->cache, 0), kv, NULL); }
static void fill(Side *s, const Form *f) {
    static int pos[ROOM], of[ROOM], first[ROOM];
    Err e = {0};
    for (int q = 0; q < SEQS; q++) {
        int n = history[q], off[] = {0, n};
        for (int i = 0; i < n; i++) pos[i] = i, of[i] = 0, first[i] = 0;
        Batch b = {.B = 1, .N = n, .off = off, .seq = &q, .of = of, .pos = pos, .first = first};
        Mark mark = arena_mark(&s->mem);
        char name[16];
        snprintf(name, sizeof name, "keys %d", q);
        Kv kv = {.s = f->s, .k = drawn(s, name, 3, (int[]){n, f->s.lanes, f->s.kdim}), .evicted = retiring(s, f, q, n)};
        name[0] = 'v';
        if (!f->s.alias) kv.v = drawn(s, name, 3, (int[]){n, f->s.lanes, f->s.vdim});
        s->run.batch = &b;
        cr_assert(kv_begin(&s->cache, &b, &e), "%s", e.msg);
        with_scratch(s, see_append, &kv);
        kv_end(&s->cache, &b, NULL);
        arena_release(&s->mem, mark);
    }
}
typedef struct {
    const Form *f;
    Kv kv;
    Tensor o, lse, q;
} Act;
static void see_attend(Side *s, void *x) {
    Act *a = x;
    kv_attend(&s->run, kv_slot(&s->cache, 0), &a->kv, a->o, a->lse, a->q, a->f->spec, a->f->merge);
}
/* The sequences from..to-1: (rows, heads, vdim) into o, with lse behind them. Returns how many rows. */
static int attend(Side *s, const Form *f, int from, int to, bool begins, float *out) {
    int off[SEQS + 1] = {0}, seq[SEQS], of[ROWS], pos[ROWS], first[ROWS], idx[ROWS], N = 0, skip = 0;
    for (int q = 0; q < from; q++) skip += rows_of[q];
    for (int q = from; q < to; q++) {
        seq[q - from] = q;
        for (int i = 0; i < rows_of[q]; i++, N++) {
            bool fresh = begins && q == 1 && i > 0;
            of[N] = q - from, idx[N] = N;
            first[N] = fresh ? off[q - from] + 1 : -1;
            pos[N] = fresh ? i - 1 : history[q] + i;
        }
        off[q - from + 1] = N;
    }
    Batch b = {.B = to - from, .N = N, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .history = true};
    int H = f->spec.heads, Dk = f->s.kdim, Dv = f->s.vdim;
    Mark mark = arena_mark(&s->mem);
    Tensor q = drawn(s, "q", 3, (int[]){ROWS, H, Dk}), o = drawn(s, "o before", 3, (int[]){ROWS, H, Dv}),
           lse = drawn(s, "lse before", 2, (int[]){ROWS, H});
    if (rows_as(&f->s) == ROWS_BF16) check_as_bf16(q);
    Tensor evicted = retiring(s, f, 9, ROWS);
    Act a = {f,
             {.s = f->s, .evicted = f->s.evicts ? tensor_part(evicted, skip, N) : ABSENT},
             tensor_part(o, skip, N),
             tensor_part(lse, skip, N),
             tensor_part(q, skip, N)};
    Err e = {0};
    s->run.batch = &b;
    s->run.in = s->run.out = (RowList){N, idx};
    cr_assert(kv_begin(&s->cache, &b, &e), "%s", e.msg);
    with_scratch(s, see_attend, &a);
    memcpy(out, a.o.p, tensor_bytes(a.o));
    memcpy(out + tensor_count(a.o), a.lse.p, tensor_bytes(a.lse));
    arena_release(&s->mem, mark);
    return N;
}
static void check_form(const Form *f) {
    static float want[1 << 17], got[1 << 17], alone[1 << 17];
    Side cpu, cuda;
    side_open(&cpu, "cpu", f), side_open(&cuda, "cuda", f);
    fill(&cpu, f), fill(&cuda, f);
    const size_t H = (size_t)f->spec.heads, row = H * (size_t)f->s.vdim;
    for (int begins = 0; begins < 2; begins++) {
        size_t n = (size_t)attend(&cpu, f, 0, SEQS, begins, want), at = 0;
        attend(&cuda, f, 0, SEQS, begins, got);
        cr_assert(n * (row + H) < sizeof want / sizeof *want);
        for (size_t i = 0; i < n * H; i++) /* rows that see nothing have no lse on either side */
            if (want[n * row + i] == -INFINITY && got[n * row + i] == -INFINITY)
                want[n * row + i] = got[n * row + i] = 0;
        CHECK_RMS("o", got, want, n * row, rows_as(&f->s) == ROWS_BF16 ? 2e-3 : 1e-5); /* probabilities of 8 bits */
        CHECK_RMS("lse", got + n * row, want + n * row, n * H, 1e-5);
        for (int q = 0; q < SEQS; q++) { /* alone: the same bits */
            size_t m = (size_t)attend(&cuda, f, q, q + 1, begins, alone);
            CHECK_BYTES("o of a sequence alone", alone, got + at * row, m * row * sizeof *got);
            at += m;
        }
    }
    side_close(&cpu), side_close(&cuda);
}
Test(cuda_lanes, pieces_have_what_the_whole_has, .timeout = 300) {
    const Form forms[] = {
        {{.lanes = 2, .kdim = 12, .vdim = 20}, {4, 0, 0, (real)0.3, 0}, true},
        {{.lanes = 1, .kdim = 16, .vdim = 70}, {3, 0, 0, (real)0.2, 0}, false},
        {{.lanes = 1, .kdim = 40, .vdim = 140, .alias = false}, {2, 0, 0, (real)0.2, 0}, true}, /* two slices */
        {{.lanes = 1, .kdim = 24, .vdim = 16, .alias = true},
         {33, 0, 0, (real)0.2, 0},
         true}, /* two tiles of entries */
        {{.lanes = 2, .kdim = 8, .vdim = 8, .window = 300, .sinks = 70}, {2, 290, 65, (real)0.4, 0}, true},
        {{.lanes = 1, .kdim = 8, .vdim = 8}, {2, 150, 0, (real)0.4, 0}, false}, /* most pieces see nothing */
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) check_form(&forms[i]);
}
/* Rows in bf16 on the matrix units: widths of every kernel, few and many entries, pieces, rows that are evicted. */
Test(cuda_lanes, matrix_units_have_what_the_whole_has, .timeout = 600) {
    const Form forms[] = {
        {{.lanes = 2, .kdim = 16, .vdim = 24, .codec = &codec_bf16}, {4, 0, 0, (real)0.3, 0}, true},
        {{.lanes = 1, .kdim = 64, .vdim = 64, .codec = &codec_bf16}, {3, 0, 0, (real)0.2, 0}, false},
        {{.lanes = 1, .kdim = 72, .vdim = 128, .codec = &codec_bf16}, {7, 0, 0, (real)0.2, 0}, true},
        {{.lanes = 1, .kdim = 128, .vdim = 128, .codec = &codec_bf16}, {2, 0, 0, (real)0.1, 0}, true},
        {{.lanes = 1, .kdim = 136, .vdim = 256, .codec = &codec_bf16}, {2, 0, 0, (real)0.1, 0}, true},
        {{.lanes = 1, .kdim = 256, .vdim = 136, .codec = &codec_bf16, .window = 150},
         {3, 150, 0, (real)0.05, 0},
         false},
        {{.lanes = 1, .kdim = 40, .vdim = 24, .codec = &codec_bf16, .alias = true}, {33, 0, 0, (real)0.2, 0}, true},
        {{.lanes = 2, .kdim = 96, .vdim = 70, .codec = &codec_bf16, .alias = true}, {6, 0, 0, (real)0.1, 0}, true},
        {{.lanes = 1, .kdim = 136, .vdim = 128, .codec = &codec_bf16, .alias = true}, {5, 0, 0, (real)0.1, 0}, false},
        {{.lanes = 1, .kdim = 576, .vdim = 512, .codec = &codec_bf16, .alias = true}, {9, 0, 0, (real)0.05, 0}, true},
        {{.lanes = 2, .kdim = 8, .vdim = 8, .codec = &codec_bf16, .window = 300, .sinks = 70},
         {2, 290, 65, (real)0.4, 0},
         true},
        {{.lanes = 1, .kdim = 8, .vdim = 8, .codec = &codec_bf16}, {2, 150, 0, (real)0.4, 0}, false},
        {{.lanes = 2, .kdim = 32, .vdim = 32, .codec = &codec_bf16, .evicts = true, .delay = 3},
         {6, 0, 0, (real)0.2, 0},
         true},
        {{.lanes = 1, .kdim = 12, .vdim = 20, .codec = &codec_bf16},
         {2, 0, 0, (real)0.3, 0},
         true}, /* on the plain units */
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) check_form(&forms[i]);
}
/* Few enough for a warp, whole tiles, and all rows in one. */
Test(cuda_lanes, lengths_have_their_pieces) {
    int most = 1;
    for (int n = 1; n < 300000; n += n < 20000 ? 1 : 777) {
        int pieces = cuda_lane_pieces(n);
        cr_assert(pieces >= 1 && pieces <= CUDA_PIECES && pieces <= cuda_lane_pieces_most(n), "%d rows: %d", n, pieces);
        cr_assert(n > 128 || pieces == 1, "%d rows: %d", n, pieces);
        cr_assert(n <= 4096 || pieces > CUDA_PIECES / 2, "%d rows: %d", n, pieces);
        most = imax(most, pieces);
    }
    cr_assert(most == CUDA_PIECES && cuda_lane_pieces(0) == 1 && cuda_lane_pieces_most(0) == 1);
}
