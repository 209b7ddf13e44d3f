/* test_minikv.c: MiniKV, the policy minikv over rows in kivi2, on drawn keys, values and queries: the rows that stay
 * and the bytes of their blocks are those of golden/minikv.txt, which golden/make_minikv.py writes by the paper's
 * rules. */
#include "layers/cache/cache.h"
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"

enum { HEADS = 4, LANES = 2, DIM = 8, PROMPT = 200, BLOCK = 64, TOKENS = 256, GROUP = HEADS / LANES };
static real number(int kind, int token, int head, int dim) {
    uint32_t x = (uint32_t)(((kind * 256 + token) * HEADS + head) * DIM + dim) * 2654435761u + 12345u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13;
    return (real)(float)((x / 4294967296.0 - 0.5) * 4);
}
typedef struct {
    Rig g;
    Cache c;
    KvShape s;
} Bench;
/* One token at a position, as a model would give it to the cache. */
static void feed(Bench *b, int at) {
    const int of = 0, pos = at, first = at ? -1 : 0, idx = 0, off[] = {0, 1}, seq = 0;
    const Batch batch = {
        .B = 1, .N = 1, .off = off, .seq = &seq, .of = &of, .pos = &pos, .first = &first, .history = at > 0};
    Rig *g = &b->g;
    const Slot *slot = kv_slot(&b->c, 0);
    Err e = {0};
    Mark mark = arena_mark(&g->mem);
    Kv kv = {.s = b->s, .k = EMPTY(g, "k", 1, LANES, DIM), .v = EMPTY(g, "v", 1, LANES, DIM)};
    Probe p = {.rows = {1, &idx}, .q = EMPTY(g, "q", 1, HEADS, DIM), .lse = EMPTY(g, "lse", 1, HEADS)};
    const Tensor o = EMPTY(g, "o", 1, HEADS, DIM);
    for (int h = 0; h < LANES; h++)
        for (int d = 0; d < DIM; d++)
            R(kv.k)[h * DIM + d] = number(1, at, h, d), R(kv.v)[h * DIM + d] = number(2, at, h, d);
    for (int h = 0; h < HEADS; h++)
        for (int d = 0; d < DIM; d++) R(p.q)[h * DIM + d] = (real)((double)number(0, at, h, d) / sqrt(DIM));
    g->run.batch = &batch, g->run.in = g->run.out = (RowList){1, &idx};
    cr_assert(kv_begin(&b->c, &batch, &e), "%s", e.msg);
    CALL(g, (kv_attend(&g->run, slot, &kv, o, p.lse, p.q, (AttnSpec){.heads = HEADS, .scale = 1}, false), 0));
    for (int h = 0; h < HEADS; h++) { /* and itself */
        double s = 0;
        for (int d = 0; d < DIM; d++) s += (double)R(p.q)[h * DIM + d] * (double)R(kv.k)[h / GROUP * DIM + d];
        R(p.lse)[h] = (real)log(exp((double)R(p.lse)[h]) + exp(s));
    }
    CALL(g, (kv_append(&g->run, kv_slot(&b->c, 0), &kv, NULL), 0));
    CALL(g, (kv_ask(&g->run, kv_slot(&b->c, 0), &p, 0, NULL), 0));
    kv_end(&b->c, &batch, NULL);
    rig_measure(g);
    kv_policy(&g->run, &b->c, &batch, NULL);
    rig_place(g);
    kv_policy(&g->run, &b->c, &batch, NULL);
    if (at + 1 == PROMPT) kv_prompt_ends(&g->run, &b->c, 0, PROMPT);
    rig_done_within(g);
    arena_release(&g->mem, mark);
}
static void open_bench(Bench *b, const char *spec, PolicyCfg *p) {
    Err e = {0};
    b->s = (KvShape){.lanes = LANES, .kdim = DIM, .vdim = DIM, .codec = &codec_kivi2, .heads = HEADS};
    cr_assert(policy_parse(spec, p, &e), "%s", e.msg);
    rig_open(&b->g, rig_first(), 1, 1 << 20);
    cr_assert(kv_open_policy(&b->c, NULL, p, &b->s, 1, 1, TOKENS, BLOCK, 0, true, false, &e), "%s", e.msg);
}
static int page_at(const Lanes *t, int lane, int row) {
    return t->table[lane * t->maxpages + row / t->P % t->maxpages];
}
/* The next lane of the file: its rows are these, and its blocks have these bytes. Returns how many blocks. */
static int lane_has(const Bench *b, FILE *f, const char *spec) {
    const Lanes *t = kv_lanes(kv_slot(&b->c, 0));
    static char hex[4000];
    int lane, n, pos;
    const size_t bytes = block_bytes(&b->s);
    cr_assert(fscanf(f, "%d %d", &lane, &n) == 2 && lane >= 0 && lane < LANES, "%s", spec);
    cr_assert(t->hi[lane] - t->lo[lane] == n, "%s: lane %d has %d rows, expected %d", spec, lane,
              t->hi[lane] - t->lo[lane], n);
    for (int row = 0; row < n; row++) {
        const int have = t->pos[page_at(t, lane, row) * BLOCK + row % BLOCK];
        cr_assert(fscanf(f, "%d", &pos) == 1 && pos == have, "%s: lane %d, row %d is of position %d, expected %d", spec,
                  lane, row, have, pos);
    }
    for (int block = 0; block < n / BLOCK; block++) {
        const int page = page_at(t, lane, block * BLOCK);
        cr_assert(fscanf(f, "%3999s", hex) == 1 && strlen(hex) == 2 * bytes && page >= t->npages, "%s: block %d", spec,
                  block);
        const unsigned char *have = (const unsigned char *)lanes_block(t, page);
        for (size_t i = 0; i < bytes; i++) {
            unsigned want;
            cr_assert(sscanf(hex + 2 * i, "%2x", &want) == 1 && have[i] == want,
                      "%s: lane %d, block %d: byte %zu is %02x, not %.2s", spec, lane, block, i, have[i], hex + 2 * i);
        }
    }
    return n / BLOCK;
}
static int text_has(const char *spec, FILE *f, size_t *bytes) {
    Bench b = {.s = {0}};
    PolicyCfg p;
    int blocks = 0;
    open_bench(&b, spec, &p);
    for (int at = 0; at < PROMPT; at++) feed(&b, at);
    for (int h = 0; h < LANES; h++) blocks += lane_has(&b, f, spec);
    *bytes = kv_bytes(&b.c, 0) - policy_state_bytes(&p, &b.s);
    kv_close(&b.c);
    rig_close(&b.g);
    return blocks;
}
/* By its own name, and as h2o with as large a window. */
Test(minikv, the_papers_rules, .timeout = 60) {
    double budget;
    int texts = 0, blocks = 0;
    FILE *f = fopen("tests/golden/minikv.txt", "r");
    if (cuda_ops()) return; /* no device reads blocks */
    cr_assert(f, "tests/golden/minikv.txt");
    for (; fscanf(f, "%lf", &budget) == 1; texts++) {
        const int rows = (int)ceil(budget * PROMPT - 1e-9);
        const long after = ftell(f);
        size_t bytes, as_h2o;
        char spec[80];
        snprintf(spec, sizeof spec, "minikv:budget=%g", budget);
        blocks += text_has(spec, f, &bytes);
        fseek(f, after, SEEK_SET);
        snprintf(spec, sizeof spec, "h2o:budget=%g,window=%d,every=0", budget, rows / 2);
        text_has(spec, f, &as_h2o);
        /* keys: 2 groups of 32 codes of 2 bits for each element; values: 8 codes a row; scale and zero of 4 bytes; a
         * number of the policy's with each row */
        const size_t block = DIM * 2 * (4 + 8) + BLOCK * (4 + 4),
                     want = LANES * ((size_t)(rows / BLOCK) * block + (size_t)(rows % BLOCK) * 2 * DIM * sizeof(real) +
                                     (size_t)rows * sizeof(real));
        cr_assert(bytes == want && as_h2o == want, "budget %g: %zu and %zu bytes, expected %zu", budget, bytes, as_h2o,
                  want);
    }
    fclose(f);
    cr_assert(texts == 3 && blocks == 10, "%d texts, %d blocks", texts, blocks);
}
