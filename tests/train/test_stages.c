/* Stages: what they may set and what that means, what a resumed run may change of them; the loss on compression, from
 * its formula to a step of a model whose layers report made-up decisions. */
#include "tests/lib/check.h"
#include "tests/lib/trial.h"
#include "model/files/safetensors.h"
#include "train/compression.h"
#include "train/stages.h"

#ifdef KV_DOUBLE
    #define TOL 1e-12
#else
    #define TOL 1e-6
#endif

#define MODEL                                                                                               \
    "run: {dir: r, seed: 3, threads: 1}\n"                                                                  \
    "model: {d_model: 16, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 8}}\n" \
    "data: {train: x.txt, seq_len: 16}\n"                                                                   \
    "train: {batch: 4, micro_batch: 2, dtype: f32}\n"                                                       \
    "optim: {lr: 0.02, warmup: 2}\n"
static Config one, two;

static bool parse(Config *c, const char *stages, const char *override, Err *e) {
    char *over[] = {(char *) override}, *text = xformat(MODEL "stages:%s\n", stages);
    bool ok = config_parse(c, text, strlen(text), "run.yaml", override ? 1 : 0, over, e);
    free(text);
    return ok;
}

/* ---- settings -------------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *stages, *override, *says;
} refusals[] = {
    {" []", NULL, "run.yaml:6: stages: expected a list of 1 to 64 maps"},
    {" {name: a, steps: 3}", NULL, "run.yaml:6: stages: expected a list of 1 to 64 maps"},
    {" [a]", NULL, "stages.0: expected a map {name: NAME, steps: N, set: {...}}, got a plain value"},
    {" [{name: a}]", NULL, "stages.0.steps: required"},
    {" [{steps: 3}]", NULL, "stages.0.name: required"},
    {" [{name: a, steps: 0}]", NULL, "stages.0.steps: expected a whole number from 1 to 1000000000000, got 0"},
    {" [{name: a, steps: 3, sets: {}}]", NULL, "stages.0.sets: unknown key; did you mean stages.0.set?"},
    {" [{name: a b, steps: 3}]", NULL, "stages.0: name: expected 1 to 31 letters"},
    {" [{name: '', steps: 3}]", NULL, "stages.0: name: expected 1 to 31 letters"},
    {" [{name: a, steps: 3}, {name: a, steps: 3}]", NULL, "stages.1: two stages have the name a"},
    {" [{name: a, steps: 3}]", "train.steps=4", "train.steps: 4, but the stages have 3 together"},
    {" [{name: a, steps: 3, set: x}]", NULL, "stage a: run.yaml:6: set: expected a map of settings, got a plain value"},
    /* every stage is read before anything runs; the line is that of the setting */
    {" [{name: a, steps: 3},\n  {name: b, steps: 3, set: {optim.lrr: 1}}]", NULL,
     "stage b: run.yaml:7: optim.lrr: unknown key; did you mean optim.lr?"},
    {" [{name: a, steps: 3, set: {optm.lr: 1}}]", NULL, "stage a: run.yaml: optm: unknown key; did you mean optim?"},
    {" [{name: a, steps: 3, set: {model.kinds.a.widow: 3}}]", NULL,
     "model.kinds.a.widow: unknown key; did you mean model.kinds.a.window?"},
    {" [{name: a, steps: 3, set: {model.kinds.b.window: 3}}]", NULL, "model.kinds.b.mixer: required"},
    {" [{name: a, steps: 3, set: {optim.lr: fast}}]", NULL, "optim.lr: expected a number"},
    {" [{name: a, steps: 3, set: {optim.lr.x: 1}}]", NULL, "optim.lr: is a plain value here and has no 'x'"},
    {" [{name: a, steps: 3, set: {optim..lr: 1}}]", NULL, "an empty name in the key"},
    {" [{name: a, steps: 3, set: {train.micro_batch: 3}}]", NULL,
     "train.micro_batch: 3 does not divide train.batch, 4"},
    {" [{name: a, steps: 3, set: {optim.warmup: 4}}]", NULL, "optim.warmup: 4 is more than train.steps, 3"},
    {" [{name: a, steps: 3, set: {data.seq_len: 32}}]", NULL, "data.seq_len: 32 is more than model.max_positions, 16"},
    {" [{name: a, steps: 3, set: {optim.schedule: wsd}}]", NULL, "optim.decay_steps: schedule wsd needs the length"},
    {" [{name: a, steps: 3, set: {optim: {schedule: wsd, decay_steps: 2}}}]", NULL,
     "optim.decay_steps: 2 steps of decay after 2 of optim.warmup are more than train.steps, 3"},
    {" [{name: a, steps: 3, set: {optim: {schedule: linear, min_lr: 1}}}]", NULL, "optim.min_lr: 1 is more than"},
    {" [{name: a, steps: 3, set: {train.compression: 0.5}}]", NULL,
     "train.compression.target: expected a number from 1 to 1000000, got 0.5"},
    /* what is the run's */
    {" [{name: a, steps: 3, set: {train.steps: 3}}]", NULL, "train.steps: is the stage's own `steps`"},
    {" [{name: a, steps: 3, set: {train: {steps: 3}}}]", NULL, "train.steps: is the stage's own `steps`"},
    {" [{name: a, steps: 3, set: {train.max_seconds: 3}}]", NULL, "train.max_seconds: belongs to the run as a whole"},
    {" [{name: a, steps: 3, set: {optim.state_dtype: bf16}}]", NULL,
     "optim.state_dtype: belongs to the run as a whole"},
    {" [{name: a, steps: 3, set: {run.seed: 3}}]", NULL, "run.seed: belongs to the run as a whole"},
    {" [{name: a, steps: 3, set: {run: {dir: x}}}]", NULL, "run: belongs to the run as a whole"},
    {" [{name: a, steps: 3, set: {data: {tokenizer: byte}}}]", NULL, "data.tokenizer: belongs to the run as a whole"},
    {" [{name: a, steps: 3, set: {model: {vocab: 300}}}]", NULL, "model.vocab: belongs to the run as a whole"},
    {" [{name: a, steps: 3, set: {init_from: x}}]", NULL, "init_from: belongs to the run as a whole"},
    {" [{name: a, steps: 3, set: {stages: []}}]", NULL, "stages: belongs to the run as a whole"},
    {" [{name: a, steps: 3, set: {data: null}}]", NULL, "data: expected a map of settings, got null"},
    {" [{name: a, steps: 3, set: {optim: 3}}]", NULL, "optim: expected a map of settings, got a plain value"},
};
ParameterizedTestParameters(stages, refused) {
    static size_t index[sizeof refusals / sizeof *refusals];
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) index[i] = i;
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}
ParameterizedTest(size_t *i, stages, refused) {
    static const Config zero;
    Err e = {0};
    cr_assert_not(parse(&one, refusals[*i].stages, refusals[*i].override, &e), "accepted: %s", refusals[*i].stages);
    cr_assert(e.status == EXIT_INPUT && strlen(e.msg) <= 300 && strstr(e.msg, refusals[*i].says),
              "%s\n  says     %s\n  expected %s", refusals[*i].stages, e.msg, refusals[*i].says);
    CHECK_BYTES("after a failure", &one, &zero, sizeof zero);
}

/* All ways to name a key, and texts that YAML would take for other things between braces. */
static const char three[] =
    "\n"
    "  - {name: first, steps: 5}\n"
    "  - name: two_2\n"
    "    steps: 3\n"
    "    set:\n"
    "      optim.lr: 3e-5\n"
    "      optim: {warmup: 0, schedule: linear, min_lr: 0}\n"
    "      model.kinds.a: {window: 8, rope.theta: 500}\n"
    "      model: {kinds: {a: {sinks: 2}}, ffn.hidden: 8}\n"
    "      data.train: [a, 'b, c', \"12\"]\n"
    "      train.sample_prompt: a, b}#c\n"
    "      data.seq_len: 8\n"
    "  - {name: no, steps: 4, set: {train.batch: 8, data.val: '12', train.compression: {target: 4, ramp: false}}}\n";

Test(stages, are_the_run_with_something_set) {
    Err e = {0};
    cr_assert(parse(&one, three, NULL, &e), "%s", e.msg);
    cr_assert(one.nstages == 3 && config_stages(&one) == 3 && one.train.steps == 12 && one.optim.lr == 0.02);
    Stage a = config_stage(&one, 0), b = config_stage(&one, 1), c = config_stage(&one, 2);
    cr_assert(!strcmp(a.name, "first") && a.first == 0 && a.steps == 5 && a.cfg->train.steps == 5);
    cr_assert(!strcmp(b.name, "two_2") && b.first == 5 && b.steps == 3 && b.cfg->train.steps == 3);
    cr_assert(!strcmp(c.name, "no") && c.first == 8 && c.steps == 4 && c.cfg->train.steps == 4);
    cr_assert(a.cfg->optim.lr == 0.02 && a.cfg->optim.warmup.n == 2 && a.cfg->data.seq_len == 16 && !a.cfg->nstages);
    cr_assert(b.cfg->optim.lr == 3e-5 && b.cfg->optim.warmup.n == 0 && b.cfg->optim.schedule == SCHEDULE_LINEAR);
    cr_assert(b.cfg->data.ntrain == 3 && !strcmp(b.cfg->data.train[1].path, "b, c") && b.cfg->data.seq_len == 8);
    cr_assert(b.cfg->model.max_positions == 16 && !strcmp(b.cfg->train.sample_prompt, "a, b}#c"));
    char *json = model_cfg_json(&b.cfg->model);
    cr_assert(strstr(json, "\"window\": 8") && strstr(json, "\"sinks\": 2") && strstr(json, "\"theta\": 500") &&
                  strstr(json, "\"heads\": 2"),
              "%s", json);
    free(json);
    /* a stage begins from the run's settings, not from those of the stage before it */
    cr_assert(c.cfg->optim.lr == 0.02 && c.cfg->train.batch == 8 && c.cfg->data.ntrain == 1 &&
              c.cfg->data.seq_len == 16);
    cr_assert(!strcmp(c.cfg->data.val, "12") && c.cfg->train.compression.target == 4 && !c.cfg->train.compression.ramp);
    cr_assert(c.cfg->train.compression.weight == 1 && one.train.compression.target == 1);

    static const int at[][2] = {{0, 0}, {1, 0}, {5, 0}, {6, 1}, {8, 1}, {9, 2}, {12, 2}, {99, 2}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        cr_assert_eq(config_stage_at(&one, at[i][0]), at[i][1], "step %d", at[i][0]);
    static const int read[][3] = {{0, 0, 0}, {5, 20, 320}, {6, 24, 352}, {8, 32, 416}, {9, 40, 544}, {12, 64, 928}};
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        int64_t samples, tokens;
        config_position(&one, read[i][0], &samples, &tokens);
        cr_assert(samples == read[i][1] && tokens == read[i][2], "step %d: %lld samples, %lld tokens", read[i][0],
                  (long long)samples, (long long)tokens);
    }

    /* the resolved text says the same, and again */
    char *text = config_text(&one);
    cr_assert(config_parse(&two, text, strlen(text), "resolved", 0, NULL, &e), "%s\n%s", e.msg, text);
    char *again = config_text(&two);
    cr_assert_str_eq(again, text);
    for (int k = 0; k < 3; k++) {
        char *x = config_text(one.stage[k].cfg), *y = config_text(two.stage[k].cfg);
        cr_assert_str_eq(x, y);
        free(x), free(y);
    }
    free(text), free(again);
    config_free(&one);
    config_free(&two);
}

Test(stages, none_are_one) {
    Err e = {0};
    static const char plain[] = MODEL "train.x: 1";
    cr_assert(config_parse(&one, plain, strlen(plain) - strlen("train.x: 1"), "run.yaml", 0, NULL, &e), "%s", e.msg);
    Stage s = config_stage(&one, 0);
    cr_assert(config_stages(&one) == 1 && s.cfg == &one && !*s.name && s.first == 0 && s.steps == 2000);
    cr_assert(config_stage_at(&one, 7) == 0);
    config_free(&one);
}

/* ---- resuming -------------------------------------------------------------------------------------------------------
 */

static const struct {
    int64_t step;
    const char *override, *refuses;
} resumes[] = {
    {0, NULL, NULL},
    {7, NULL, NULL},
    {8, NULL, NULL},
    {12, NULL, NULL},
    {7, "train.eval_every=3", NULL},
    {7, "run.dir=elsewhere", NULL},
    {7, "optim.clip=3", "stage first: optim.clip: 3, but the run was begun with 1"},
    /* the stage that is over */
    {7, "stages.0.steps=6", "stages.0.steps: 6, but the run has done 5 steps of stage first"},
    {7, "stages.0.set={optim.lr: 1}", "stage first: optim.lr: 1, but the run was begun with 0.02"},
    {7, "stages.0.set={train.eval_every: 1}", NULL},
    {7, "stages.0.name=second", "stages.0.name: second, but the run was begun with first"},
    /* the stage that the run is in */
    {7, "stages.1.steps=9", NULL},
    {7, "stages.1.steps=2", NULL},
    {7, "stages.1.steps=1", "stages.1.steps: 1, but the run has done 2 steps of stage two_2"},
    {7, "stages.1.set.optim.lr=1", "stage two_2: optim.lr: 1, but the run was begun with"},
    {8, "stages.1.set.optim.lr=1", "stage two_2: optim.lr: 1"},
    {5, "stages.1.set.optim.lr=1", NULL},
    /* those that are to come */
    {7, "stages.2={name: other, steps: 2, set: {optim.lr: 1}}", NULL},
    {8, "stages.2={name: other, steps: 2, set: {optim.lr: 1}}", NULL},
    {9, "stages.2={name: other, steps: 2, set: {optim.lr: 1}}", "stages.2.name: other"},
    {5, "stages=[{name: first, steps: 5}]", NULL},
    {6, "stages=[{name: first, steps: 6}]", "stages: a list of 1, but the run has come to stage 2, two_2"},
    {5, "stages=null", "stages: none, but the run was begun with a list"},
};
ParameterizedTestParameters(stages, resumable) {
    static size_t index[sizeof resumes / sizeof *resumes];
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) index[i] = i;
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}
ParameterizedTest(size_t *i, stages, resumable) {
    Err e = {0};
    const char *over = resumes[*i].override;
    cr_assert(parse(&one, three, NULL, &e) && parse(&two, three, over, &e), "%s", e.msg);
    bool ok = config_resumable(&one, &two, resumes[*i].step, &e);
    if (resumes[*i].refuses)
        cr_assert(!ok && e.status == EXIT_INPUT && strstr(e.msg, resumes[*i].refuses), "%s: %s", over, ok ? "" : e.msg);
    else
        cr_assert(ok, "%s: %s", over ? over : "", e.msg);
    config_free(&one);
    config_free(&two);
}

/* ---- the loss on compression ----------------------------------------------------------------------------------------
 */

static double loss_of(const CompressionCfg *cfg, double progress, int B, const double sum[], const double count[]) {
    double target = cfg->ramp ? 1 + (cfg->target - 1) * progress : cfg->target, loss = 0;
    for (int b = 0; b < B; b++) {
        const double lacks = 1 - 1 / target - sum[b] / count[b];
        const double x = fabs(lacks);
        loss += !cfg->exact ? fmax(0, lacks) : x < 0.05 ? 10 * x * x : x - 0.025;
    }
    return cfg->weight * loss / B;
}

Test(stages, compression_is_its_formula) {
    enum { B = 6 };
    const double sum[B] = {0, 3, 70, 10, 20, 64}, count[B] = {64, 32, 96, 40, 48, 64}; /* 70/96: near 3/4 */
    static const double progress[] = {0, 0.25, 0.999, 1};
    double worst = 0;
    for (int p = 0; p < 4; p++)
        for (int form = 0; form < 4; form++) {
            const bool ramp = form % 2, exact = form / 2;
            const CompressionCfg cfg = {.target = 4, .weight = 0.7, .ramp = ramp, .exact = exact};
            Compression c;
            real stat[B][STATS][2] = {0}, d[B][STATS] = {0};
            for (int b = 0; b < B; b++)
                stat[b][STAT_MERGED][0] = (real)sum[b], stat[b][STAT_MERGED][1] = (real)count[b];
            compression_begin(&c, &cfg, progress[p], B);
            /* in micro-batches of 2 and 4 */
            compression_stat(&c, TENSOR(stat[0], REAL, 2, STATS, 2), TENSOR(d[0], REAL, 2, STATS));
            compression_stat(&c, TENSOR(stat[2], REAL, 4, STATS, 2), TENSOR(d[2], REAL, 4, STATS));
            double want = loss_of(&cfg, progress[p], B, sum, count), cr;
            CHECK_CLOSE("loss", &c.loss, &want, 1, 1e-14);
            for (int b = 0; b < B; b++) {
                double hi[B], lo[B], h = 1e-4, got = (double)d[b][STAT_MERGED];
                memcpy(hi, sum, sizeof hi), memcpy(lo, sum, sizeof lo);
                hi[b] += h, lo[b] -= h;
                double num =
                    (loss_of(&cfg, progress[p], B, hi, count) - loss_of(&cfg, progress[p], B, lo, count)) / 2 / h;
                if (progress[p] == 0 && ramp && b == 0) num = 0; /* at the loss's corner: nothing is asked */
                worst = fmax(worst, fabs(got - num));
                cr_assert(fabs(got - num) <= 1e-8, "progress %g, sequence %d%s: %g, by differences %g", progress[p], b,
                          exact ? ", exact" : "", got, num);
            }
            cr_assert(compression_achieved(&c, &cr) && fabs(cr - 344.0 / (344 - 167)) < 1e-14, "%g", cr);
        }
    printf("compression: worst difference of a derivative %.2g\n", worst);
}

Test(stages, compression_of_nothing) {
    Compression c;
    real stat[2][STATS][2] = {0}, d[2][STATS] = {0};
    const CompressionCfg cfg = {.target = 4, .weight = 1, .ramp = false};
    double cr = -1;
    compression_begin(&c, &cfg, 1, 2);
    compression_stat(&c, TENSOR(stat[0], REAL, 2, STATS, 2), TENSOR(d[0], REAL, 2, STATS));
    cr_assert(!compression_achieved(&c, &cr) && c.loss == 0 && d[0][0] == 0 && d[1][0] == 0);
    stat[1][STAT_MERGED][0] = stat[1][STAT_MERGED][1] = 5;
    compression_stat(&c, TENSOR(stat[0], REAL, 2, STATS, 2), ABSENT); /* a validation: counted, nothing to minimise */
    cr_assert(compression_achieved(&c, &cr) && isinf(cr) && c.loss == 0);
}

/* ---- a model whose layers report ------------------------------------------------------------------------------------
 */

/* Of sample s layer l reports (s * 7 + l * 3) % 11 merged of 2 * rows; the derivatives that backward was given. */
enum { SEEN_MAX = 64 };
static struct {
    int n;
    int64_t sample[SEEN_MAX];
    double d[SEEN_MAX];
    double progress;
} seen;
static const Mixer *gqa;

static void fake_forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    gqa->forward(r, cfg, w, x, kv, s, y);
    if (measuring(r) || !present(r->stat)) return;
    for (int b = 0; b < r->batch->B; b++) {
        real *p = R(r->stat) + ((size_t)b * STATS + STAT_MERGED) * 2;
        p[0] += (real)((r->batch->id[b] * 7 + (uint64_t)r->layer * 3) % 11);
        p[1] += 2 * (real)(r->batch->off[b + 1] - r->batch->off[b]);
    }
}
static void fake_backward(Run *r, const void *cfg, const void *w, void *dw, Tensor x, const Kv *kv, const KvInto *dkv,
                          const void *s, Tensor dy, Into dx) {
    gqa->backward(r, cfg, w, dw, x, kv, dkv, s, dy, dx);
    if (measuring(r)) return;
    seen.progress = r->progress;
    for (int b = 0; b < r->batch->B && r->layer == 0; b++) {
        cr_assert(seen.n < SEEN_MAX && present(r->dstat));
        seen.sample[seen.n] = (int64_t)r->batch->id[b];
        seen.d[seen.n++] = (double)R(r->dstat)[(size_t)b * STATS + STAT_MERGED];
    }
}
static bool fake_reports(const void *cfg) { return cfg != NULL; }

static Config cfg;
static Mixer fake;
static Kind kind;
static Trainer *open_reporting(const char *stages, int k) {
    Trainer *t = xcalloc(1, sizeof *t);
    Err e = {0};
    char *text = check_path("text.txt"), body[1200], *over = xformat("data.train=%s", text);
    for (size_t i = 0; i < sizeof body; i++) body[i] = (char)("etaoin shrdlu\n"[rng_mix(7, i) % 14]);
    check_write(text, body, sizeof body);
    cr_assert(parse(&cfg, stages, over, &e), "%s", e.msg);
    cr_assert(trial_trainer(t, &cfg, k, false, &e), "%s", e.msg);
    model_init(&t->model, 3);
    gqa = mixer_find("gqa");
    fake = *gqa, kind = *t->model.layer[0].kind;
    fake.forward = fake_forward, fake.backward = fake_backward, fake.reports = fake_reports;
    kind.mixer = &fake;
    for (int l = 0; l < t->model.L; l++) t->model.layer[l].kind = &kind;
    free(text), free(over);
    return t;
}
static void close_reporting(Trainer *t) {
    trial_trainer_close(t);
    free(t);
    config_free(&cfg);
}

static const char *const ways[] = {"", ", train.micro_batch: 1", ", train.micro_batch: 4", ", train.recompute: -1"};
ParameterizedTestParameters(stages, step_with_statistics) {
    static int index[] = {0, 1, 2, 3};
    return cr_make_param_array(int, index, 4);
}
ParameterizedTest(int *way, stages, step_with_statistics) {
    Err e = {0};
    char *set = xformat(" [{name: a, steps: 3, set: {train: {batch: 6, micro_batch: 3}}},\n {name: b, steps: 8, set: "
                        "{train.compression: {target: 1.6, weight: 0.5}, optim.warmup: 3%s}}, {name: c, steps: 2}]",
                        ways[*way]);
    Trainer *t = open_reporting(set, 1);
    TrainRecord r = {0};
    cr_assert(compression_check(&t->model, &t->cfg->train.compression, &e), "%s", e.msg);
    t->run->state.step = 3;
    for (int done = 0; done < 8; done++) {
        seen.n = 0;
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        cr_assert_eq(seen.n, 4);
        double target = 1 + 0.6 * done / 8.0, loss = 0, merged = 0;
        int active = 0;
        cr_assert_eq(seen.progress, done / 8.0);
        for (int b = 0; b < 4; b++) {
            int64_t s = 18 + done * 4 + b; /* 3 steps of 6 samples went before */
            double sum = (double)(s * 7 % 11 + (s * 7 + 3) % 11), lacks = 1 - 1 / target - sum / 64;
            double want = lacks > 0 ? -0.5 / 4 / 64 : 0;
            loss += 0.5 / 4 * fmax(0, lacks);
            merged += sum;
            active += lacks > 0;
            cr_assert_eq(seen.sample[b], s, "step %d reads sample %lld", done, (long long)seen.sample[b]);
            cr_assert(fabs(seen.d[b] - want) <= TOL, "sample %lld: %g, expected %g", (long long)s, seen.d[b], want);
        }
        double cr = 256 / (256 - merged), lr = done < 3 ? 0.02 * (done + 1) / 4 : -1;
        cr_assert(r.reports);
        CHECK_CLOSE("cr", &r.cr, &cr, 1, 1e-12);
        CHECK_CLOSE("cr_loss", &r.cr_loss, &loss, 1, TOL);
        if (lr > 0) CHECK_CLOSE("lr", &r.lr, &lr, 1, 1e-15);
        cr_assert(done == 0 ? active == 0 : done < 7 || active > 0, "step %d: %d hinges", done, active);
    }
    ValRecord v;
    cr_assert(trainer_validate(t, &v, &e), "%s", e.msg);
    cr_assert(v.reports && v.cr > 1 && t->compression.loss == 0);
    free(set);
    close_reporting(t);
}

Test(stages, what_no_layer_reports_cannot_be_asked_for) {
    Trainer *t = open_reporting(" [{name: a, steps: 3, set: {train.compression: 2}}]", 0);
    Err e = {0};
    fake.reports = NULL;
    cr_assert_not(compression_check(&t->model, &t->cfg->train.compression, &e));
    cr_assert(e.status == EXIT_INPUT && strstr(e.msg, "train.compression.target: 2, but no layer"), "%s", e.msg);
    cr_assert(compression_check(&t->model, &(CompressionCfg){.target = 1}, &e));
    close_reporting(t);
}

/* ---- the end of a stage ---------------------------------------------------------------------------------------------
 */

/* Phase zero of dmc leaves the deciding rows of q and k at 0, in the weights and in both moments. Whether the run is
 * one stage or this is the first of two: what is saved is what the next one begins with. */
static const char *const endings[] = {"stages=[{name: zero, steps: 4}]",
                                      "stages=[{name: zero, steps: 4}, {name: soft, steps: 1, set: "
                                      "{model.kinds.full.phase: soft}}]",
                                      "stages=null"};
ParameterizedTestParameters(stages, mixers_are_told_of_the_end) {
    static int index[] = {0, 1, 2};
    return cr_make_param_array(int, index, 3);
}
ParameterizedTest(int *which, stages, mixers_are_told_of_the_end) {
    char *dir = check_path("run"), *run = xformat("run.dir=%s", dir);
    Ran ran = RUN("train", "configs/tiny-dmc.yaml", run, "-q", "--threads", "1", "train.keep_last=9", endings[*which],
                  *which == 2 ? "train.steps=4" : "train.keep_best=false");
    cr_assert_eq(ran.status, 0, "%s", ran.err);
    static const char *const files[] = {"model.safetensors", "trainer/optimizer.safetensors",
                                        "trainer/optimizer.safetensors"},
                             *const prefix[] = {"", "exp_avg.", "exp_avg_sq."};
    for (int f = 0; f < 3; f++)
        for (int l = 0; l < 2; l++)
            for (int k = 0; k < 2; k++) {
                char *path = xformat("%s/step-000004/%s", dir, files[f]);
                char *name = xformat("%smodel.layers.%d.self_attn.%c_proj.weight", prefix[f], l, "qk"[k]);
                int rows = k ? 32 : 64, dead = 0;
                static real w[64 * 48];
                St st;
                Err e = {0};
                cr_assert(st_open(&st, path, &e), "%s", e.msg);
                cr_assert(st_find(&st, name) && st_read(&st, st_find(&st, name), TENSOR(w, REAL, rows, 48), &e), "%s",
                          e.msg);
                for (int i = 0; i < rows; i++) {
                    double most = 0;
                    for (int j = 0; j < 48; j++) most = fmax(most, fabs((double)w[i * 48 + j]));
                    dead += most == 0;
                    cr_assert((most == 0) == (i % 16 == 15), "%s: row %d has %g", name, i, most);
                }
                cr_assert_eq(dead, rows / 16);
                st_close(&st);
                free(path), free(name);
            }
    free(dir), free(run), free(ran.out), free(ran.err);
}
