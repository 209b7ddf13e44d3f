/* Training on tasks: the loss is of the answers alone, validation counts them, a run goes on to the same bytes, it
 * learns, it stops when it has; and eval, in parallel and through the cache. */
#include "infer/eval/task_run.h"
#include "infer/session.h"
#include "train/save/checkpoint.h"
#include "train/feed.h"
#include "tests/lib/check.h"
#include "tests/lib/trial.h"

static const char yaml[] =
    "run: {dir: '%s', seed: 3, threads: 1}\n"
    "model:\n"
    "  d_model: 16\n"
    "  layers: 2\n"
    "  init_std: 0.2\n"
    "  kinds: {full: {mixer: gqa, heads: 2, kv_heads: 1, head_dim: 8}}\n"
    "  ffn: {kind: swiglu, hidden: 24}\n"
    "data: {task: {name: stack, stacks: 3, vocab: 12}, seq_len: 32, val_samples: 21}\n"
    "train: {steps: 8, dtype: f32, batch: 6, micro_batch: 6, eval_every: 4, save_every: 4, log_every: 1}\n"
    "optim: {lr: 0.02, min_lr: 0.002, warmup: 2, clip: 0.5}\n";

/* ---- a step ---------------------------------------------------------------------------------------------------------
 */

#ifdef KV_DOUBLE
    #define TOL 1e-11
#else
    #define TOL 2e-5
#endif

/* Loss and gradient of a step are those of the mean over the answers of the whole batch, however it is cut: samples of
 * a stack ask different numbers of questions, so a mean of means would be another. */
Test(task_train, loss_is_the_mean_over_answers) {
    static const char *const cut[] = {"train.micro_batch=1", "train.micro_batch=2", "train.micro_batch=6"};
    Config a, b;
    Trainer *u = trial_open(&b, yaml, 0, NULL);
    Loader *l = &u->loader;
    cr_assert(u->feeder->train(u, 0, 6, NULL));
    double sum = 0, squares = 0;
    int count = 0, least = 1000, most = 0;
    for (int s = 0; s < 6; s++) {
        int n = 0;
        for (int i = l->batch.off[s]; i < l->batch.off[s + 1]; i++) n += l->tgt[i] >= 0;
        count += n, least = imin(least, n), most = imax(most, n);
    }
    cr_assert(least < most && count < l->batch.N / 3, "%d to %d of %d", least, most, count);
    for (int i = 0; i < l->batch.N; i++) u->g[i] = 1 / (real)count; /* of rows without a target it must not matter */
    model_zero_grad(&u->model);
    model_train(&u->model, &u->work, &l->batch, l->tok, l->tgt, u->g, u->nll);
    for (int i = 0; i < l->batch.N; i++) {
        cr_assert(l->tgt[i] >= 0 || u->nll[i] == 0);
        sum += (double)u->nll[i];
    }
    for (int i = 0; i < u->params.n; i++)
        for (size_t k = 0; k < tensor_count(u->params.p[i].t[PARAM_GRAD]); k++)
            squares += pow((double)R(u->params.p[i].t[PARAM_GRAD])[k], 2);
    double loss = sum / count, norm = sqrt(squares);
    for (int k = 0; k < 3; k++) {
        Trainer *t = trial_open(&a, yaml, 1, &cut[k]);
        TrainRecord r = {0};
        Err e = {0};
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        CHECK_CLOSE("loss", &r.loss, &loss, 1, TOL);
        CHECK_CLOSE("norm", &r.grad_norm, &norm, 1, TOL);
        cr_assert_eq(t->run->state.tokens, 6 * 32, "tokens are rows");
        trial_close(t, &a);
    }
    trial_close(u, &b);
}

/* The answers that a session would give, one token at a time and greedily, against what validation reports. */
Test(task_train, validation_counts_what_is_right) {
    Config cfg;
    Trainer *t = trial_open(&cfg, yaml, 1, (const char *[]){"train.micro_batch=2"});
    enum { T = 32, V = 12 };
    real logits[V];
    Session s;
    Err e = {0};
    ValRecord v, again;
    double nll = 0;
    int right = 0, asked = 0, whole = 0;
    cr_assert(session_open(&s, &t->model, (SessionOpts){.nseq = 1, .max_tokens = T, .chunk = 8, .document = -1}, &e));
    for (uint64_t i = 0; i < 21; i++) {
        bool all = true;
        cr_assert(t->feeder->val(t, i, 1, NULL));
        session_reset(&s, 0);
        for (int k = 0; k < T; k++) {
            int best = 0;
            Feed f = {0, 1, &t->loader.tok[k]};
            cr_assert(session_extend(&s, 1, &f, WANT_LAST, TENSOR(logits, REAL, 1, V), &e), "%s", e.msg);
            if (t->loader.tgt[k] < 0) continue;
            for (int j = 1; j < V; j++)
                if (logits[j] > logits[best]) best = j;
            nll += logits_nll(logits, V, t->loader.tgt[k], NULL);
            all &= best == t->loader.tgt[k];
            right += best == t->loader.tgt[k];
            asked++;
        }
        whole += all;
    }
    session_close(&s);
    cr_assert(trainer_validate(t, &v, &e) && trainer_validate(t, &again, &e), "%s", e.msg);
    CHECK_BYTES("validation again", &again, &v, sizeof v);
    double acc = (double)right / asked, acc_all = whole / 21.0, mean = nll / asked;
    cr_assert(right > 0 && right < asked, "%d of %d tell nothing", right, asked);
    cr_assert(v.task && v.tokens == asked && v.acc == acc && v.acc_all == acc_all,
              "%d answers, %g %g; expected %d, %g %g", (int)v.tokens, v.acc, v.acc_all, asked, acc, acc_all);
    CHECK_CLOSE("loss", &v.loss, &mean, 1, TOL);
    trial_close(t, &cfg);
}

/* Other seeds train on other samples and are asked the same questions in validation. */
Test(task_train, seeds) {
    Config a, b;
    Trainer *t = trial_open(&a, yaml, 0, NULL), *u = trial_open(&b, yaml, 1, (const char *[]){"run.seed=4"});
    size_t bytes = 6 * 32 * sizeof(int);
    cr_assert(t->feeder->train(t, 0, 6, NULL) && u->feeder->train(u, 0, 6, NULL));
    cr_assert(memcmp(t->loader.tok, u->loader.tok, bytes), "another seed, the same samples");
    cr_assert(u->feeder->val(u, 0, 6, NULL));
    cr_assert(memcmp(t->loader.tok, u->loader.tok, bytes), "validation is on samples of the training");
    cr_assert(t->feeder->val(t, 0, 6, NULL));
    CHECK_BYTES("validation", t->loader.tok, u->loader.tok, bytes);
    int tok[32], tgt[32], work[64];
    cr_assert_leq(task_work(&a.data.task), sizeof work);
    task_sample(&a.data.task, TASK_VAL, 0, 5, tok, tgt, work);
    CHECK_BYTES("validation's last sample", t->loader.tok + 5 * 32, tok, sizeof tok);
    cr_assert(t->feeder->train(t, 7, 2, NULL));
    task_sample(&a.data.task, TASK_TRAIN, 3, 8, tok, tgt, work);
    CHECK_BYTES("training's second sample", t->loader.tok + 32, tok, sizeof tok);
    trial_close(t, &a);
    trial_close(u, &b);
}

/* ---- checkpoints ----------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *damage, *says;
} damages[] = {
    {NULL, NULL},
    {"sed -i 's/\"name\": \"stack\"/\"name\": \"steck\"/' config.json", "did you mean stack?"},
    {"sed -i 's/\"stacks\": 3/\"stacks\": 13/' config.json", "13 stacks"},
    {"sed -i 's/\"stacks\": 3/\"stacks\": 3, \"pairs\": 3/' config.json", "pairs: unknown key"},
    {"sed -i 's/\"T\": 32,//' config.json", "T: required"},
    {"sed -i 's/\"kvsmith_task\": {/\"kvsmith_task\": 3, \"x\": {/' config.json", "config.json"},
};
Test(task_train, checkpoint_remembers_the_task) {
    Config cfg;
    Trainer *t = trial_open(&cfg, yaml, 0, NULL);
    Err e = {0};
    TrainRecord r;
    cr_assert(run_dir_open(&t->run->dir, cfg.run.dir, false, &e) && trainer_step(t, &r, &e), "%s", e.msg);
    t->run->state.has_acc = true;
    t->run->state.acc = 1.0 / 3;
    cr_assert(checkpoint_save(t, &e), "%s", e.msg);
    char *dir = run_dir_step(&t->run->dir, 1);
    Config other;
    Trainer *u = trial_open(&other, yaml, 0, NULL);
    cr_assert(checkpoint_load(u, dir, &e), "%s", e.msg);
    cr_assert(u->run->state.step == 1 && u->run->state.has_acc && u->run->state.acc == 1.0 / 3 &&
              u->run->state.tokens == 192);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        TaskCfg c;
        char *copy = check_path("copy"), *cmd = xformat("rm -rf '%s' && cp -a '%s' '%s' && cd '%s' && %s", copy, dir,
                                                        copy, copy, damages[i].damage ? damages[i].damage : "true");
        cr_assert_eq(system(cmd), 0);
        e = (Err){0};
        bool ok = task_cfg_load(&c, copy, &e);
        cr_assert_eq(ok, !damages[i].says, "%s: %s", damages[i].damage, ok ? "taken" : e.msg);
        if (ok)
            CHECK_BYTES("task", &c, &cfg.data.task, sizeof c);
        else
            cr_assert(e.status == EXIT_INPUT && strstr(e.msg, damages[i].says), "%s", e.msg);
        free(copy), free(cmd);
    }
    /* Samples that this version does not make. */
    u->text.hash ^= 1;
    e = (Err){0};
    cr_assert(!checkpoint_load(u, dir, &e) && strstr(e.msg, "data.task: checkpoint"), "%s", e.msg);
    trial_close(u, &other);
    run_dir_close(&t->run->dir);
    free(dir);
    trial_close(t, &cfg);
}

/* ---- the program ----------------------------------------------------------------------------------------------------
 */

#ifndef KV_DOUBLE
static char *printed(Ran r) {
    cr_assert_eq(r.status, 0, "status %d: %s", r.status, r.err);
    free(r.err);
    return r.out;
}
static double number(const char *json, const char *key) {
    char *quoted = xformat("\"%s\":", key), *at = strstr(json, quoted);
    cr_assert(at, "no %s in %s", key, json);
    double v = strtod(at + strlen(quoted), NULL);
    free(quoted);
    return v;
}
    #define TRAIN(...) printed(RUN("train", "configs/tiny-mqar.yaml", "--threads", "1", "--json", "-q", __VA_ARGS__))
    #define EVAL(...)  printed(RUN("eval", __VA_ARGS__, "--threads", "1", "--json"))

static void same_file(const char *a, const char *b, const char *name) {
    char *x = xformat("%s/%s", a, name), *y = xformat("%s/%s", b, name);
    size_t n, m;
    char *p = check_read(x, &n), *q = check_read(y, &m);
    cr_assert_eq(n, m, "%s: %zu bytes, then %zu", name, n, m);
    CHECK_BYTES(name, p, q, n);
    free(x), free(y), free(p), free(q);
}

Test(task_train, resumes_to_the_same_bytes) {
    char *a = check_path("a"), *b = check_path("b"), *da = xformat("run.dir=%s", a), *db = xformat("run.dir=%s", b),
         *la = xformat("%s/last", a), *lb = xformat("%s/last", b);
    static const char *const files[] = {"model.safetensors", "config.json", "trainer/optimizer.safetensors",
                                        "trainer/state.json"};
    #define SAME "train.dropout=0.1", "optim.schedule_steps=20"
    free(TRAIN(da, SAME));
    free(TRAIN(db, SAME, "train.steps=10"));
    free(TRAIN(db, SAME, "--resume", "auto"));
    for (int i = 0; i < 4; i++) same_file(la, lb, files[i]);
    #define AGAIN "train", "configs/tiny-mqar.yaml", "--resume", "auto", SAME
    CHECK_REFUSED(RUN(AGAIN, da, "data.task.pairs=3"), 2, "data.task.pairs: 3, but the run was begun with 4");
    CHECK_REFUSED(RUN(AGAIN, da, "data.task={name: copy, vocab: 32}"), 2, "data.task.name: copy");
    CHECK_REFUSED(RUN(AGAIN, da, "data.task=", "data.train=README.md"), 2, "but the run was begun with");
    free(da), free(db), free(la), free(lb);
}

/* Both forms of eval on every task: the same questions, answers and accuracy; a slice of the cache's path is so under
 * test at prompts of all lengths. Then what eval and generate refuse. */
Test(task_train, eval_forms_agree) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run);
    char *out = TRAIN(dir, "data.task=palindrome", "data.task={name: palindrome, vocab: 32}", "model.init_std=0.3",
                      "model.tied=false", "train.steps=30");
    free(out);
    static const char *const words[][5] = {{"palindrome", "samples=60"},
                                           {"mqar", "samples=40", "T=57", "pairs=5", "vocab=30"},
                                           {"stack", "samples=50", "T=49", "stacks=4", "vocab=17"},
                                           {"copy", "samples=30", "T=40", "vocab=12", "seed=5"},
                                           {"induction", "samples=200", "T=30", "vocab=6", "bigrams=3"},
                                           {"needle", "samples=100", "T=36", "vocab=10", "depth_max=0.3"}};
    int answers = 0;
    for (int i = 0; i < 6; i++) {
        char *got[3];
        for (int k = 0; k < 3; k++) {
            const char *argv[20] = {"kvsmith", "eval", run, "--json", "--threads", "1"};
            int n = 6;
            for (int j = 0; j < 5 && words[i][j]; j++) argv[n++] = words[i][j];
            if (k == 1)
                argv[n++] = "--decode", argv[n++] = "--batch", argv[n++] = "7", argv[n++] = "--chunk", argv[n++] = "5";
            if (k == 2) argv[n++] = "--batch", argv[n++] = "3";
            got[k] = printed(check_run_argv(argv));
        }
        static const char *const same[] = {"samples", "answers", "accuracy", "sample_accuracy"};
        for (int k = 1; k < 3; k++) {
            for (int j = 0; j < 4; j++)
                cr_assert_eq(number(got[0], same[j]), number(got[k], same[j]), "%s: %s\n%s\n%s", words[i][0], same[j],
                             got[0], got[k]);
            double a = number(got[0], "nll"), b = number(got[k], "nll");
            CHECK_CLOSE(words[i][0], &a, &b, 1, 1e-5);
        }
        cr_assert(strstr(got[0], "\"form\":\"parallel\"") && strstr(got[1], "\"form\":\"decode\""));
        answers += number(got[0], "accuracy") > 0;
        for (int k = 0; k < 3; k++) free(got[k]);
    }
    cr_assert_geq(answers, 4, "nothing was right in %d of 6 tasks: equal accuracies tell little", 6 - answers);
    char *plain = EVAL(run); /* MODEL alone: its own task */
    cr_assert(strstr(plain, "\"task\":\"palindrome\"") && strstr(plain, "\"T\":32") &&
              number(plain, "samples") == 1000);
    free(plain);
    CHECK_REFUSED(RUN("generate", run), 2, "trained on the task palindrome");
    CHECK_REFUSED(RUN("eval", run, "ppl", "--data", "README.md"), 2, "trained on the task palindrome");
    CHECK_REFUSED(RUN("eval", run, "stack"), 2, "vocab 130, but the model has 32 ids");
    CHECK_REFUSED(RUN("eval", run, "mqar", "vocab=32", "T=31", "pairs=8"), 2, "4 x pairs = 32 tokens, a sample has 31");
    CHECK_REFUSED(RUN("eval", run, "sampels=3"), 2, "did you mean samples?");
    CHECK_REFUSED(RUN("eval", run, "samples=0"), 2, "samples: expected a whole number from 1");
    CHECK_REFUSED(RUN("eval", run, "name=copy"), 2, "name: unknown key");
    CHECK_REFUSED(RUN("eval", run, "polindrome"), 2, "expected one of ppl, choices, mqar");
    CHECK_REFUSED(RUN("eval", run, "copy", "stack"), 2, "expected KEY=VALUE");
    CHECK_REFUSED(RUN("eval", run, "copy", "--data", "x"), 2, "--data is not an option of a task");
    CHECK_REFUSED(RUN("eval", run, "copy", "T=1000000", "vocab=20", "--batch", "4000"), 2, "smaller --batch");
    CHECK_REFUSED(RUN("eval", run, "ppl", "--data", "README.md", "--decode"), 2, "--decode is only for tasks");
    CHECK_REFUSED(RUN("eval", run, "ppl", "--data", "README.md", "x=1"), 2, "unexpected word 'x=1'");
    free(dir);
}

/* So with mixers whose cache is of another kind: a state, merged rows, a window. */
Test(task_train, eval_forms_agree_for_states_and_merged_rows) {
    static const char *const mixers[] = {"model.kinds.mix={mixer: kda, heads: 2}", "model.kinds.mix={mixer: mamba2}",
                                         "model.kinds.mix={mixer: dmc, heads: 2}",
                                         "model.kinds.mix={mixer: mla, heads: 2, kv_rank: 8, nope_dim: 8, rope_dim: 4}",
                                         "model.kinds.mix={mixer: gqa, heads: 2, window: 8, sinks: 1}"};
    for (size_t i = 0; i < sizeof mixers / sizeof *mixers; i++) {
        char *run = check_path("run"), *dir = xformat("run.dir=%s", run), *clean = xformat("rm -rf '%s'", run);
        free(TRAIN(dir, mixers[i], "model.init_std=0.2"));
        char *a = EVAL(run, "samples=60"), *b = EVAL(run, "samples=60", "--decode", "--batch", "7", "--chunk", "5");
        double x = number(a, "nll"), y = number(b, "nll");
        cr_assert(number(a, "accuracy") == number(b, "accuracy") && number(a, "answers") == 240 &&
                      number(a, "sample_accuracy") == number(b, "sample_accuracy"),
                  "%s\n%s\n%s", mixers[i], a, b);
        CHECK_CLOSE(mixers[i], &x, &y, 1, 1e-5);
        cr_assert_eq(system(clean), 0);
        free(a), free(b), free(run), free(dir), free(clean);
    }
}

/* Seconds of training are enough for a softmax model to copy, where chance is 1 in 8; and what it learned it can still
 * do through its cache, on other samples. */
Test(task_train, a_small_model_learns) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run);
    char *out = TRAIN(dir, "data.task={name: copy, vocab: 10}", "data.seq_len=17", "train.steps=400", "train.batch=16",
                      "train.micro_batch=16", "train.eval_every=25", "train.stop_at_acc=0.9", "optim.lr=1e-2",
                      "optim.warmup=20", "model.init_std=0.2");
    cr_assert(strstr(out, "\"stopped\":\"accuracy\"") && number(out, "val_acc") >= 0.9, "%s", out);
    free(out);
    out = EVAL(run, "--decode", "samples=200");
    cr_assert(number(out, "accuracy") > 0.85 && number(out, "nll") < 0.7, "%s", out);
    free(out), free(dir);
}

Test(task_train, stops_at_an_accuracy) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run);
    const char *task = "data.task={name: palindrome, vocab: 3}"; /* right half of the time whatever it says */
    char *out = TRAIN(dir, task, "train.stop_at_acc=0.3");
    cr_assert(number(out, "step") == 10 && strstr(out, "\"stopped\":\"accuracy\""), "%s", out);
    cr_assert(number(out, "val_acc") >= 0.3);
    free(out);
    char *metrics = xformat("%s/metrics.jsonl", run), *text = check_read(metrics, NULL);
    cr_assert(strstr(text, "{\"step\":10,\"val_loss\":") && strstr(text, ",\"val_acc\":0.") &&
                  strstr(text, ",\"val_acc_all\":0"),
              "%s", text);
    free(text);
    out = TRAIN(dir, task, "train.stop_at_acc=0.3", "--resume", "auto"); /* nothing left to do */
    cr_assert(number(out, "step") == 10 && strstr(out, "\"stopped\":\"accuracy\""), "%s", out);
    free(out);
    out = TRAIN(dir, task, "train.stop_at_acc=1", "--resume", "auto");
    cr_assert(number(out, "step") == 20 && strstr(out, "\"stopped\":\"steps\""), "%s", out);
    free(out);
    /* What a stage before reached does not count. */
    char *next = check_path("next"), *there = xformat("run.dir=%s", next);
    out = TRAIN(there, task, "train.eval_every=5",
                "stages=[{name: a, steps: 10}, {name: b, steps: 10, set: {train.stop_at_acc: 0.3}}]");
    cr_assert(number(out, "step") == 15 && strstr(out, "\"stopped\":\"accuracy\""), "%s", out);
    free(out), free(next), free(there);
    free(metrics), free(dir);
}
#endif
