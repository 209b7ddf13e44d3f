/* test_optimizers.c: every optimizer of the table against its paper's rule, typed again in double, and against what the
 * house promises of all: memory as planned, the same bits by ranks and after a resume, states in bf16 rounded once,
 * adapters. An entry of the table without a rule here fails. */
#include "tests/lib/dist.h"
#include "tests/lib/trial.h"
#include "model/files/safetensors.h"

/* ---- the rules ----------------------------------------------------------------------------------------------------
 */

enum { MOST = 48, STEPS = 5 };
typedef struct {
    int rows, cols; /* rows 0: no matrix */
    int n;
    bool decays;
    double w[MOST], g[MOST], a[MOST], b[MOST], x[MOST]; /* a, b: the states in order; x: another form of w */
} Ref;
typedef struct {
    double lr, gscale, share; /* share: of the step in a mean over steps */
    int t;
} RefStep;

static void adamw_rule(Ref *r, const OptimCfg *c, const RefStep *s) {
    for (int i = 0; i < r->n; i++) {
        double g = r->g[i] * s->gscale;
        r->a[i] = c->beta1 * r->a[i] + (1 - c->beta1) * g;
        r->b[i] = c->beta2 * r->b[i] + (1 - c->beta2) * g * g;
        double m = r->a[i] / (1 - pow(c->beta1, s->t)), v = r->b[i] / (1 - pow(c->beta2, s->t));
        r->w[i] -= s->lr * (m / (sqrt(v) + c->eps) + (r->decays ? c->weight_decay * r->w[i] : 0));
    }
}
static void lion_rule(Ref *r, const OptimCfg *c, const RefStep *s) {
    for (int i = 0; i < r->n; i++) {
        double g = r->g[i] * s->gscale, u = c->beta1 * r->a[i] + (1 - c->beta1) * g;
        r->w[i] -= s->lr * ((u > 0) - (u < 0) + (r->decays ? c->weight_decay * r->w[i] : 0));
        r->a[i] = c->beta2 * r->a[i] + (1 - c->beta2) * g;
    }
}
/* a: z; w: x, the mean, of which y follows. */
static void schedule_free_rule(Ref *r, const OptimCfg *c, const RefStep *s) {
    for (int i = 0; i < r->n; i++) {
        if (s->t == 1) r->a[i] = r->w[i];
        double g = r->g[i] * s->gscale, y = (1 - c->beta1) * r->a[i] + c->beta1 * r->w[i],
               rate = s->lr * sqrt(1 - pow(c->beta2, s->t));
        r->b[i] = c->beta2 * r->b[i] + (1 - c->beta2) * g * g;
        r->a[i] -= rate * g / (sqrt(r->b[i]) + c->eps) + rate * (r->decays ? c->weight_decay : 0) * y;
        r->w[i] = (1 - s->share) * r->w[i] + s->share * r->a[i];
        r->x[i] = (1 - c->beta1) * r->a[i] + c->beta1 * r->w[i];
    }
}
static void muon_rule(Ref *r, const OptimCfg *c, const RefStep *s) {
    const int R_ = r->rows, C = r->cols;
    double x[MOST], gram[MOST * MOST], next[MOST], norm = 0;
    for (int i = 0; i < r->n; i++) {
        r->a[i] = c->muon_momentum * r->a[i] + s->gscale * r->g[i];
        x[i] = c->muon_nesterov ? c->muon_momentum * r->a[i] + s->gscale * r->g[i] : r->a[i];
        norm += x[i] * x[i];
    }
    for (int i = 0; i < r->n; i++) x[i] /= sqrt(norm) + 1e-7;
    for (int k = 0; k < c->muon_steps; k++) { /* X <- a X + b (X X^T) X + c (X X^T)^2 X */
        for (int i = 0; i < R_; i++)
            for (int j = 0; j < R_; j++) {
                gram[i * R_ + j] = 0;
                for (int t = 0; t < C; t++) gram[i * R_ + j] += x[i * C + t] * x[j * C + t];
            }
        for (int i = 0; i < R_; i++)
            for (int j = 0; j < C; j++) {
                next[i * C + j] = 3.4445 * x[i * C + j];
                for (int t = 0; t < R_; t++) {
                    double square = 0;
                    for (int u = 0; u < R_; u++) square += gram[i * R_ + u] * gram[u * R_ + t];
                    next[i * C + j] += (-4.7750 * gram[i * R_ + t] + 2.0315 * square) * x[t * C + j];
                }
            }
        memcpy(x, next, sizeof x);
    }
    const double size = c->muon_scale * sqrt(R_ > C ? R_ : C);
    for (int i = 0; i < r->n; i++) r->w[i] -= s->lr * (size * x[i] + c->weight_decay * r->w[i]);
}
static const struct {
    const char *name;
    void (*rule)(Ref *, const OptimCfg *, const RefStep *);
    bool beta2; /* it reads optim.beta2, or AdamW does for the weights that it leaves */
} rules[] = {{"adamw", adamw_rule, true},
             {"muon", muon_rule, true},
             {"lion", lion_rule, true},
             {"schedule_free", schedule_free_rule, true}};
static int rule_of(const Optimizer *o) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!strcmp(rules[i].name, o->name)) return (int)i;
    cr_assert_fail("optimizer %s has no rule here", o->name);
    return 0;
}

enum { TENSORS = 4 };
static const struct {
    const char *name;
    unsigned flags;
    int rank, n[2];
} decl[TENSORS] = {{"matrix", 0, 2, {6, 8}},
                   {"tall", 0, 2, {7, 5}},
                   {"table", FIELD_TABLE, 2, {9, 4}},
                   {"gain", FIELD_NODECAY, 1, {11}}};

/* Steps by the table and by the rules, whose settings are `wrong`: the largest difference of a weight or state. */
static double worst_after(int kind, const OptimCfg *c, const OptimCfg *wrong) {
    static real mem[PARAM_ROLES][TENSORS][MOST];
    static Ref ref[TENSORS];
    Device *dev;
    Err e = {0};
    Params p = {0};
    Arena state[STATES_MAX] = {{0}}, dry = {.name = "scratch"}, scratch = {0};
    const Optimizer *o = optimizers[kind];
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    for (int role = 0; role < PARAM_ROLES; role++) {
        Fields f = params_visitor(&p, (ParamRole)role);
        for (int i = 0; i < TENSORS; i++) {
            Tensor t = {.p = mem[role][i]};
            field_declare(&f, &t, decl[i].name, decl[i].flags, decl[i].rank, decl[i].n);
        }
    }
    optimizer_declare(&p, c);
    cr_assert(states_open(&p, state, o, dev, true, false, &e), "%s", e.msg);
    memset(ref, 0, sizeof ref);
    for (int i = 0; i < TENSORS; i++) {
        Ref *r = &ref[i];
        r->n = (int)tensor_count(p.p[i].t[0]);
        r->rows = decl[i].n[0], r->cols = decl[i].n[1];
        r->decays = param_decays(&p.p[i]);
        for (int k = 0; k < r->n; k++) r->w[k] = mem[0][i][k] = (real)rng_normal(rng_mix(1, (uint64_t)i), (uint64_t)k);
    }
    OptimizerCfg how = {.set = c, .seed = 3};
    Run run = run_make(dev, &dry);
    optimizer_step(&run, &p, &how, 0, 1, 1), optimizer_exchange(&run, &p);
    cr_assert(arena_open(&scratch, "scratch", dry.peak, true, &e), "%s", e.msg);
    run = run_make(dev, &scratch);
    optimizer_begin(&run, &p);
    optimizer_exchange(&run, &p);
    double averaged = 0;
    for (int t = 1; t <= STEPS; t++) {
        RefStep s = {.lr = 0.01 * t, .gscale = t % 2 ? 0.5 : 1, .t = t};
        const double counts = s.lr * s.lr * (1 - pow(wrong->beta2, t)); /* of schedule-free AdamW */
        averaged += counts;
        s.share = counts / averaged;
        if (o->weight) {
            double sum = 0;
            for (int k = 1; k <= t; k++) sum += o->weight(c, 0.01 * k, k);
            how.share = o->weight(c, s.lr, t) / sum;
        }
        for (int i = 0; i < TENSORS; i++)
            for (int k = 0; k < ref[i].n; k++)
                ref[i].g[k] = mem[1][i][k] = (real)rng_normal(rng_mix((uint64_t)(10 + t), (uint64_t)i), (uint64_t)k);
        optimizer_step(&run, &p, &how, s.lr, s.gscale, t);
        for (int i = 0; i < TENSORS; i++) rules[rule_of(p.p[i].by)].rule(&ref[i], wrong, &s);
    }
    optimizer_exchange(&run, &p);
    double worst = 0;
    for (int i = 0; i < TENSORS; i++) {
        const double *want[] = {ref[i].w, ref[i].a, ref[i].b, ref[i].x};
        for (int k = -1; k < 3; k++) {
            const Tensor t = k < 0 ? p.p[i].t[PARAM_WEIGHT] : p.p[i].state[k].t;
            for (size_t at = 0; at < tensor_count(t); at++) {
                double off = fabs((double)R(t)[at] - want[k + 1][at]);
                if (!(off <= worst)) worst = off;
            }
        }
        cr_assert(!present(p.p[i].state[3].t), "more states than the rules have");
    }
    params_free(&p);
    states_close(state);
    arena_close(&scratch);
    device_close(dev);
    return worst;
}

static OptimCfg usual(int kind) {
    const Optimizer *o = optimizers[kind];
    return (OptimCfg){.kind = kind,
                      .beta1 = o->beta1 > 0 ? o->beta1 : 0.9,
                      .beta2 = o->beta2 > 0 ? o->beta2 : 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .muon_momentum = 0.95,
                      .muon_scale = 0.2,
                      .muon_nesterov = true,
                      .muon_steps = 5};
}
Test(optimizers, each_is_its_papers_rule) {
    const double bound = REAL == F64 ? 1e-10 : 1e-4;
    for (int k = 0; optimizers[k]; k++) {
        OptimCfg c = usual(k), wrong = c;
        cr_assert_str_eq(optimizers[k]->name, optimizer_names[k]);
        const double worst = worst_after(k, &c, &c);
        printf("%s: worst difference from its rule %.2g\n", optimizers[k]->name, worst);
        cr_assert(worst <= bound, "%s: %g", optimizers[k]->name, worst);
        for (int what = 0; what < 3; what++) { /* a mistake is found */
            wrong = c;
            if (what == 0) wrong.beta1 -= 0.1, wrong.muon_momentum -= 0.1;
            if (what == 1) wrong.beta2 -= 0.02;
            if (what == 2) wrong.weight_decay += 0.1;
            const double off = worst_after(k, &c, &wrong);
            const bool read = what != 1 || rules[rule_of(optimizers[k])].beta2;
            cr_assert(read ? off > 10 * bound : off <= bound, "%s: mistake %d of its settings moves weights by %g",
                      optimizers[k]->name, what, off);
        }
    }
    cr_assert(!optimizer_names[sizeof rules / sizeof *rules], "a rule without an optimizer");
}

/* ---- what the house promises --------------------------------------------------------------------------------------
 */

static const char yaml[] = "run: {dir: '%s', seed: 3, threads: 1}\n"
                           "model:\n"
                           "  d_model: 16\n"
                           "  layers: 2\n"
                           "  kinds: {full: {mixer: mamba2, head_dim: 8, state_size: 8}}\n"
                           "  ffn: {kind: swiglu, hidden: 24}\n"
                           "data: {train: '%s', val_fraction: 0.2, seq_len: 16}\n"
                           "train: {dtype: f32, steps: 8, batch: 4, micro_batch: 2}\n"
                           "optim: {lr: 0.02, warmup: 2, clip: 0.5, weight_decay: 0.3, schedule: constant}\n";
static Trainer *open_with(Config *cfg, int kind, bool bf16, bool adapters) {
    char *name = xformat("optim.kind=%s", optimizer_names[kind]);
    const char *over[] = {name, bf16 ? "optim.state_dtype=bf16" : "optim.state_dtype=f32",
                          adapters ? "lora.rank=2" : "lora.rank=0"};
    Trainer *t = trial_open(cfg, yaml, 3, over);
    if (adapters) lora_begin(&t->lora, 3);
    free(name);
    return t;
}
static void step(Trainer *t) {
    TrainRecord r = {0};
    Err e = {0};
    cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
}
static void same_state(const char *what, Trainer *t, Trainer *u) {
    const Params *p = trainer_state(t), *q = trainer_state(u);
    Err e = {0};
    cr_assert(trainer_weights(t, &e) && trainer_weights(u, &e), "%s", e.msg);
    for (int i = 0; i < p->n; i++) {
        const Tensor w = p->p[i].t[PARAM_WEIGHT];
        CHECK_BYTES(what, q->p[i].t[PARAM_WEIGHT].p, w.p, tensor_bytes(w));
        for (int k = 0; k < STATES_MAX; k++) {
            const Tensor x = p->p[i].state[k].t;
            if (present(x)) CHECK_BYTES(p->p[i].name, q->p[i].state[k].t.p, x.p, tensor_bytes(x));
        }
    }
}

/* The bytes that --plan prints are those of the declared states, each up to a multiple of 64, and 64 of guard. */
Test(optimizers, memory_is_as_planned) {
    for (int k = 0; optimizers[k]; k++)
        for (int how = 1; how < 3; how++) { /* states in bf16; adapters */
            Config cfg;
            Trainer *t = open_with(&cfg, k, how & 1, how & 2);
            const Params *p = trainer_state(t);
            Regions r;
            trainer_regions(t, false, &r);
            for (int s = 0, at = 3 - 1; s < STATES_MAX; s++) {
                size_t bytes = 0;
                for (int i = 0; i < p->n; i++) {
                    const Param *x = &p->p[i];
                    if (x->frozen || !present(x->state[s].t)) continue;
                    const bool wide =
                        !(how & 1) || x->flags & FIELD_F32 || *x->state[s].name == 'z' || *x->state[s].name == 'y';
                    bytes += (tensor_count(x->t[0]) * (wide ? sizeof(real) : 2) + 63) / 64 * 64 + 64;
                }
                const char *name = states_memory(optimizers[k], s);
                cr_assert(name || !bytes);
                if (!name) continue;
                char key[32];
                snprintf(key, sizeof key, "%s", name);
                for (char *c = key; *c; c++) *c = *c == ' ' ? '_' : *c;
                cr_assert_str_eq(r.region[at].name, key);
                cr_assert_eq(r.region[at].bytes, bytes, "%s, %s: %zu bytes, expected %zu", optimizer_names[k], key,
                             r.region[at].bytes, bytes);
                at++;
            }
            trial_close(t, &cfg);
        }
}

/* The second half from a checkpoint: the same bytes, with and without adapters, with states in bf16 or not. A
 * validation in between changes nothing. */
Test(optimizers, resume_is_bitwise) {
    for (int k = 0; optimizers[k]; k++)
        for (int how = 1; how < 3; how++) { /* states in bf16; adapters */
            Config a, b;
            Trainer *t = open_with(&a, k, how & 1, how & 2), *u = open_with(&b, k, how & 1, how & 2);
            Err e = {0};
            ValRecord v;
            char *run = xformat("%s-%d-%d", a.run.dir, k, how);
            cr_assert(run_dir_open(&t->run->dir, run, false, &e), "%s", e.msg);
            for (int i = 0; i < 6; i++) {
                step(t);
                if (i == 2) cr_assert(checkpoint_save(t, &e), "%s", e.msg);
                if (i == 4) cr_assert(trainer_validate(t, &v, &e), "%s", e.msg);
            }
            char *dir = run_dir_step(&t->run->dir, 3);
            if (optimizers[k]->weight) { /* a sum that is lost is missed */
                char *lose = xformat("sed 's/\"averaged\"/\"other\"/' -i '%s/trainer/state.json'", dir),
                     *back = xformat("sed 's/\"other\"/\"averaged\"/' -i '%s/trainer/state.json'", dir);
                cr_assert_eq(system(lose), 0);
                cr_assert(!checkpoint_load(u, dir, &e) && strstr(e.msg, "\"averaged\" is missing"), "%s", e.msg);
                cr_assert_eq(system(back), 0);
                free(lose), free(back);
                e = (Err){0};
            }
            cr_assert(checkpoint_load(u, dir, &e), "%s", e.msg);
            for (int i = 0; i < 3; i++) step(u);
            same_state(optimizer_names[k], u, t);
            free(dir), free(run);
            run_dir_close(&t->run->dir);
            trial_close(u, &b);
            trial_close(t, &a);
        }
}

/* After one step from zero what is stored in bf16 is a neighbour of what f32 has, and weights are the same bits. */
Test(optimizers, states_in_bf16_are_rounded_once) {
    for (int k = 0; optimizers[k]; k++) {
        Config a, b;
        Trainer *t = open_with(&a, k, false, false), *u = open_with(&b, k, true, false);
        int is_bf16 = 0;
        step(t), step(u);
        for (int i = 0; i < t->params.n; i++) {
            const Param *p = &t->params.p[i], *q = &u->params.p[i];
            CHECK_BYTES(p->name, q->t[PARAM_WEIGHT].p, p->t[PARAM_WEIGHT].p, tensor_bytes(p->t[PARAM_WEIGHT]));
            for (int s = 0; s < STATES_MAX; s++) {
                const Tensor x = p->state[s].t, y = q->state[s].t;
                if (y.dtype != BF16) continue;
                is_bf16++;
                for (size_t at = 0; at < tensor_count(x); at++) {
                    const double want = (double)R(x)[at], got = (double)bf16_to(((const uint16_t *)y.p)[at]);
                    cr_assert(fabs(got - want) <= 0x1.01p-7 * fabs(want) + 1e-38, "%s of %s: %g became %g",
                              p->state[s].name, p->name, want, got);
                }
            }
        }
        cr_assert(is_bf16 > 10);
        trial_close(u, &b);
        trial_close(t, &a);
    }
}

/* Two ranks, which share the states, do what one does. */
Test(optimizers, two_ranks_are_one, .timeout = 120) {
    for (int k = 0; optimizers[k]; k++) {
        char *kind = xformat("optim.kind=%s", optimizer_names[k]);
        DistJob j = {.config = "configs/tiny-gqa.yaml",
                     .steps = 5,
                     .over = {"train.batch=2", "train.micro_batch=1", kind, "optim.schedule=constant", "train.steps=60",
                              "dist.stage=0"}};
        DistRun one[1], two[2];
        dist_train(&j, 1, one);
        for (int stage = 0; stage < 3; stage++) {
            static const char *const stages[] = {"dist.stage=0", "dist.stage=1", "dist.stage=2"};
            j.over[5] = stages[stage];
            dist_train(&j, 2, two);
            for (int r = 0; r < 2; r++) dist_same_run(optimizer_names[k], &j, &two[r], one);
            if (stage)
                for (int m = 0; m < two[0].mapped.n; m++) {
                    const char *name = states_memory(optimizers[k], 0);
                    if (strncmp(two[0].mapped.region[m].name, name, strcspn(name, " "))) continue;
                    cr_assert(two[0].mapped.region[m].bytes < one->mapped.region[m].bytes * 3 / 4, "%s: %zu of %zu",
                              name, two[0].mapped.region[m].bytes, one->mapped.region[m].bytes);
                    break;
                }
            dist_free(2, two);
        }
        dist_free(1, one);
        free(kind);
    }
}

/* Of schedule-free AdamW: the weights that are evaluated are the mean, those of steps another point, and each can be
 * had from the other without a bit lost. */
Test(optimizers, two_forms_of_weights) {
    int k = 0, found = 0;
    for (; optimizers[k]; k++) {
        if (!optimizers[k]->other) continue;
        Config cfg;
        Err e = {0};
        Trainer *t = open_with(&cfg, k, false, false);
        for (int i = 0; i < 4; i++) step(t);
        const Tensor w = t->params.p[0].t[PARAM_WEIGHT];
        char *stepping = xcalloc(tensor_bytes(w), 1), *rest = xcalloc(tensor_bytes(w), 1);
        memcpy(stepping, w.p, tensor_bytes(w));
        cr_assert(t->stepping && trainer_weights(t, &e) && !t->stepping);
        memcpy(rest, w.p, tensor_bytes(w));
        cr_assert(memcmp(stepping, rest, tensor_bytes(w)), "one form");
        CHECK_BYTES("the other form", t->params.p[0].state[optimizers[k]->other - 1].t.p, stepping, tensor_bytes(w));
        cr_assert(trainer_weights(t, &e));
        CHECK_BYTES("asked for again", w.p, rest, tensor_bytes(w));
        cr_assert(t->run->state.averaged > 0);
        free(stepping), free(rest);
        trial_close(t, &cfg);
        found++;
    }
    cr_assert(found > 0);
}

Test(optimizers, what_does_not_go_together_is_refused) {
    char names[400] = "optim.kind: expected one of";
    for (int k = 0; optimizers[k]; k++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s %s", k ? "," : "", optimizers[k]->name);
    const struct {
        const char *over[2], *says;
    } bad[] = {
        {{"optim.kind=schedule_free", "optim.schedule=cosine"},
         "optim.schedule: schedule_free replaces a schedule; give constant"},
        {{"optim.kind=schedule_free", "stages=[{name: a, steps: 3}, {name: b, steps: 5}]"},
         "optim.kind: schedule_free keeps one mean over the whole run, which has stages; remove them"},
        {{"optim.kind=lyon", "optim.schedule=constant"}, names},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Config cfg;
        Err e = {0};
        char *all = xformat(yaml, "runs/none", "none.txt");
        cr_assert(!config_parse(&cfg, all, strlen(all), "yaml", 2, (char *const *)bad[i].over, &e));
        cr_assert(e.status == EXIT_INPUT && strstr(e.msg, bad[i].says), "%s", e.msg);
        free(all);
    }
    Config cfg;
    trial_config(&cfg, yaml, 1, (const char *[]){"optim.kind=lion"});
    cr_assert(cfg.optim.beta1 == 0.9 && cfg.optim.beta2 == 0.99);
    config_free(&cfg);
    trial_config(&cfg, yaml, 2, (const char *[]){"optim.kind=lion", "optim.beta2=0.95"});
    cr_assert(cfg.optim.beta2 == 0.95);
    config_free(&cfg);
    trial_config(&cfg, yaml, 2,
                 (const char *[]){"optim.kind=lion", "stages=[{name: a, steps: 8, set: {optim.lr: 2e-4}}]"});
    cr_assert(cfg.stage[0].cfg->optim.beta2 == 0.99 && cfg.stage[0].cfg->optim.kind == cfg.optim.kind);
    config_free(&cfg);
}
