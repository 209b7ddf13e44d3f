#include "eval_task.h"
#include "data/loader.h"
#include "data/task_text.h"
#include "ops/file.h"
#include "infer/session.h"
#include "task_run.h"

typedef struct {
    int64_t samples, seed;
    int lengths, depths;
} Wanted;
#define AT(member) offsetof(Wanted, member)
static const Key want_keys[] = {{"samples", KEY_LONG, AT(samples), "1000", 1, 1e9, "number of samples", 0, 0},
                                {"seed", KEY_LONG, AT(seed), "1", 0, 9e15, "which samples", 0, 0},
                                {"lengths", KEY_INT, AT(lengths), "1", 1, 64,
                                 "a row of the grid for each of 1/n, 2/n .. 1 of T", 0, 0},
                                {"depths", KEY_INT, AT(depths), "1", 1, 64,
                                 "a column of the grid for each of n depths from 0 to 1", 0, 0},
                                {0}};
#undef AT

/* ---- in parallel ----------------------------------------------------------------------------------------------------
 */

static bool in_parallel(Engine *en, Loader *l, const Wanted *want, TaskScore *sum, Err *e) {
    Workspace work;
    if (!workspace_open(&work, &en->model, e)) return false;
    size_t rows = (size_t)l->max_samples * (size_t)l->seq_len;
    real *nll = xcalloc(rows, sizeof *nll);
    int *hit = xcalloc(rows, sizeof *hit);
    for (int64_t at = 0; at < want->samples; at += l->max_samples) {
        int b = (int)(want->samples - at < l->max_samples ? want->samples - at : l->max_samples);
        loader_task(l, TASK_TEST, (uint64_t)want->seed, (uint64_t)at, b);
        model_score(&en->model, &work, &l->batch, l->tok, l->tgt, nll, hit);
        for (int s = 0; s < b; s++) {
            int asked = 0, right = 0;
            for (int i = l->batch.off[s]; i < l->batch.off[s + 1]; i++) {
                if (l->tgt[i] < 0) continue;
                sum->nll += (double)nll[i];
                asked++;
                right += hit[i];
            }
            const double part = (double)right / asked;
            sum->answers += asked, sum->right += right, sum->whole += right == asked;
            sum->part += part, sum->square += part * part;
            sum->samples++;
        }
    }
    free(nll);
    free(hit);
    workspace_close(&work);
    return true;
}

/* ---- the command ----------------------------------------------------------------------------------------------------
 */

typedef struct {
    const EvalTask *a;
    Engine en, dense;
    Wanted want;
    bool cached; /* through the cache; otherwise in parallel */
} Eval;

static bool eval_task_one(Eval *v, const TaskCfg *c, TaskScore *score, TaskAgainst *against, Err *e) {
    const EvalTask *a = v->a;
    const int b = (int)(v->want.samples < a->batch ? v->want.samples : a->batch);
    if (v->cached) {
        const TaskHow how = {v->want.samples, v->want.seed, a->batch, a->chunk, a->agnostic};
        return task_run(&v->en, a->dense ? &v->dense : NULL, c, &how, score, against, e);
    }
    Loader l;
    if (!loader_open_task(&l, c, b, false, e)) return false;
    const bool ok = in_parallel(&v->en, &l, &v->want, score, e);
    loader_close(&l);
    return ok;
}

static json_t *score_json(const TaskScore *s) {
    return json_pack("{s:I, s:I, s:f, s:o, s:f, s:f}", "samples", (json_int_t)s->samples, "answers",
                     (json_int_t)s->answers, "accuracy", (double)s->right / (double)s->answers, "accuracy_stderr",
                     engine_number(task_stderr(s)), "sample_accuracy", (double)s->whole / (double)s->samples, "nll",
                     s->nll / (double)s->answers);
}
static void score_print(const Eval *v, const TaskCfg *c, const TaskScore *s, const TaskAgainst *g) {
    char *settings = task_cfg_json(c);
    printf("%s: accuracy %.2f %%", c->kind->name, 100 * (double)s->right / (double)s->answers);
    if (s->samples > 1) printf(" ± %.2f", 100 * task_stderr(s));
    printf(" of %lld answers; %.2f %% of %lld samples have every answer right   nll %.6f nats/answer\n",
           (long long)s->answers, 100 * (double)s->whole / (double)s->samples, (long long)s->samples,
           s->nll / (double)s->answers);
    if (v->cached && c->kind->text)
        printf("the prompt ends %s the question, with %.0f bytes of cache\n", v->a->agnostic ? "before" : "after",
               s->bytes / (double)s->samples);
    if (v->a->dense)
        printf(
            "against the dense cache: accuracy %.2f %% there; KL %.6f nats/answer, top-1 agreement %.2f %%, %.1f %% of "
            "its bytes\n",
            100 * (double)g->dense.right / (double)g->dense.answers, g->kl / (double)g->answers,
            100 * (double)g->same / (double)g->answers, 100 * s->bytes / g->dense.bytes);
    puts(settings);
    free(settings);
}
/* A line of the table for each length. */
static void grid_print(const Eval *v, const json_t *grid) {
    const int D = v->want.depths;
    json_t *j;
    size_t i;
    printf("accuracy in %%, by length (down) and depth (across)\n%8s", "T");
    for (int d = 0; D > 1 && d < D; d++) printf(" %6.2f", (double)d / (D - 1));
    json_array_foreach(grid, i, j) {
        if (i % (size_t)D == 0) printf("\n%8lld", (long long)json_integer_value(json_object_get(j, "T")));
        printf(" %6.2f", 100 * json_real_value(json_object_get(j, "accuracy")));
    }
    putchar('\n');
}

static bool eval_task_report(const Eval *v, const TaskCfg *c, const TaskScore *s, const TaskAgainst *g, json_t *grid,
                             const Cli *cli, Err *e) {
    if (!cli->json) {
        if (grid) grid_print(v, grid);
        score_print(v, c, s, g);
        return true;
    }
    char *settings = task_cfg_json(c);
    json_t *j = score_json(s), *own = json_parse(settings, strlen(settings), "settings", NULL, e);
    free(settings);
    json_object_update_new(j, json_pack("{s:s, s:s, s:I, s:o}", "task", c->kind->name, "form",
                                        v->cached ? "decode" : "parallel", "seed", (json_int_t)v->want.seed, "settings",
                                        own));
    if (v->cached && c->kind->text)
        json_object_update_new(j, json_pack("{s:s, s:f}", "question", v->a->agnostic ? "agnostic" : "aware",
                                            "cache_bytes", s->bytes / (double)s->samples));
    if (v->a->dense)
        json_object_set_new(j, "against_dense",
                            json_pack("{s:f, s:f, s:f, s:f}", "kl", g->kl / (double)g->answers, "top1",
                                      (double)g->same / (double)g->answers, "accuracy",
                                      (double)g->dense.right / (double)g->dense.answers, "cache_bytes",
                                      g->dense.bytes / (double)g->dense.samples));
    if (grid) json_object_set(j, "grid", grid);
    return engine_print(j, e);
}

/* Every length and depth. */
static bool eval_task_grid(Eval *v, const TaskCfg *c, TaskScore *sum, TaskAgainst *against, json_t *grid, Err *e) {
    const int L = v->want.lengths, D = v->want.depths;
    for (int l = 0; l < L; l++) {
        TaskCfg one = *c;
        one.T = (int)((int64_t)c->T * (l + 1) / L);
        for (int d = 0; d < D; d++) {
            TaskScore s = {0};
            if (D > 1) one.depth_min = one.depth_max = (double)d / (D - 1);
            if (one.T < 1) return err_input(e, "lengths: %d of T=%d leave no tokens; give fewer", L, c->T);
            if (!task_spelled(&v->en, c->kind) && !one.kind->check(&one, e)) return false;
            if (!eval_task_one(v, &one, &s, against, e)) return false;
            task_score_add(sum, &s);
            json_t *j = score_json(&s);
            json_object_update_new(j, json_pack("{s:i, s:o}", "T", one.T, "depth",
                                                D > 1 ? json_real(one.depth_min) : json_null()));
            json_array_append_new(grid, j);
        }
    }
    return true;
}
static bool eval_task_settings(Eval *v, TaskCfg *c, Err *e) {
    const EvalTask *a = v->a;
    const Engine *en = &v->en;
    const char *name = a->name ? a->name : en->task.kind ? en->task.kind->name : NULL;
    if (!name) return err_input(e, "eval: %.150s was not trained on a task; expected MODEL ppl or MODEL TASK", en->dir);
    if (!en->task.kind && !a->force && !task_spelled(en, task_find(name)))
        return err_input(e,
                         "eval %s: %.120s was not trained on a task, so these ids mean something else to it; expected "
                         "MODEL ppl --data FILE, or --force to score it anyway",
                         name, en->dir);
    if (!task_cfg_words(c, name, &en->task, en->cfg.max_positions, want_keys, &v->want, a->nword, a->word, e))
        return false;
    const bool depths = c->kind->text && c->keys, spelled = task_spelled(en, c->kind);
    if (!spelled && c->vocab > en->cfg.vocab)
        return err_input(e, "eval %s: vocab %d, but the model has %d ids; give vocab=N, at most as many", name,
                         c->vocab, en->cfg.vocab);
    if (v->want.depths > 1 && !depths && strcmp(name, "passkey") && strcmp(name, "needle"))
        return err_input(e, "eval %s: depths: samples of %s have no needle whose depth could be chosen", name, name);
    if (a->agnostic && !c->kind->text)
        return err_input(e,
                         "eval %s: --agnostic: a sample has no context apart from its questions; expected a task of "
                         "text, such as niah",
                         name);
    return (int64_t)a->batch * c->T <= 1 << 24 ||
           err_input(e, "eval %s: %d samples of T=%d at once are more than %d rows; give a smaller --batch", name,
                     a->batch, c->T, 1 << 24);
}
/* What needs the cache, before anything is computed. */
static bool eval_task_form(Eval *v, const char *name, const Cli *cli, Err *e) {
    const Task *kind = name ? task_find(name) : v->en.task.kind;
    v->cached = v->a->decode || (kind && task_spelled(&v->en, kind));
    if (v->cached) return true;
    if (cli->tier.memory)
        return err_input(e, "--cache-memory: eval of a task uses the cache only with --decode; add it");
    if (policy_any(&cli->policy))
        return err_input(e, "--policy: eval of a task uses the cache only with --decode; add it");
    return !(v->a->agnostic || v->a->dense) ||
           err_input(e, "%s: eval of a task uses the cache only with --decode; add it",
                     v->a->agnostic ? "--agnostic" : "--against");
}

bool eval_task(const EvalTask *a, const Cli *cli, Err *e) {
    Eval v = {.a = a};
    TaskCfg c;
    TaskScore sum = {0};
    TaskAgainst against = {0};
    if (!engine_read(&v.en, a->model, cli, e)) return false;
    if (!eval_task_form(&v, a->name, cli, e) || !eval_task_settings(&v, &c, e)) {
        engine_close(&v.en);
        return false;
    }
    int b = (int)(v.want.samples < a->batch ? v.want.samples : a->batch);
    ModelOpts o = {0};
    if (!v.cached) o = (ModelOpts){.max_rows = b * c.T, .max_samples = b};
    if (!engine_load(&v.en, engine_bf16(cli, o), e)) return false;
    if (a->dense && !engine_open_dense(&v.dense, &v.en, cli, e)) {
        engine_close(&v.en);
        return false;
    }
    engine_plan(&v.en, c.T, cli->quiet);
    if (a->dense) engine_plan(&v.dense, c.T, true);
    const bool grid = v.want.lengths > 1 || v.want.depths > 1;
    json_t *cells = grid ? json_array() : NULL;
    bool ok = grid ? eval_task_grid(&v, &c, &sum, &against, cells, e) : eval_task_one(&v, &c, &sum, &against, e);
    if (ok && !isfinite(sum.nll)) ok = err_runtime(e, "the model's loss is %g: its weights are damaged", sum.nll);
    ok = ok && eval_task_report(&v, &c, &sum, &against, cells, cli, e);
    json_decref(cells);
    if (a->dense) engine_close(&v.dense);
    engine_close(&v.en);
    return ok;
}
