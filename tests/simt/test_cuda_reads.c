/* test_cuda_reads.c: policies that select what a step reads, on a device and on the CPU: the same pages for every
 * query, lane and layer, the same bytes read, the same logits; what a step waits for and what comes to the host. */
#include "infer/sampler.h"
#include "infer/session.h"
#include "layers/cache/codec.h"
#include "layers/cache/saved.h"
#include "ops/cuda/cuda.h"
#include "ops/graph.h"
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"

enum { SEQS = 4, CHUNK = 16, STEPS = 44, TOKENS = 96, FORK = 12, TURN = 20, TURN_ROWS = 5, REWIND = 28, BACK = 6 };
#define FORM(kinds, layers)                                                                                            \
    "{\"d_model\":32,\"vocab\":40,\"max_positions\":128,\"init_std\":0.3,\"layers\":3,\"tied\":true,\"kinds\":{" kinds \
    "}," layers ",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":24}]}"
#define GQA(name, more) "\"" name "\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":8" more "}"
static const Animal
    gqa = {"gqa", FORM(GQA("a", ""), "\"pattern\":[\"a\"]")},
    windows = {"a window between", FORM(GQA("a", "") "," GQA("w", ",\"window\":6"), "\"pattern\":[\"a\",\"w\",\"a\"]")},
    nope = {"nope", FORM(GQA("a", ",\"rope\":\"none\""), "\"pattern\":[\"a\"]")},
    readers = {"readers of one slot", FORM(GQA("a", ""), "\"pattern\":[\"a\"],\"kv_from\":{\"1\":0,\"2\":0}")},
    mla = {"mla", FORM("\"a\":{\"mixer\":\"mla\",\"heads\":4,\"kv_rank\":12,\"nope_dim\":8,\"rope_dim\":4,\"v_dim\":8}",
                       "\"pattern\":[\"a\"]")};

/* What attention reads: of a query and a lane so many rows, and a sum over their positions; lane -1: all rows. */
typedef struct {
    int slot, row, lane, n;
    uint64_t sum;
} Reads;
typedef struct {
    Reads *at;
    int n, cap, left; /* left: rows that were left out */
} Log;
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
    PolicyCfg policy;
    Log log;
    real *logits;
    size_t *bytes;         /* read by each call */
    int rows, calls, turn; /* of logits, of `bytes`; tokens of the call TURN */
} Side;
static const Policy *planted; /* in place of the policy that selects */

/* The caches whose reads are noted, and where. */
static Cache *watched;
static Log *to;
static void (*attends)(Run *, Tensor, Tensor, Tensor, const Lanes *, const Kv *, AttnSpec, bool);
static void note(Reads x) {
    if (to->n == to->cap) to->at = xrealloc(to->at, (size_t)(to->cap = 2 * to->cap + 64), sizeof *to->at);
    to->at[to->n++] = x;
}
static int *ints_of(Device *dev, const int *p, int n) {
    int *out = xcalloc((size_t)n, sizeof *out);
    device_read(dev, out, p, (size_t)n * sizeof *out);
    return out;
}
static void note_tables(const Run *r, int slot, const Lanes *t) {
    const int lanes = r->batch->B * t->s.lanes;
    const Lanes *own = kv_lanes(kv_slot(watched, slot));
    int *lo = ints_of(r->dev, t->lo, lanes), *hi = ints_of(r->dev, t->hi, lanes),
        *table = ints_of(r->dev, t->table, lanes * t->maxpages);
    for (int i = 0; i < lanes; i++) {
        Reads x = {slot, i / t->s.lanes, i % t->s.lanes, hi[i] - lo[i], 0};
        for (int row = lo[i]; row < hi[i]; row++) {
            const int page = table[i * t->maxpages + row / t->P % t->maxpages];
            cr_assert(page >= 0 && page < own->npages, "page %d", page);
            x.sum += rng_mix(3, (uint64_t)own->pos[page * t->P + row % t->P]);
        }
        to->left += x.n ? r->batch->pos[x.row] - x.n : 0;
        note(x);
    }
    free(lo), free(hi), free(table);
}
static void attend_noted(Run *r, Tensor o, Tensor lse, Tensor q, const Lanes *t, const Kv *pass, AttnSpec spec,
                         bool merge) {
    for (int i = 0; i < watched->nslots && !measuring(r); i++) {
        const Slot *s = kv_slot(watched, i);
        if (!kv_lanes(s)->s.lanes || kv_lanes(s)->data.p != t->data.p) continue;
        if (t == kv_lanes_there(s))
            note((Reads){.slot = i, .row = r->out.n, .lane = -1});
        else
            note_tables(r, i, t);
    }
    attends(r, o, lse, q, t, pass, spec, merge);
}
/* From now on reads of this cache are noted there. */
static void noting(Device *dev, Cache *c, Log *log) {
    if (dev->ops->attend_lanes != attend_noted) attends = dev->ops->attend_lanes, dev->own = *dev->ops;
    dev->ops = &dev->own;
    dev->own.attend_lanes = attend_noted;
    watched = c, to = log;
}
/* Tables of which the two differ; says where first. */
static int differing(const Log *a, const Log *b, char msg[200]) {
    int n = abs(a->n - b->n);
    snprintf(msg, 200, "%d and %d tables", a->n, b->n);
    for (int i = 0; i < a->n && i < b->n; i++) {
        const Reads *x = &a->at[i], *y = &b->at[i];
        if (x->slot == y->slot && x->row == y->row && x->lane == y->lane && x->n == y->n && x->sum == y->sum) continue;
        if (!n++)
            snprintf(msg, 200,
                     "table %d of %d: slot %d row %d lane %d reads %d rows, the other slot %d row %d lane %d %d", i,
                     a->n, x->slot, x->row, x->lane, x->n, y->slot, y->row, y->lane, y->n);
    }
    return n;
}

/* ---- models --------------------------------------------------------------------------------------------------------
 */
static void side_open(Side *d, const char *device, const Animal *a, const char *spec, const RowCodec *codec,
                      bool plain) {
    Err e = {0};
    *d = (Side){0};
    cr_assert(policy_parse(spec, &d->policy, &e), "%s: %s", spec, e.msg);
    if (planted) d->policy.of = d->policy.read = planted;
    cr_assert(model_cfg_from_json(&d->cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(&d->dev, device, 1, &e), "%s", e.msg);
    const ModelOpts o = {.policy = &d->policy, .codec = codec, .poison = true};
    cr_assert(model_open(&d->m, d->dev, &d->cfg, o, &e), "%s: %s", a->name, e.msg);
    model_init(&d->m, 7);
    const SessionOpts so = {.nseq = SEQS,
                            .max_tokens = TOKENS,
                            .chunk = CHUNK,
                            .page_rows = 4,
                            .document = -1,
                            .want_all = true,
                            .plain = plain};
    cr_assert(session_open(&d->s, &d->m, so, &e), "%s", e.msg);
    d->logits = xcalloc((size_t)(SEQS * TOKENS * d->cfg.vocab), sizeof *d->logits);
    d->turn = TURN_ROWS;
    d->bytes = xcalloc(SEQS * TOKENS, sizeof *d->bytes);
}
static void side_close(Side *d) {
    session_close(&d->s);
    zoo_close(&d->cfg, &d->m, NULL, d->dev);
    free(d->log.at), free(d->logits), free(d->bytes);
}
static int token(const Side *d, int seq, int pos, int turn) {
    return (int)(rng_uniform(rng_mix(31, (uint64_t)(seq + 10 * turn)), (uint64_t)pos) * d->cfg.vocab);
}
/* A call: n[q] tokens for each sequence, 0: none. */
static void feed(Side *d, const int n[SEQS], int turn) {
    int tok[SEQS][TOKENS], B = 0, rows = 0;
    Feed f[SEQS];
    Err e = {0};
    for (int q = 0; q < SEQS; q++) {
        if (!n[q]) continue;
        for (int i = 0; i < n[q]; i++) tok[q][i] = token(d, q, session_length(&d->s, q) + i, turn);
        f[B++] = (Feed){q, n[q], tok[q]}, rows += n[q];
    }
    real *to = d->logits + (size_t)d->rows * (size_t)d->cfg.vocab;
    cr_assert(session_extend(&d->s, B, f, WANT_ALL, TENSOR(to, REAL, rows, d->cfg.vocab), &e), "%s", e.msg);
    d->rows += rows, d->bytes[d->calls++] = d->s.read;
}
static void prompt_ends(Side *d, int seq) {
    Err e = {0};
    cr_assert(session_prompt_ends(&d->s, seq, &e), "%s", e.msg);
}
static bool keeps_all(const Side *d) {
    bool all = !policy_acts(&d->policy);
    for (int l = 0; l < d->m.L; l++) all &= !d->m.layer[l].rows.window;
    return all;
}
/* Prompts of unequal length, of which one ends some steps later; single tokens; a fork; several tokens at once; tokens
 * that are taken back, where the policy keeps all rows. */
static void texts(Side *d) {
    feed(d, (int[SEQS]){33, 14, 22, 0}, 0);
    prompt_ends(d, 0), prompt_ends(d, 2);
    for (int k = 0, turn = 0; k < STEPS; k++) {
        if (k == 3) prompt_ends(d, 1);
        if (k == FORK) session_fork(&d->s, 0, 3);
        if (k == REWIND && keeps_all(d)) {
            const int to = session_length(&d->s, 1) - BACK;
            cr_assert_eq(session_rewind(&d->s, 1, to), to);
            turn++;
        }
        feed(d, (int[SEQS]){1, 1, k == TURN ? d->turn : 1, k >= FORK}, turn);
    }
}
/* Two sides that round alike but for the order of sums choose the same pages. In codes a sum next to the middle of two
 * codes becomes another one, after which few choices may differ. */
static void compared(const Animal *a, const char *spec, const RowCodec *codec) {
    const bool coded = codec || strstr(spec, "tailorkv");
    Side cpu, cuda;
    char msg[200], *what = xformat("%s, %s, %s", a->name, spec, codec ? codec->name : "f32");
    side_open(&cpu, "cpu", a, spec, codec, false), noting(cpu.dev, &cpu.s.cache, &cpu.log), texts(&cpu);
    side_open(&cuda, "cuda", a, spec, codec, false), noting(cuda.dev, &cuda.s.cache, &cuda.log), texts(&cuda);
    const int other = differing(&cuda.log, &cpu.log, msg);
    cr_assert(cpu.log.left > 1000 && cpu.log.n > 400, "%s: %d rows are left out of %d tables", what, cpu.log.left,
              cpu.log.n);
    cr_assert(other <= (coded ? cpu.log.n / 50 : 0), "%s: %d of %d choices differ: %s", what, other, cpu.log.n, msg);
    for (int i = 0; i < cpu.calls; i++)
        cr_assert(cuda.bytes[i] == cpu.bytes[i] || other, "%s: call %d read %zu bytes, the CPU's %zu", what, i,
                  cuda.bytes[i], cpu.bytes[i]);
    for (int q = 0; q < SEQS; q++) cr_assert(session_bytes(&cuda.s, q) == session_bytes(&cpu.s, q), "%s", what);
    CHECK_RMS(what, cuda.logits, cpu.logits, (size_t)cpu.rows * (size_t)cpu.cfg.vocab, coded ? 2e-2 : 1e-4);
    side_close(&cpu), side_close(&cuda);
    free(what);
}

Test(cuda_reads, pages_are_those_of_the_cpu, .timeout = 300) {
    compared(&gqa, "quest:reads=12,recent=4,page=4", NULL);
    compared(&gqa, "hybrid:reads=0.3,recent=4,page=4", NULL);
    compared(&gqa, "shadowkv:reads=8,recent=4,page=4,uneven=1", NULL);
    compared(&gqa, "infinigen:reads=12,recent=4,below=1", NULL);
    compared(&gqa, "tailorkv:reads=12,recent=4,sinks=2,bits=2", NULL);
}
Test(cuda_reads, rows_in_few_bits, .timeout = 300) {
    static RowCodec turned;
    turned = codec_int8, turned.rotate = true;
    compared(&gqa, "quest:reads=12,recent=4,page=4", &codec_bf16);
    compared(&gqa, "shadowkv:reads=8,recent=4,page=4,uneven=1", &codec_int4);
    compared(&gqa, "infinigen:reads=12,recent=4,below=1", &turned);
    compared(&gqa, "tailorkv:reads=12,recent=4,sinks=2,bits=4,coded=2", &codec_bf16);
    compared(&gqa, "tailorkv:reads=12,recent=4,page=2,bits=3", &codec_fp8);
}
Test(cuda_reads, other_layers, .timeout = 300) {
    compared(&mla, "quest:reads=12,recent=4,page=4", NULL);
    compared(&mla, "shadowkv:reads=8,recent=4,page=4,uneven=1", &codec_bf16);
    compared(&windows, "hybrid:reads=12,recent=4,page=4", NULL);
    compared(&readers, "quest:reads=12,recent=4,page=4", &codec_bf16);
}
/* Pages of rows that policies have left, some of which lie in the places of others. */
Test(cuda_reads, rows_that_stay, .timeout = 300) {
    /* Without rotation: it leaves keys of equal tokens their norm but for a rounding, which would then decide. */
    compared(&nope, "knorm:budget=0.6,window=4,sinks=1,every=4+quest:reads=8,recent=4,page=4", NULL);
    compared(&gqa, "snapkv:budget=0.7,window=4+hybrid:reads=10,recent=4,page=4", &codec_bf16);
    compared(&gqa, "h2o:budget=0.6,window=4,every=4+shadowkv:reads=8,recent=4,page=4,uneven=1", NULL);
    compared(&gqa, "snapkv:budget=0.7,window=4+infinigen:reads=10,recent=4,below=1", &codec_int8);
}
/* A comparison of pages that cannot fail shows nothing: here one page of every tenth choice has another score. */
static void (*judges)(PageChoice *);
static int judged;
static void judge_wrong(PageChoice *c) {
    judges(c);
    if (judged++ % 10 == 9) c->score[c->n / 2] = c->score[c->n / 2] > 0 ? -1000 : 1000;
}
Test(cuda_reads, another_page_is_noticed, .timeout = 300) {
    static Policy wrong;
    static const char spec[] = "quest:reads=12,recent=4,page=4";
    Side right, other;
    char msg[200];
    side_open(&right, "cpu", &gqa, spec, NULL, false), noting(right.dev, &right.s.cache, &right.log), texts(&right);
    wrong = policy_quest, judges = wrong.judge, wrong.judge = judge_wrong;
    planted = &wrong;
    side_open(&other, "cuda", &gqa, spec, NULL, false), noting(other.dev, &other.s.cache, &other.log), texts(&other);
    planted = NULL;
    const int differ = differing(&other.log, &right.log, msg);
    cr_assert(differ > right.log.n / 50, "%d of %d choices differ: %s", differ, judged, msg);
    side_close(&right), side_close(&other);
}

/* All pages may be read: the bits of a cache without a policy. */
Test(cuda_reads, a_full_budget_is_the_dense_cache, .timeout = 300) {
    static const char *const specs[] = {"quest:reads=1000,recent=4,page=4", "hybrid:reads=1000,recent=4,page=4",
                                        "shadowkv:reads=1000,recent=4,page=4",
                                        "infinigen:reads=1000,recent=4,below=1e9",
                                        "tailorkv:reads=1000,recent=4,coded=0"};
    for (size_t k = 0; k < 2; k++) {
        const RowCodec *codec = k ? &codec_bf16 : NULL;
        Side dense, all;
        side_open(&dense, "cuda", &gqa, "none", codec, false);
        dense.turn = 1; /* passes that select end with pages: of several tokens the own rows are others */
        texts(&dense);
        for (size_t i = k; i < sizeof specs / sizeof *specs; i += 2) {
            side_open(&all, "cuda", &gqa, specs[i], codec, k);
            all.turn = 1, texts(&all);
            cr_assert(dense.rows == all.rows && dense.rows > 200);
            CHECK_SAME(all.dev, specs[i], all.logits, dense.logits, (size_t)dense.rows * (size_t)dense.cfg.vocab, 1e-5);
            side_close(&all);
        }
        side_close(&dense);
    }
}

/* ---- the same rows on both sides --------------------------------------------------------------------------------- */

enum { LANES = 2, HEADS = 4, DK = 16, DV = 8, PROMPTS = 3, ROOM = 2400, BENCH_TOKENS = 128 };
/* A cache of one slot, fed with drawn rows and queries: both sides store and judge the same bits. */
typedef struct {
    Device *dev;
    Arena mem, scratch, host;
    Cache c;
    KvShape s;
    PolicyCfg p;
    Log log;
    int next[SEQS], calls, rows;
    size_t *bytes;
    real *o;
} Bench;
static void bench_open(Bench *b, const char *device, const char *spec, const RowCodec *codec, int tokens) {
    Err e = {0};
    *b = (Bench){.s = {.lanes = LANES, .kdim = DK, .vdim = DV, .codec = codec, .heads = HEADS}};
    cr_assert(policy_parse(spec, &b->p, &e) && device_open(&b->dev, device, 1, &e), "%s", e.msg);
    const Memory *home = device_memory(b->dev, false);
    cr_assert(arena_open_at(&b->mem, home, "rows of a pass", 1 << 21, false, &e) &&
                  arena_open_at(&b->scratch, home, "scratch", 1 << 25, false, &e) &&
                  arena_open(&b->host, "scratch of the host", 1 << 25, false, &e),
              "%s", e.msg);
    cr_assert(kv_open_policy(&b->c, b->dev, &b->p, &b->s, 1, SEQS, tokens, tokens, 0, true, false, &e), "%s", e.msg);
    b->bytes = xcalloc(SEQS * TOKENS, sizeof *b->bytes), b->o = xcalloc(ROOM * HEADS * DV, sizeof *b->o);
}
static void bench_close(Bench *b) {
    kv_close(&b->c);
    arena_close(&b->mem), arena_close(&b->scratch), arena_close(&b->host);
    device_close(b->dev);
    free(b->log.at), free(b->bytes), free(b->o);
}
static Tensor drawn(Bench *b, uint64_t key, int n, int heads, int width) {
    Tensor t = arena_tensor(&b->mem, "drawn", REAL, 3, (int[]){n, heads, width});
    const size_t count = tensor_count(t);
    real *x = xcalloc(count, sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = (real)check_normal(rng_mix(key, (uint64_t)b->calls), i);
    device_write(b->dev, t.p, x, count * sizeof *x);
    free(x);
    return t;
}
/* Rows of a pass: n[q] of sequence q; results are kept but of a prompt's. */
static void bench_pass(Bench *b, const int n[SEQS]) {
    static int of[ROOM], pos[ROOM], first[ROOM], idx[ROOM];
    int off[SEQS + 1] = {0}, seq[SEQS], B = 0, N = 0;
    bool begins = false;
    Err e = {0};
    for (int q = 0; q < SEQS; q++) {
        if (!n[q]) continue;
        for (int i = 0; i < n[q]; i++, N++)
            of[N] = B, idx[N] = N, pos[N] = b->next[q] + i, first[N] = b->next[q] ? -1 : N - i;
        begins |= !b->next[q];
        seq[B] = q, b->next[q] += n[q], off[++B] = N;
    }
    const Batch batch = {.B = B, .N = N, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .history = true};
    Run r = run_make(b->dev, &b->scratch);
    if (device_memory(b->dev, false)) r.host = &b->host;
    const Mark mark = arena_mark(&b->mem);
    Kv kv = {.s = b->s, .k = drawn(b, 1, N, LANES, DK), .v = drawn(b, 2, N, LANES, DV)};
    const Tensor q = drawn(b, 3, N, HEADS, DK), guess = drawn(b, 4, N, HEADS, DK);
    const Tensor o = drawn(b, 5, N, HEADS, DV), lse = drawn(b, 6, N, HEADS, 1);
    r.batch = &batch, r.in = r.out = (RowList){N, idx}, r.guess = b->p.read->guesses ? guess : ABSENT;
    cr_assert(kv_begin(&b->c, &batch, &e), "%s", e.msg);
    kv_attend(&r, kv_slot(&b->c, 0), &kv, o, TENSOR(lse.p, REAL, N, HEADS), q,
              (AttnSpec){.heads = HEADS, .scale = (real)0.3}, false);
    kv_append(&r, kv_slot(&b->c, 0), &kv, NULL);
    kv_end(&b->c, &batch, NULL);
    kv_policy(&r, &b->c, &batch, NULL);
    b->bytes[b->calls++] = kv_read(&b->c);
    if (!begins) device_read(b->dev, b->o + (size_t)b->rows * HEADS * DV, o.p, tensor_bytes(o));
    b->rows += begins ? 0 : N;
    arena_release(&b->mem, mark);
}
static void bench_texts(Bench *b) {
    noting(b->dev, &b->c, &b->log);
    bench_pass(b, (int[SEQS]){20, 13, 9, 0});
    bench_pass(b, (int[SEQS]){17, 0, 5, 0});
    Run r = run_make(b->dev, &b->scratch);
    for (int k = 0; k < STEPS; k++) {
        for (int q = 0; q < PROMPTS; q++)
            if (k == 3 * q) kv_prompt_ends(&r, &b->c, q, b->next[q]);
        if (k == FORK) kv_fork(&b->c, 0, 3), b->next[3] = b->next[0];
        if (k == REWIND) cr_assert_eq(kv_rewind(&b->c, 1, b->next[1] - BACK, NULL), b->next[1] - BACK);
        if (k == REWIND) b->next[1] -= BACK;
        const int page = b->p.page, most = imin(page - b->next[2] % page, 3); /* passes end with pages */
        bench_pass(b, (int[SEQS]){1, 1, k % 5 ? 1 : most, k >= FORK});
    }
    for (int k = 0, page = b->p.page; k < 2;
         k++) /* to the ends of pages; then a page of each, more rows than select at once */
        bench_pass(b, (int[SEQS]){page - b->next[0] % page, page - b->next[1] % page, page - b->next[2] % page,
                                  page - b->next[3] % page});
}
/* matrix: the device multiplies in bf16, on matrix units. */
static void bench_compared(const char *spec, const RowCodec *codec, bool matrix) {
    Bench cpu, cuda;
    Err e = {0};
    char msg[512], *what = xformat("%s, %s", spec, codec->name);
    bench_open(&cpu, "cpu", spec, codec, BENCH_TOKENS), bench_texts(&cpu);
    bench_open(&cuda, "cuda", spec, codec, BENCH_TOKENS);
    cr_assert(device_bf16(cuda.dev, matrix, &e), "%s", e.msg);
    bench_texts(&cuda);
    cr_assert(!differing(&cuda.log, &cpu.log, msg), "%s: %s", what, msg);
    cr_assert(cpu.log.left > 1000 && cpu.log.n > 300, "%s: %d rows are left out of %d tables", what, cpu.log.left,
              cpu.log.n);
    CHECK_BYTES(what, cuda.bytes, cpu.bytes, (size_t)cpu.calls * sizeof *cpu.bytes);
    const size_t n = (size_t)cpu.rows * HEADS * DV;
    CHECK_RMS(what, cuda.o, cpu.o, n, matrix ? 4e-3 : 1e-5);
    cr_assert(!matrix || !check_rms(msg, what, CHECK_VIEW(cuda.o), CHECK_VIEW(cpu.o), n, 1e-4), "%s: in f32", what);
    bench_close(&cpu), bench_close(&cuda);
    free(what);
}
/* Every codec that a device reads, with three policies or more: no choice differs. */
Test(cuda_reads, every_codec, .timeout = 300) {
    static const char *const specs[] = {"quest:reads=12,recent=4,page=4",
                                        "hybrid:reads=0.3,recent=3,page=3",
                                        "shadowkv:reads=8,recent=4,page=4,uneven=1",
                                        "infinigen:reads=12,recent=4,below=1",
                                        "tailorkv:reads=14,recent=4,sinks=2,coded=0",
                                        "quest:reads=12,recent=4,page=1",
                                        "quest:reads=20,recent=8,page=8"};
    int codecs = 0;
    for (int k = 0; codec_at(k); k++) {
        RowCodec turned = *codec_at(k);
        if (turned.as == ROWS_CODED || turned.block) continue;
        for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
            if ((i + (size_t)k) % 2) continue;
            turned.rotate = i % 3 == 1 && codec_rotates(&turned);
            bench_compared(specs[i], &turned, false);
        }
        codecs++;
    }
    cr_assert(codecs == 7, "%d codecs", codecs);
}
Test(cuda_reads, matrix_units, .timeout = 300) {
    bench_compared("quest:reads=12,recent=4,page=4", &codec_bf16, true);
    bench_compared("infinigen:reads=12,recent=4,below=1", &codec_bf16, true);
    bench_compared("shadowkv:reads=9,recent=3,page=3,uneven=1", &codec_bf16, true);
}
/* Keys of more rows than one copy has: a prompt's single rows in two lanes. */
Test(cuda_reads, keys_by_several_copies, .timeout = 300) {
    enum { LONG = 2150 };
    Bench side[2];
    char msg[200];
    for (int i = 0; i < 2; i++) {
        Bench *b = &side[i];
        bench_open(b, i ? "cuda" : "cpu", "tailorkv:reads=150,recent=4,coded=0", &codec_int8, ROOM);
        noting(b->dev, &b->c, &b->log);
        bench_pass(b, (int[SEQS]){LONG});
        Run r = run_make(b->dev, &b->scratch);
        kv_prompt_ends(&r, &b->c, 0, LONG);
        unsigned long before = i ? cuda_waits(b->dev->cuda) : 0;
        for (int k = 0; k < 3; k++) bench_pass(b, (int[SEQS]){1});
        /* of each step the queries, keys of new rows, and what this test reads: three arrays of tables, results */
        if (i) cr_assert_eq(cuda_waits(b->dev->cuda) - before, 3 * (1 + 1 + 3 + 1) + 1, "waits");
    }
    cr_assert(!differing(&side[1].log, &side[0].log, msg) && side[0].log.left > 3 * 2 * 1900, "%s", msg);
    CHECK_RMS("long", side[1].o, side[0].o, (size_t)side[0].rows * HEADS * DV, 1e-5);
    bench_close(&side[0]), bench_close(&side[1]);
}

/* ---- what a step costs ------------------------------------------------------------------------------------------- */

static struct {
    int reads, writes;
    size_t read, written;
} copied;
static const Backend *backend;
static void read_counted(Device *d, void *to, const void *from, size_t n) {
    copied.reads++, copied.read += n;
    backend->read(d, to, from, n);
}
static void write_counted(Device *d, void *to, const void *from, size_t n) {
    copied.writes++, copied.written += n;
    backend->write(d, to, from, n);
}
/* A step reads from the device once for each layer that selects, the queries, and once more for each where pages have
 * become full, their keys; and once the logits. It writes once for each of those layers, the tables. No such step is
 * captured; those before the prompt's end are replayed. */
Test(cuda_reads, a_step_waits_for_queries, .timeout = 300) {
    enum { PROMPT = 30, SLOW = 12, LAYERS = 3, QUERIES = 4 * 8 * 4, PAGE = 4, KEYS = LANES * PAGE * 8 * 4 };
    Side d;
    side_open(&d, "cuda", &gqa, "quest:reads=12,recent=4,page=4", NULL, false);
    for (int k = 0; k < PROMPT; k += k < PROMPT - SLOW ? PROMPT - SLOW : 1)
        feed(&d, (int[SEQS]){k ? 1 : PROMPT - SLOW}, 0);
    const long replayed = graphs_replayed(d.s.cache.graphs), begun = graphs_begun(d.s.cache.graphs);
    cr_assert(replayed == SLOW - 2, "%ld steps before the end of the prompt are replayed", replayed);
    prompt_ends(&d, 0);
    Backend counted = *d.dev->backend;
    backend = d.dev->backend, counted.read = read_counted, counted.write = write_counted;
    d.dev->backend = &counted;
    int full = 0;
    for (int k = 0; k < STEPS; k++) {
        const int pos = session_length(&d.s, 0);
        memset(&copied, 0, sizeof copied);
        const unsigned long waits = cuda_waits(d.dev->cuda);
        feed(&d, (int[SEQS]){1}, 0);
        /* the first step asks for the pages of the prompt, later ones for the page whose last row is 5 back */
        const int pages = k ? pos % PAGE == 0 : pos / PAGE - 1, fetches = pages > 0;
        const size_t logits = (size_t)d.cfg.vocab * sizeof(real);
        full += fetches;
        cr_assert_eq(copied.reads, 1 + LAYERS * (1 + fetches), "step %d: %d copies to the host", k, copied.reads);
        cr_assert_eq(copied.read, logits + (size_t)(LAYERS * (QUERIES + pages * KEYS)), "step %d: %zu bytes", k,
                     copied.read);
        cr_assert_eq(cuda_waits(d.dev->cuda) - waits, (unsigned long)copied.reads, "step %d", k);
        cr_assert(copied.writes == 1 + 2 * LAYERS, "step %d: %d copies from the host", k, copied.writes);
    }
    d.dev->backend = backend;
    cr_assert(full > 10 && full < 14 && graphs_replayed(d.s.cache.graphs) == replayed &&
                  graphs_begun(d.s.cache.graphs) == begun,
              "%d steps with full pages, %ld replays", full, graphs_replayed(d.s.cache.graphs));
    side_close(&d);
}
/* Where all pages may be read, logits alone come to the host. */
Test(cuda_reads, a_step_that_reads_all_copies_nothing, .timeout = 300) {
    Side d;
    side_open(&d, "cuda", &gqa, "quest:reads=1000,recent=4,page=4", NULL, false);
    feed(&d, (int[SEQS]){30}, 0), prompt_ends(&d, 0);
    Backend counted = *d.dev->backend;
    backend = d.dev->backend, counted.read = read_counted, counted.write = write_counted;
    d.dev->backend = &counted;
    for (int k = 0; k < 6; k++) {
        memset(&copied, 0, sizeof copied);
        feed(&d, (int[SEQS]){1}, 0);
        cr_assert(copied.reads == 1 && copied.writes == 1, "step %d: %d copies to the host, %d from it", k,
                  copied.reads, copied.writes);
    }
    d.dev->backend = backend;
    side_close(&d);
}
/* A step that selects is not filled up with other sequences, as nothing replays it. */
Test(cuda_reads, steps_are_not_filled_up, .timeout = 300) {
    Side d;
    Err e = {0};
    Sampler how = sampler_default();
    side_open(&d, "cuda", &gqa, "quest:reads=12,recent=4,page=4", NULL, false);
    cr_assert(session_draw_open(&d.s, &e), "%s", e.msg);
    feed(&d, (int[SEQS]){20, 20, 20}, 0);
    for (int q = 0; q < 3; q++) prompt_ends(&d, q);
    noting(d.dev, &d.s.cache, &d.log);
    const int tok = 1;
    SampleRow rows[3];
    Sampled got[3];
    for (int q = 0; q < 3; q++) rows[q] = sampler_row(&how, (uint64_t)q, 0);
    cr_assert(session_draw(&d.s, 3, (Feed[]){{0, 1, &tok}, {1, 1, &tok}, {2, 1, &tok}}, rows, got, &e), "%s", e.msg);
    cr_assert(d.log.n == 3 * 3 * 2, "%d tables of 3 layers, 3 sequences and 2 lanes", d.log.n);
    side_close(&d);
}
/* A sequence that was saved and read back makes its summaries anew: it continues with the same pages and bits. */
Test(cuda_reads, a_saved_sequence_continues, .timeout = 300) {
    static const char spec[] = "shadowkv:reads=12,recent=4,page=4,uneven=1";
    Side a, b;
    KvParts parts = {0};
    char msg[200];
    Err e = {0};
    side_open(&a, "cuda", &gqa, spec, &codec_int8, false), side_open(&b, "cuda", &gqa, spec, &codec_int8, false);
    feed(&a, (int[SEQS]){33}, 0), prompt_ends(&a, 0);
    for (int k = 0; k < 7; k++) feed(&a, (int[SEQS]){1}, 0);
    const int length = session_length(&a.s, 0);
    cr_assert(kv_save(&a.s.cache, 0, &parts, &e) && kv_restore(&b.s.cache, 0, length, &parts, &e), "%s", e.msg);
    b.s.next[0] = length;
    Side *const both[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        noting(both[i]->dev, &both[i]->s.cache, &both[i]->log), both[i]->rows = 0;
        for (int k = 0; k < 20; k++) feed(both[i], (int[SEQS]){1}, 0);
    }
    cr_assert(!differing(&a.log, &b.log, msg) && a.log.left > 100, "%s", msg);
    CHECK_BYTES("saved", b.logits, a.logits, (size_t)(20 * a.cfg.vocab) * sizeof *a.logits);
    kv_parts_free(&parts);
    side_close(&a), side_close(&b);
}
