/* test_optim.c: schedules at their corners, parameters paired by visitors, clipping, AdamW against its formula in f64
 * and against torch. */
#include "tests/lib/check.h"
#include <signal.h>
#include "optim/optimizer.h"
#include "optim/clip.h"
#include "optim/schedule.h"

/* What one step of `real` may add, relative to the largest number of a tensor. */
static const double ROUNDING = sizeof(real) == 8 ? 1e-14 : 1e-6;

/* ---- schedules --------------------------------------------------------------------------------------------------- */

static void expect_lr(const char *name, ScheduleCfg c, int64_t t, double want) {
    const Schedule *s = schedule_find(name);
    cr_assert(s, "no schedule %s", name);
    double got = s->lr(&c, t);
    cr_assert(fabs(got - want) <= 1e-15 * c.lr, "%s: lr %.17g at step %lld, expected %.17g", name, got, (long long)t,
              want);
}

Test(optim, schedule_corners) {
    const ScheduleCfg c = {.lr = 1.0, .min_lr = 0.1, .warmup = 9, .steps = 109};
    for (int k = 0; k < SCHEDULES; k++) {
        expect_lr(schedules[k].name, c, 0, 0.1);
        expect_lr(schedules[k].name, c, 4, 0.5);
        expect_lr(schedules[k].name, c, 8, 0.9);
        expect_lr(schedules[k].name, c, 9, 1.0);
    }
    expect_lr("linear", c, 34, 0.775);
    expect_lr("linear", c, 59, 0.55);
    expect_lr("linear", c, 108, 0.109);
    expect_lr("linear", c, 109, 0.1);
    expect_lr("linear", c, INT64_MAX, 0.1);
    const ScheduleCfg d = {.lr = 1.0, .min_lr = 0.1, .warmup = 9, .steps = 109, .decay = 40};
    expect_lr("wsd", d, 8, 0.9);
    expect_lr("wsd", d, 9, 1.0);
    expect_lr("wsd", d, 68, 1.0);
    expect_lr("wsd", d, 69, 1.0); /* the line begins here */
    expect_lr("wsd", d, 70, 1.0 - 0.9 / 40);
    expect_lr("wsd", d, 89, 0.55);
    expect_lr("wsd", d, 108, 0.1 + 0.9 / 40);
    expect_lr("wsd", d, 109, 0.1);
    expect_lr("wsd", d, INT64_MAX, 0.1);
    const ScheduleCfg all = {.lr = 1.0, .min_lr = 0, .warmup = 10, .steps = 20, .decay = 10}; /* nothing stable */
    expect_lr("wsd", all, 9, 10.0 / 11);
    expect_lr("wsd", all, 10, 1.0);
    expect_lr("wsd", all, 15, 0.5);
    expect_lr("cosine", c, 59, 0.55);                         /* the middle: cos(pi/2) = 0 */
    expect_lr("cosine", c, 34, 0.1 + 0.45 * (1 + M_SQRT1_2)); /* a quarter */
    expect_lr("cosine", c, 84, 0.1 + 0.45 * (1 - M_SQRT1_2));
    expect_lr("cosine", c, 109, 0.1);
    expect_lr("cosine", c, INT64_MAX, 0.1);
    expect_lr("constant", c, 109, 1.0);
    expect_lr("constant", c, INT64_MAX, 1.0);

    const ScheduleCfg plain = {.lr = 2e-3, .min_lr = 0, .warmup = 0, .steps = 1};
    expect_lr("cosine", plain, 0, 2e-3);
    expect_lr("cosine", plain, 1, 0);
    expect_lr("constant", plain, 0, 2e-3);
    const ScheduleCfg warm_only = {.lr = 1.0, .min_lr = 0.25, .warmup = 100, .steps = 50};
    expect_lr("cosine", warm_only, 99, 100.0 / 101);
    expect_lr("cosine", warm_only, 100, 0.25);
    const ScheduleCfg flat = {.lr = 0.5, .min_lr = 0.5, .warmup = 0, .steps = 10};
    for (int64_t t = 0; t < 20; t++) expect_lr("cosine", flat, t, 0.5);

    /* The order that the choices of optim.schedule have. */
    cr_assert(schedule_find("cosine") == &schedules[0] && schedule_find("constant") == &schedules[1] &&
              schedule_find("linear") == &schedules[2] && schedule_find("wsd") == &schedules[3]);
    cr_assert(!schedule_find("") && !schedule_find("triangle") && !schedule_find("cosin"));
}

Test(optim, cosine_goes_up_then_down) {
    const ScheduleCfg c = {.lr = 3e-4, .min_lr = 3e-5, .warmup = 17, .steps = 203};
    double last = 0;
    for (int64_t t = 0; t <= 203; t++) {
        double lr = schedule_find("cosine")->lr(&c, t);
        cr_assert(t <= 17 ? lr > last : lr < last, "step %lld: %g after %g", (long long)t, lr, last);
        cr_assert(lr > 0 && lr <= 3e-4 && (t < 17 || lr >= 3e-5), "step %lld: %g", (long long)t, lr);
        last = lr;
    }
}

/* A clock that the test moves: whatever is elapsed counts where it is more than the steps, and both ends are
 * reached. */
Test(optim, schedule_by_time) {
    const ScheduleCfg c = {.lr = 1.0, .min_lr = 0.1, .warmup = 9, .steps = 109, .decay = 40};
    cr_assert(schedule_share(0, 0, 50) == 0 && schedule_share(25, 0, 50) == 0.5 && schedule_share(50, 0, 50) == 1);
    cr_assert(schedule_share(1e9, 0, 50) == 1 && schedule_share(50, 50, 50) == 1 && schedule_share(60, 55, 50) == 1);
    cr_assert(schedule_share(30, 20, 40) == 0.5 && schedule_share(19, 20, 40) == 0, "a stage has what is left");
    cr_assert(schedule_position(&c, 40, 0) == 40 && schedule_position(&c, 40, 0.25) == 40 &&
              schedule_position(&c, 10, 0.5) == 54.5);
    /* 5 s a step where 109 steps would have to take 1 s: the rates are those of every fifth step, the last is
     * min_lr. */
    for (int k = 0; k < SCHEDULES; k++) {
        const Schedule *s = &schedules[k];
        int64_t step = 0;
        double share;
        for (double now = 0; (share = schedule_share(now, 0, 109)) < 1; now += 5, step++) {
            double t = schedule_position(&c, step, share), got = s->lr(&c, t), want = s->lr(&c, 5.0 * (double)step);
            cr_assert(fabs(got - want) < 1e-12, "%s: %g at step %d, expected %g", s->name, got, (int)step, want);
        }
        cr_assert_eq(step, 22);
        cr_assert(s->lr(&c, schedule_position(&c, step, share)) == (strcmp(s->name, "constant") ? 0.1 : 1.0));
    }
    /* Between two steps: half of a warmup step, half way through the decay of wsd. */
    cr_assert(fabs(schedule_find("linear")->lr(&c, 4.5) - 0.55) < 1e-12);
    cr_assert(fabs(schedule_find("wsd")->lr(&c, 88.5) - (0.1 + 0.9 * 20.5 / 40)) < 1e-12);
    /* A machine that needs less than a second a step ends by its steps. */
    cr_assert(schedule_position(&c, 108, 0.5) == 108);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

enum { NPARAM = 5 };
static const struct {
    const char *scope, *name;
    unsigned flags;
    int rank, n[RANK_MAX];
    bool decays;
} decl[NPARAM] = {
    {"", "embed.weight", 0, 2, {7, 5}, true},
    {"layers.0.", "norm.weight", FIELD_ONES | FIELD_NODECAY, 1, {37}, false},
    {"layers.0.", "proj.weight", FIELD_RESIDUAL, 2, {33, 65}, true},
    {"layers.0.", "proj.bias", 0, 1, {33}, false},              /* rank 1 alone says so */
    {"layers.0.", "table", FIELD_NODECAY, 3, {2, 3, 4}, false}, /* the flag alone says so */
};
/* One role of a pretended model: weights, gradients, and AdamW's two states. */
enum { MEAN = PARAM_ROLES, SQUARE, PARTS };
typedef struct {
    Tensor t[NPARAM];
    Arena mem;
} Part;

static void part_fields(Part *p, int from, int to, Fields f) {
    for (int i = from; i < to; i++) {
        snprintf(f.scope, sizeof f.scope, "%s", decl[i].scope);
        field_declare(&f, &p->t[i], decl[i].name, decl[i].flags, decl[i].rank, decl[i].n);
    }
}

/* Weights, gradients, moments in memory full of NaN, then filled with numbers of N(0, size). */
static void parts_open(Part part[PARTS], uint64_t seed, const double size[PARTS]) {
    for (int role = 0; role < PARTS; role++) {
        Err e = {0};
        Arena dry = {0};
        part_fields(&part[role], 0, NPARAM, arena_placer(&dry));
        cr_assert(arena_open(&part[role].mem, "part", dry.peak, true, &e), "%s", e.msg);
        part_fields(&part[role], 0, NPARAM, arena_placer(&part[role].mem));
        for (int i = 0; i < NPARAM; i++)
            for (size_t j = 0; j < tensor_count(part[role].t[i]); j++) {
                double x = size[role] * rng_normal(rng_mix(rng_mix(seed, (uint64_t)role), (uint64_t)i), j);
                R(part[role].t[i])[j] = (real)(role == SQUARE ? fabs(x) : x);
            }
    }
}
static void parts_close(Part part[PARTS]) {
    for (int role = 0; role < PARTS; role++) arena_close(&part[role].mem);
}
static Params collect(Part part[PARTS]) {
    Params s = {0};
    for (int role = 0; role < PARAM_ROLES; role++)
        part_fields(&part[role], 0, NPARAM, params_visitor(&s, (ParamRole)role));
    params_check(&s);
    optimizer_declare(&s, &(OptimCfg){.kind = 0});
    for (int i = 0; i < NPARAM; i++)
        for (int k = 0; k < 2; k++) {
            cr_assert(!memcmp(s.p[i].state[k].t.n, part[MEAN + k].t[i].n, sizeof part->t->n));
            s.p[i].state[k].t.p = part[MEAN + k].t[i].p;
        }
    return s;
}

static const double SIZES[PARTS] = {1, 0.1, 0.05, 0.01};

Test(optim, parameters_are_paired) {
    Part part[PARTS] = {0};
    parts_open(part, 1, SIZES);
    Params s = collect(part);
    cr_assert_eq(s.n, NPARAM);
    for (int i = 0; i < NPARAM; i++) {
        char *name = xformat("%s%s", decl[i].scope, decl[i].name);
        cr_assert_str_eq(s.p[i].name, name);
        cr_assert_eq(s.p[i].flags, decl[i].flags);
        cr_assert_eq(param_decays(&s.p[i]), decl[i].decays, "%s", name);
        for (int role = 0; role < PARAM_ROLES; role++) cr_assert_eq(s.p[i].t[role].p, part[role].t[i].p, "%s", name);
        free(name);
    }
    params_free(&s);
    parts_close(part);
}

Test(optim, a_missing_role_is_caught, .signal = SIGABRT) {
    Part part[PARTS] = {0};
    Params s = {0};
    parts_open(part, 1, SIZES);
    part_fields(&part[0], 0, NPARAM, params_visitor(&s, PARAM_WEIGHT));
    params_check(&s);
}
Test(optim, another_name_is_caught, .signal = SIGABRT) {
    Part part[PARTS] = {0};
    Params s = {0};
    parts_open(part, 1, SIZES);
    part_fields(&part[0], 0, NPARAM, params_visitor(&s, PARAM_WEIGHT));
    part_fields(&part[1], 1, NPARAM, params_visitor(&s, PARAM_GRAD));
}
Test(optim, one_field_more_is_caught, .signal = SIGABRT) {
    Part part[PARTS] = {0};
    Params s = {0};
    parts_open(part, 1, SIZES);
    part_fields(&part[0], 0, NPARAM - 1, params_visitor(&s, PARAM_WEIGHT));
    part_fields(&part[1], 0, NPARAM, params_visitor(&s, PARAM_GRAD));
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

typedef struct {
    Device *dev;
    Arena scratch;
    Run run;
} Bench;
static void bench_open(Bench *b, int threads) {
    Err e = {0};
    cr_assert(device_open(&b->dev, "cpu", threads, &e), "%s", e.msg);
    cr_assert(arena_open(&b->scratch, "scratch", 1 << 20, true, &e), "%s", e.msg);
    b->run = run_make(b->dev, &b->scratch);
}
static void bench_close(Bench *b) {
    arena_close(&b->scratch);
    device_close(b->dev);
}

Test(optim, global_norm) {
    Bench b;
    Part part[PARTS] = {0};
    bench_open(&b, 2);
    parts_open(part, 2, SIZES);
    Params s = collect(part);
    long double sum = 0;
    for (int i = 0; i < NPARAM; i++)
        for (size_t j = 0; j < tensor_count(part[PARAM_GRAD].t[i]); j++) {
            long double x = R(part[PARAM_GRAD].t[i])[j];
            sum += x * x;
        }
    double want = (double)sqrtl(sum);
    const double max[] = {0, 1e9, want * 2, want / 2, 1e-6};
    for (size_t k = 0; k < sizeof max / sizeof *max; k++) {
        Clip c = clip_norm(&b.run, &s, max[k]);
        double scale = max[k] > 0 && max[k] < want ? max[k] / want : 1;
        cr_assert(fabs(c.norm - want) <= 1e-12 * want, "norm %.17g, expected %.17g", c.norm, want);
        cr_assert(fabs(c.scale - scale) <= 1e-12 * scale, "scale %.17g, expected %.17g", c.scale, scale);
    }
    /* Any number that is not finite shows, wherever it is, and does not turn into a step of nothing. */
    for (int i = 0; i < NPARAM; i++)
        for (int kind = 0; kind < 2; kind++) {
            real *x = R(part[PARAM_GRAD].t[i]) + tensor_count(part[PARAM_GRAD].t[i]) - 1, keep = *x;
            *x = kind ? (real)NAN : (real)-INFINITY;
            Clip c = clip_norm(&b.run, &s, 1.0);
            cr_assert(!isfinite(c.norm) && isnan(c.scale), "tensor %d: norm %g, scale %g", i, c.norm, c.scale);
            *x = keep;
        }
    params_free(&s);
    parts_close(part);
    bench_close(&b);
}

/* The formula, one number at a time, in f64, the textbook's way: corrected moments first. */
static void adamw_number(double x[PARTS], const OptimCfg *c, bool decays, double lr, double gscale, int64_t t) {
    double g = x[PARAM_GRAD] * gscale, decay = decays ? c->weight_decay : 0;
    x[MEAN] = c->beta1 * x[MEAN] + (1 - c->beta1) * g;
    x[SQUARE] = c->beta2 * x[SQUARE] + (1 - c->beta2) * g * g;
    double m = x[MEAN] / (1 - pow(c->beta1, (double)t)), v = x[SQUARE] / (1 - pow(c->beta2, (double)t));
    x[PARAM_WEIGHT] = x[PARAM_WEIGHT] * (1 - lr * decay) - lr * m / (sqrt(v) + c->eps);
}

Test(optim, adamw_is_its_formula) {
    static const OptimCfg cfgs[] = {{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
                                    {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6},
                                    {.eps = 1e-3, .weight_decay = 0.5},
                                    {.beta1 = 0.5, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 2}};
    const int64_t ts[] = {1, 2, 10, 1000, 1000000};
    double worst = 0;
    Bench b;
    bench_open(&b, 2);
    for (size_t ic = 0; ic < sizeof cfgs / sizeof *cfgs; ic++)
        for (size_t it = 0; it < sizeof ts / sizeof *ts; it++) {
            Part part[PARTS] = {0}, want[PARTS] = {0};
            double lr = 3e-3, gscale = it % 2 ? 0.25 : 1;
            parts_open(part, ic * 10 + it, SIZES);
            parts_open(want, ic * 10 + it, SIZES);
            Params s = collect(part);
            optimizer_step(&b.run, &s, &(OptimizerCfg){.set = &cfgs[ic]}, lr, gscale, ts[it]);
            for (int i = 0; i < NPARAM; i++)
                for (size_t j = 0; j < tensor_count(part[0].t[i]); j++) {
                    double x[PARTS];
                    for (int role = 0; role < PARTS; role++) x[role] = (double)R(want[role].t[i])[j];
                    adamw_number(x, &cfgs[ic], decl[i].decays, lr, gscale, ts[it]);
                    for (int role = 0; role < PARTS; role++) {
                        double got = (double)R(part[role].t[i])[j];
                        double error = fabs(got - x[role]) / (SIZES[role] + fabs(x[role]));
                        if (!(error <= worst)) worst = error;
                        cr_assert(error <= ROUNDING,
                                  "settings %zu, t %lld, %s, role %d, number %zu: %.9g, expected %.9g", ic,
                                  (long long)ts[it], s.p[i].name, role, j, got, x[role]);
                    }
                }
            params_free(&s);
            parts_close(part);
            parts_close(want);
        }
    printf("adamw: worst relative error %.3g\n", worst);
    bench_close(&b);
}

static const OptimCfg USUAL = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
Test(optim, a_step_does_not_depend_on_threads) {
    Part part[3][PARTS] = {0};
    for (int k = 0; k < 3; k++) {
        Bench b;
        bench_open(&b, k + 1);
        parts_open(part[k], 4, SIZES);
        Params s = collect(part[k]);
        for (int64_t t = 1; t <= 3; t++)
            optimizer_step(&b.run, &s, &(OptimizerCfg){.set = &USUAL}, 1e-2, clip_norm(&b.run, &s, 0.1).scale, t);
        params_free(&s);
        bench_close(&b);
    }
    for (int k = 1; k < 3; k++)
        for (int role = 0; role < PARTS; role++)
            CHECK_BYTES("region", part[k][role].mem.base, part[0][role].mem.base, part[0][role].mem.size);
}

/* Six steps with clipping, a schedule and a decayed and an undecayed tensor, by torch in f64; see make_adamw.py, whose
 * formulas for the start and the gradients stand here again. */
Test(optim, adamw_is_torchs) {
    enum { STEPS = 6, NUMBERS = 17 };
    const int dims[2][2] = {{3, 4}, {5}}, count[2] = {12, 5};
    real w[NUMBERS], g[NUMBERS], m[NUMBERS] = {0}, v[NUMBERS] = {0};
    Bench b;
    Params s = {0};
    bench_open(&b, 1);
    real *roles[PARAM_ROLES] = {w, g}, *states[] = {m, v};
    for (int role = 0; role < PARAM_ROLES; role++) {
        Fields f = params_visitor(&s, (ParamRole)role);
        Tensor matrix = {.p = roles[role]}, gain = {.p = roles[role] + 12};
        field_declare(&f, &matrix, "matrix", 0, 2, dims[0]);
        field_declare(&f, &gain, "gain", FIELD_NODECAY, 1, dims[1]);
    }
    optimizer_declare(&s, &USUAL);
    for (int k = 0; k < 2; k++) s.p[0].state[k].t.p = states[k], s.p[1].state[k].t.p = states[k] + 12;
    for (int k = 0, at = 0; k < 2; k++)
        for (int i = 0; i < count[k]; i++, at++) w[at] = (real)sin(1.0 + 0.7 * i + 3.0 * k);

    char *golden = check_read("tests/golden/adamw.txt", NULL), *next = golden;
    double worst = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0, at = 0; k < 2; k++)
            for (int i = 0; i < count[k]; i++, at++)
                g[at] = (real)(0.9 * cos(0.3 * step + 1.1 * i + 2.0 * k) / (1 + step));
        cr_assert_eq(strtol(next, &next, 10), step, "golden file, step %d", step);
        double lr = strtod(next, &next), norm = strtod(next, &next);
        Clip c = clip_norm(&b.run, &s, 1.25);
        cr_assert(fabs(c.norm - norm) <= ROUNDING * norm, "step %d: norm %.17g, torch %.17g", step, c.norm, norm);
        optimizer_step(&b.run, &s, &(OptimizerCfg){.set = &USUAL}, lr, c.scale, step + 1);
        for (int at = 0; at < NUMBERS; at++) {
            double want = strtod(next, &next), error = fabs((double)w[at] - want);
            if (!(error <= worst)) worst = error;
            cr_assert(error <= ROUNDING, "step %d, number %d: %.17g, torch %.17g", step, at, (double)w[at], want);
        }
    }
    cr_assert(!strcmp(next, "\n"), "golden file: more than is expected");
    printf("adamw: worst difference from torch %.3g\n", worst);
    free(golden);
    params_free(&s);
    bench_close(&b);
}
