#include "bench_recur.h"

const char *const recur_rules[RULES] = {"kda",    "gdn",    "deltanet", "gla",  "retention",
                                        "linear", "mamba2", "gdn2",     "comba"};

typedef struct {
    Run run;
    Recur in, grad;
    bool overwrite; /* gradients in bf16 are written, others are added to */
    Tensor o, dout, keep;
    double scale;
} Work;

bool recur_rule_read(const char *word, RecurRule *rule) {
    for (int i = 0; i < RULES; i++)
        if (!strcmp(word, recur_rules[i])) {
            *rule = (RecurRule)i;
            return true;
        }
    return false;
}
bool recur_shape_read(const char *word, RecurShape *s) {
    int end = 0;
    bool ok = sscanf(word, "%dx%dx%dx%d%n", &s->B, &s->T, &s->H, &s->D, &end) == 4 && !word[end] && s->B > 0 &&
              s->T > 0 && s->H > 0 && s->D > 0 && s->D <= 1024;
    return ok && (double)s->B * s->T * s->H * s->D < 2e9; /* indices of an array */
}

static void forward_once(void *ctx) {
    Work *w = ctx;
    w->run.ops->recur(&w->run, w->o, w->keep, w->in, w->scale, ABSENT, 0);
}
static void both_once(void *ctx) {
    Work *w = ctx;
    forward_once(ctx);
    const RecurInto into = w->overwrite ? recur_overwrite(w->grad) : recur_add_to(w->grad);
    w->run.ops->recur_backward(&w->run, &into, w->dout, w->in, w->scale, w->keep, NULL);
}

/* Rows of a state. Mamba-2's are 128 for heads of width 64, and its heads share one q and k. */
static int recur_state(RecurRule rule, RecurShape s) { return rule == RULE_MAMBA2 ? 2 * s.D : s.D; }
/* Memory of one side, values or gradients, in `a`. Decays and beta are f32 in layers, too. */
static Recur bench_recur_sides(Arena *a, RecurRule rule, RecurShape s, Dtype rows) {
    const int N = s.B * s.T, groups = rule == RULE_MAMBA2 ? 1 : s.H, K = recur_state(rule, s);
    Recur r = {.q = arena_tensor(a, "q", rows, 3, (int[]){N, groups, K}),
               .k = arena_tensor(a, "k", rows, 3, (int[]){N, groups, K}),
               .v = arena_tensor(a, "v", rows, 3, (int[]){N, s.H, s.D})};
    bool channels = rule == RULE_KDA || rule == RULE_GLA || rule == RULE_GDN2;
    if (rule != RULE_DELTANET && rule != RULE_LINEAR)
        r.g = arena_tensor(a, "g", REAL, 3, (int[]){N, s.H, channels ? K : 1});
    if (rule == RULE_GDN2 || rule == RULE_COMBA) r.e = arena_tensor(a, "e", rows, 3, (int[]){N, groups, K});
    if (rule <= RULE_DELTANET || rule == RULE_COMBA) r.beta = arena_tensor(a, "beta", REAL, 2, (int[]){N, s.H});
    return r;
}
static void bench_recur_place(Work *w, Arena *a, RecurRule rule, RecurShape s) {
    const Dtype rows = bench_bf16(w->run.dev) ? BF16 : REAL;
    w->in = bench_recur_sides(a, rule, s, rows);
    w->grad = bench_recur_sides(a, rule, s, rows);
    w->overwrite = rows == BF16;
    w->o = arena_tensor(a, "o", rows, 3, (int[]){s.B * s.T, s.H, s.D});
    w->dout = arena_tensor(a, "dout", rows, 3, (int[]){s.B * s.T, s.H, s.D});
    w->keep = arena_tensor(a, "keep", REAL, 4, (int[]){recur_keep(s.B * s.T), s.H, recur_state(rule, s), s.D});
}
bool bench_recur(Device *dev, RecurRule rule, RecurShape s, double seconds, Timing *forward, Timing *both, Err *e) {
    Arena data = {0}, scratch = {0};
    const int N = s.B * s.T;
    int *rows = xcalloc((size_t)(3 * N + 2 * s.B + 1), sizeof *rows), *pos = rows, *first = rows + N,
        *of = rows + 2 * N, *off = rows + 3 * N, *seq = off + s.B + 1;
    uint64_t *id = xcalloc((size_t)s.B, sizeof *id);
    for (int i = 0; i < N; i++) pos[i] = i % s.T, first[i] = i / s.T * s.T, of[i] = i / s.T;
    for (int b = 0; b <= s.B; b++) off[b] = b * s.T;
    for (int b = 0; b < s.B; b++) seq[b] = b, id[b] = (uint64_t)b;
    Batch batch = {.B = s.B, .N = N, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .id = id};
    Work w = {.run = run_make(dev, &scratch), .scale = 1 / sqrt(recur_state(rule, s))};
    w.run.batch = &batch;
    int *idx = xcalloc((size_t)N, sizeof *idx);
    for (int i = 0; i < N; i++) idx[i] = i;
    w.run.in = w.run.out = (RowList){N, idx};
    bench_recur_place(&w, &data, rule, s);
    both_once(&w); /* measures its scratch */
    const Memory *home = device_memory(dev, false);
    bool ok = arena_open_at(&data, home, "bench", data.peak, false, e) &&
              arena_open_at(&scratch, home, "bench scratch", scratch.peak, false, e);
    if (ok) {
        bench_recur_place(&w, &data, rule, s);
        /* keys and queries of length about 1, as the mixers' norm makes them */
        double unit = 1 / sqrt(recur_state(rule, s) / 3.0);
        bench_fill(dev, w.in.q, 1, -unit, unit), bench_fill(dev, w.in.k, 2, -unit, unit),
            bench_fill(dev, w.in.v, 3, -1, 1);
        if (present(w.in.g)) bench_fill(dev, w.in.g, 4, -0.1, 0);
        if (present(w.in.beta)) bench_fill(dev, w.in.beta, 5, 0, 1);
        if (present(w.in.e)) bench_fill(dev, w.in.e, 2, -unit / 2, unit / 2); /* half of k */
        bench_fill(dev, w.dout, 6, -1, 1);
        Tensor *const rows_of[] = {&w.grad.q, &w.grad.k, &w.grad.v, &w.grad.g, &w.grad.beta, &w.grad.e};
        for (int i = 0; i < 6; i++) /* what is added to */
            if (present(*rows_of[i]) && !w.overwrite) device_zero(dev, rows_of[i]->p, tensor_bytes(*rows_of[i]));
        *forward = bench_time(dev, forward_once, &w, seconds);
        *both = bench_time(dev, both_once, &w, seconds);
    }
    arena_close(&scratch);
    arena_close(&data);
    free(rows), free(id), free(idx);
    return ok;
}
