#include "checkpoint.h"
#include "train/adapt/adapter.h"
#include "train/feed.h"
#include "train/adapt/freeze.h"
#include "train/ids.h"
#include "shards.h"
#include "train/report/watch.h"
#include "model/cli.h"
#include "model/files/hf.h"
#include "model/files/peft.h"
#include "model/files/safetensors.h"
#include "model/files/source.h"
#include "model/config/task_cfg.h"
#include <errno.h>
#include <sys/stat.h>

/* ---- state.json -----------------------------------------------------------------------------------------------------
 */

static json_t *checkpoint_numbers(const double *v, int n) {
    json_t *a = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(a, json_real(v[i]));
    return a;
}
static json_t *hash_json(uint64_t v) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)v);
    return json_string(hash);
}
static bool hash_read(const json_t *j, const char *key, const char *path, uint64_t *v, Err *e) {
    const char *hash = json_string_value(json_object_get(j, key));
    char *end = NULL;
    *v = hash ? strtoull(hash, &end, 16) : 0;
    return (hash && strlen(hash) == 16 && !*end) ||
           err_input(e, "%s: \"%s\": expected 16 hexadecimal digits", path, key);
}
static json_t *skips_json(const Skips *s) {
    return json_pack("{s:I, s:i, s:o, s:o}", "skipped", (json_int_t)s->skipped, "row", s->row, "loss",
                     checkpoint_numbers(s->loss, s->n), "grad_norm", checkpoint_numbers(s->norm, s->n));
}

static bool state_write(const char *path, const Trainer *t, const TrainState *s, Err *e) {
    json_t *best =
        s->has_best ? json_pack("{s:f, s:I}", "val_loss", s->best_loss, "step", (json_int_t)s->best_step) : json_null();
    int64_t samples, tokens;
    config_position(t->run->cfg, s->step, &samples, &tokens);
    json_t *j = json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "format", CHECKPOINT_FORMAT, "program",
                          "kvsmith " KVSMITH_VERSION, "step", (json_int_t)s->step, "samples", (json_int_t)samples,
                          "tokens", (json_int_t)s->tokens, "seed", (json_int_t)t->run->cfg->run.seed, "text_tokens",
                          (json_int_t)t->text.tokens, "text_hash", hash_json(t->text.hash), "best", best);
    if (j && t->cfg->data.task.kind) json_object_set_new(j, "val_acc", s->has_acc ? json_real(s->acc) : json_null());
    if (j && t->teacher.on) json_object_set_new(j, "teacher_hash", hash_json(t->teacher.hash));
    if (j && s->averaged > 0) json_object_set_new(j, "averaged", json_real(s->averaged));
    if (j && (s->skip.n || s->skip.skipped)) json_object_set_new(j, "skip", skips_json(&s->skip));
    bool ok = j ? json_write(path, j, e) : err_runtime(e, "cannot write %s: out of memory", path);
    json_decref(j);
    return ok;
}

/* The values that never repeat, in a file of their own so that state.json repeats. A checkpoint of an older version has
 * none: its time is unknown. */
static bool clock_write(const char *trainer, const TrainState *s, Err *e) {
    char *path = xformat("%s/clock.json", trainer);
    json_t *j = json_pack("{s:f, s:f, s:f}", "elapsed", s->elapsed, "stage_began", s->stage_began, "share", s->share);
    bool ok = j ? json_write(path, j, e) : err_runtime(e, "cannot write %s: out of memory", path);
    json_decref(j);
    free(path);
    return ok;
}
static bool clock_read(const char *trainer, TrainState *s, Err *e) {
    if (!file_exists(trainer, "clock.json", e)) return !e->status;
    char *path = xformat("%s/clock.json", trainer);
    json_t *j = json_read(path, e);
    const char *const key[] = {"elapsed", "stage_began", "share"};
    double *const to[] = {&s->elapsed, &s->stage_began, &s->share};
    bool ok = j;
    for (int i = 0; ok && i < 3; i++) {
        const json_t *v = json_object_get(j, key[i]);
        *to[i] = json_number_value(v);
        ok = (json_is_number(v) && *to[i] >= 0 && isfinite(*to[i])) ||
             err_input(e, "%s: \"%s\": expected a number of at least 0", path, key[i]);
    }
    json_decref(j);
    free(path);
    return ok;
}

static bool checkpoint_whole(const json_t *j, const char *key, const char *path, int64_t max, int64_t *out, Err *e) {
    const json_t *v = json_object_get(j, key);
    if (!v)
        return err_input(e, "%s: \"%s\" is missing; the checkpoint is damaged or was not written by training", path,
                         key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
        return err_input(e, "%s: \"%s\": expected a whole number from 0 to %lld", path, key, (long long)max);
    *out = json_integer_value(v);
    return true;
}

static bool best_read(const json_t *j, const char *path, TrainState *s, Err *e) {
    const json_t *best = json_object_get(j, "best"), *loss = json_object_get(best, "val_loss");
    s->has_best = !json_is_null(best);
    if (!s->has_best) return true;
    if (!json_is_object(best) || !json_is_number(loss) || !isfinite(json_number_value(loss)))
        return err_input(e, "%s: \"best\": expected null or {\"val_loss\": number, \"step\": whole number}", path);
    s->best_loss = json_number_value(loss);
    return checkpoint_whole(best, "step", path, s->step, &s->best_step, e);
}

/* The accuracy of a task's last validation. */
static bool acc_read(const json_t *j, const char *path, TrainState *s, Err *e) {
    const json_t *acc = json_object_get(j, "val_acc");
    s->has_acc = acc && !json_is_null(acc);
    if (!s->has_acc) return true;
    s->acc = json_number_value(acc);
    return (json_is_number(acc) && s->acc >= 0 && s->acc <= 1) ||
           err_input(e, "%s: \"val_acc\": expected null or a number from 0 to 1", path);
}

static bool numbers_read(const json_t *a, double *v, int *n) {
    if (!json_is_array(a) || json_array_size(a) > SKIP_WINDOW_MAX) return false;
    *n = (int)json_array_size(a);
    for (int i = 0; i < *n; i++) {
        const json_t *x = json_array_get(a, (size_t)i);
        v[i] = json_number_value(x);
        if (!json_is_number(x) || !isfinite(v[i])) return false;
    }
    return true;
}
static bool skips_read(const json_t *j, const char *path, TrainState *s, Err *e) {
    const json_t *o = json_object_get(j, "skip");
    Skips *k = &s->skip;
    int64_t row;
    int n;
    if (!o) return true;
    if (!checkpoint_whole(o, "skipped", path, s->step, &k->skipped, e)) return false;
    if (!checkpoint_whole(o, "row", path, k->skipped < 1000000 ? k->skipped : 1000000, &row, e)) return false;
    k->row = (int)row;
    return (numbers_read(json_object_get(o, "loss"), k->loss, &k->n) &&
            numbers_read(json_object_get(o, "grad_norm"), k->norm, &n) && n == k->n) ||
           err_input(
               e,
               "%s: \"skip\": expected \"loss\" and \"grad_norm\", two lists of equal length, at most %d numbers each",
               path, SKIP_WINDOW_MAX);
}

/* For an optimizer that keeps a mean over steps. */
static bool averaged_read(const json_t *j, const char *path, TrainState *s, Err *e) {
    const json_t *v = json_object_get(j, "averaged");
    if (!v) return true;
    s->averaged = json_number_value(v);
    return (json_is_number(v) && s->averaged > 0 && isfinite(s->averaged)) ||
           err_input(e, "%s: \"averaged\": expected a number above 0", path);
}

static bool state_read(const json_t *j, const char *path, TrainState *s, Err *e) {
    int64_t format = 0, max = STAGES_MAX * (int64_t)1e12;
    if (!checkpoint_whole(j, "format", path, INT32_MAX, &format, e)) return false;
    if (format < 1 || format > CHECKPOINT_FORMAT)
        return err_input(e, "%s: format %lld, expected 1 to %d; written by another version of kvsmith", path,
                         (long long)format, CHECKPOINT_FORMAT);
    s->format = (int)format;
    if (!checkpoint_whole(j, "step", path, max, &s->step, e) ||
        !checkpoint_whole(j, "tokens", path, INT64_MAX, &s->tokens, e))
        return false;
    if (!checkpoint_whole(j, "text_tokens", path, INT64_MAX, &s->text_tokens, e) ||
        !hash_read(j, "text_hash", path, &s->text_hash, e))
        return false;
    if (json_object_get(j, "teacher_hash") && !hash_read(j, "teacher_hash", path, &s->teacher_hash, e)) return false;
    return best_read(j, path, s, e) && acc_read(j, path, s, e) && skips_read(j, path, s, e) &&
           averaged_read(j, path, s, e);
}

/* Checks the settings against the number of steps. */
static bool state_check(const char *path, const char *dir, const Config *cfg, const TrainState *s, Err *e) {
    int64_t samples, tokens;
    const bool averages = optimizer_of(&cfg->optim)->weight && cfg->optim.lr > 0;
    if (averages && s->step > s->skip.skipped && s->averaged == 0)
        return err_input(e,
                         "%s: \"averaged\" is missing; the checkpoint is damaged or was not trained with optim.kind %s",
                         path, optimizer_of(&cfg->optim)->name);
    if (s->step > cfg->train.steps)
        return err_input(e, "train.steps: %lld is less than the %lld steps of checkpoint %s",
                         (long long)cfg->train.steps, (long long)s->step, dir);
    config_position(cfg, s->step, &samples, &tokens);
    if (s->tokens != tokens)
        return err_input(e, "%s: %lld tokens after %lld steps, expected %lld", path, (long long)s->tokens,
                         (long long)s->step, (long long)tokens);
    return true;
}

/* A directory that still bears the name of a checkpoint is the one of that step. */
static bool name_check(const char *dir, const TrainState *s, Err *e) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    const char *base = memrchr(dir, '/', n);
    long long step;
    if (sscanf(base ? base + 1 : dir, "step-%18lld", &step) == 1 && step != s->step)
        return err_input(e,
                         "%s: trainer/state.json belongs to step %lld; the directory was renamed or mixed with another",
                         dir, (long long)s->step);
    return true;
}

static bool checkpoint_settings_check(const char *dir, Config *now, int64_t step, Err *e) {
    Config *saved = xcalloc(1, sizeof *saved);
    char *path = xformat("%s/trainer/config.yaml", dir);
    bool ok = config_read(saved, path, 0, NULL, e);
    if (ok) {
        config_frozen_dtype(saved, DTYPE_F32); /* a program that did not write the key had no other */
        config_save_dtype(saved, DTYPE_F32);
        config_adopt(now, saved);
        ok = config_resumable(saved, now, step, e);
        if (ok) config_dtype(now, config_stage(saved, config_stage_at(saved, step)).cfg->train.dtype);
        if (ok) config_frozen_dtype(now, saved->train.frozen_dtype);
        if (ok) config_save_dtype(now, saved->train.save_dtype);
        config_free(saved);
    }
    free(path);
    free(saved);
    return ok;
}

bool checkpoint_peek(const char *dir, Config *cfg, TrainState *s, Err *e) {
    char *trainer = xformat("%s/trainer", dir), *path = xformat("%s/state.json", trainer);
    *s = (TrainState){0};
    bool ok = file_exists(trainer, "state.json", e) || e->status ||
              err_input(e, "%s: expected a training checkpoint, but %s is missing; give a step-* directory", dir, path);
    json_t *j = ok && !e->status ? json_read(path, e) : NULL;
    ok = j && state_read(j, path, s, e) && checkpoint_settings_check(dir, cfg, s->step, e) &&
         state_check(path, dir, cfg, s, e) && name_check(dir, s, e) && clock_read(trainer, s, e);
    json_decref(j);
    free(path);
    free(trainer);
    return ok;
}

/* ---- loading --------------------------------------------------------------------------------------------------------
 */

static bool nothing_else(const char *name) {
    (void)name;
    return false;
}

/* Into this rank's tensor, or its range of one that ranks share. */
static bool state_read_part(const Trainer *t, const Moments *from, const char *prefix, const Param *p, int k, Err *e) {
    Tensor to = p->state[k].t, view = view_open(t->model.dev, to, false);
    bool ok = moments_read(from, prefix, p->name, p->at, view, e);
    view_close(t->model.dev, to, view, ok);
    return ok;
}
/* The states of a list of whole tensors, the first of all, then the second ones, ... was: tensors that it did not train
 * keep states of 0; NULL: all were. */
static bool states_load(Trainer *t, const Params *list, Moments *from, const Config *was, Err *e) {
    const Dist *d = &t->dist;
    bool ok = true;
    for (int k = 0; k < STATES_MAX; k++)
        for (int i = 0; ok && i < list->n; i++) {
            const Param *p = &list->p[i];
            char prefix[sizeof p->state->name + 1];
            if (!present(p->state[k].t) || (was && !freeze_trained(was, p->name))) continue;
            snprintf(prefix, sizeof prefix, "%s.", p->state[k].name);
            ok = moments_fit(from, prefix, p->name, p->state[k].t, e);
            if (ok && !d->stage) ok = state_read_part(t, from, prefix, p, k, e);
            for (int o = 0; ok && d->stage && o < d->own.n; o++)
                if (!strcmp(d->own.p[o].name, p->name)) ok = state_read_part(t, from, prefix, &d->own.p[o], k, e);
        }
    return ok;
}

/* The model's own file of settings is not needed where trainer/config.yaml is, but a checkpoint without it is damaged.
 */
static bool config_check(const char *dir, Err *e) {
    ModelCfg *m = xcalloc(1, sizeof *m);
    bool ok = hf_config_read(dir, m, e);
    if (ok) model_cfg_free(m);
    free(m);
    return ok;
}

/* The order of the samples is a function of the text's length, so that another text would be another run. */
static bool text_check(const char *dir, const Trainer *t, Err *e) {
    const TrainState *s = &t->run->state;
    if (s->text_hash == t->text.hash && s->text_tokens == (int64_t)t->text.tokens) return true;
    if (t->cfg->data.task.kind)
        return err_input(e,
                         "data.task: checkpoint %.150s was trained on samples that this version cannot generate; start "
                         "a new run with init_from",
                         dir);
    return err_input(e,
                     "data.train: checkpoint %.150s was trained on another text: %lld tokens, now %zu; give that text, "
                     "or start a new run with init_from",
                     dir, (long long)s->text_tokens, t->text.tokens);
}

static bool numbers_load(Trainer *, const char *dir, int format, const Config *was, Err *);

/* Files are read as a whole once, for their checksums, by one rank each. */
static bool files_check(const Trainer *t, const char *dir, Err *e) {
    Manifest m;
    if (t->run->state.format < 2) return true;
    char *path = xformat("%s/trainer/manifest.json", dir);
    bool ok = manifest_read(path, &m, e);
    if (ok && m.step != t->run->state.step)
        ok =
            err_input(e,
                      "%s: belongs to step %lld, trainer/state.json to step %lld; the checkpoint is mixed with another",
                      path, (long long)m.step, (long long)t->run->state.step);
    ok = ok && manifest_check(&m, dir, dist_rank(t->run->comm), dist_world(t->run->comm), e);
    manifest_free(&m);
    free(path);
    return ok;
}
static bool load(Trainer *t, const char *dir, Err *e) {
    if (!checkpoint_peek(dir, t->run->cfg, &t->run->state, e)) return false;
    if (config_stage_at(t->run->cfg, t->run->state.step) != t->stage)
        return err_input(e, "%s: changed while it was read: now of step %lld", dir, (long long)t->run->state.step);
    if (t->cfg->train.skip_z == 0) skip_forget(&t->run->state.skip);
    return text_check(dir, t, e) && teacher_same(t, t->run->state.teacher_hash, dir, e) && config_check(dir, e) &&
           (t->cfg->data.task.kind || ids_fit(dir, &t->cfg->model, &t->tok, e)) &&
           numbers_load(t, dir, t->run->state.format, NULL, e) && files_check(t, dir, e);
}
bool checkpoint_load(Trainer *t, const char *dir, Err *e) {
    return dist_agreed(t->run->comm, "the checkpoint", load(t, dir, e), e);
}

static bool is_base(const char *name) { return !strncmp(name, "base.", 5); }
static bool lora_load(Trainer *t, const char *dir, Err *e) {
    St st;
    StLoad l;
    if (!t->lora.n) return true;
    char *path = xformat("%s/trainer/lora.safetensors", dir);
    bool ok = st_open(&st, path, e);
    free(path);
    if (!ok) return false;
    st_load_begin(&l, &st, "base.", e);
    l.dev = t->lora.dev;
    l.round = true; /* bases in bf16 of a checkpoint that has them in f32 */
    Fields f = st_loader(&l);
    lora_bases(&t->lora, &f);
    ok = st_load_end(&l, nothing_else);
    if (ok) {
        st_load_begin(&l, &st, NULL, e);
        l.dev = t->lora.dev;
        f = st_loader(&l);
        lora_fields(&t->lora, PARAM_WEIGHT, &f);
        ok = st_load_end(&l, is_base);
    }
    st_close(&st);
    return ok;
}

/* The files that hold the moments, as the list has them. */
static bool moments_files(const char *dir, int format, char ***file, int *n, Err *e) {
    Manifest m = {0};
    char *path = xformat("%s/trainer/manifest.json", dir);
    *n = 0;
    if (format < 2)
        manifest_add(&m, "trainer/optimizer.safetensors", (FileSum){0});
    else if (!manifest_read(path, &m, e)) {
        free(path);
        return false;
    }
    *file = xcalloc((size_t)m.n, sizeof **file);
    for (int i = 0; i < m.n; i++)
        if (!strncmp(m.file[i].name, "trainer/optimizer", 17)) (*file)[(*n)++] = xformat("%s/%s", dir, m.file[i].name);
    bool ok = *n || err_input(e, "%s: no trainer/optimizer*.safetensors is listed", path);
    if (!ok) free(*file);
    manifest_free(&m);
    free(path);
    return ok;
}

/* The weights as they were trained: in the model's own file unless that is rounded. */
static const char WEIGHTS[] = "trainer/weights.safetensors";
static bool weights_load(Trainer *t, const char *dir, Err *e) {
    St st;
    StLoad l;
    if (!file_exists(dir, WEIGHTS, e)) return !e->status && hf_load(dir, &t->model, e);
    char *path = xformat("%s/%s", dir, WEIGHTS);
    bool ok = st_open(&st, path, e);
    free(path);
    if (!ok) return false;
    st_load_begin(&l, &st, NULL, e);
    l.dev = t->model.dev;
    l.round = true; /* of a run with adapters: bases, in bf16 or not */
    Fields f = st_loader(&l);
    model_fields(&t->model, &t->model.w, &f);
    ok = st_load_end(&l, nothing_else);
    st_close(&st);
    return ok;
}

static bool numbers_load(Trainer *t, const char *dir, int format, const Config *was, Err *e) {
    char **file, *path = xformat("%s/trainer", dir);
    int n;
    Moments m;
    t->stepping = false; /* files have weights as they are evaluated */
    bool ok = weights_load(t, dir, e) && lora_load(t, dir, e) && moments_files(dir, format, &file, &n, e);
    if (ok) {
        ok = moments_open(&m, n == 1 ? file[0] : path, file, n, e);
        if (ok) {
            ok = states_load(t, &t->params, &m, was, e) && states_load(t, &t->adapters, &m, NULL, e) &&
                 (was || moments_all_used(&m, e));
            moments_close(&m);
        }
        for (int i = 0; i < n; i++) free(file[i]);
        free(file);
    }
    free(path);
    return ok;
}
bool checkpoint_load_numbers(Trainer *t, const char *dir, const Config *was, Err *e) {
    return numbers_load(t, dir, CHECKPOINT_FORMAT, was, e);
}

bool checkpoint_fits(const char *init_from, const Config *c, Err *e) {
    const Config *first = config_stage(c, 0).cfg;
    const ModelCfg *m = &first->model;
    Tokenizer tok = {0};
    bool text = !first->data.task.kind;
    char dir[4096];
    Err why = {0};
    if (!*init_from) return true;
    if (text && !data_tokenizer(&first->data, &tok, e)) return false;
    ModelCfg own = *m; /* in a plan, whose vocabulary is not resolved yet */
    if (!own.vocab) own.vocab = text ? tok.vocab : first->data.task.vocab;
    m = &own;
    bool ok = model_dir_resolve(init_from, dir, &why) && ids_fit(dir, m, text ? &tok : NULL, &why) &&
              hf_check_with(dir, peft_path(init_from), m, &why) &&
              source_compare(m, dir, &c->init_change, c->quiet ? NULL : stderr, &why);
    tokenizer_close(&tok);
    if (ok) return true;
    if (why.status == EXIT_RUNTIME) return err_runtime(e, "%s", why.msg);
    return err_input(e, "init_from: %.280s", why.msg);
}

bool checkpoint_load_weights(Trainer *t, const char *init_from, Err *e) {
    char dir[4096];
    return model_dir_resolve(init_from, dir, e) && hf_load_with(dir, peft_path(init_from), &t->model, e);
}

/* ---- saving ---------------------------------------------------------------------------------------------------------
 */

static bool checkpoint_rounds(const Trainer *t) { return t->cfg->train.save_dtype == DTYPE_BF16; }
static bool weights_write(const Trainer *t, const Model *m, const char *dir, Err *e) {
    if (!checkpoint_rounds(t)) return true;
    StList list = {.own = true, .dev = m->dev};
    Fields f = st_lister(&list);
    Weights w = m->w; /* declaring sets shapes again */
    model_fields(m, &w, &f);
    char *path = xformat("%s/%s", dir, WEIGHTS);
    bool ok = st_write(path, &list, NULL, e);
    st_list_free(&list);
    free(path);
    return ok;
}

static bool lora_write(const char *path, Lora *l, Err *e) {
    if (!l->n) return true;
    StList list = {.own = true, .dev = l->dev};
    Fields f = st_lister(&list);
    lora_fields(l, PARAM_WEIGHT, &f);
    list.prefix = "base.";
    lora_bases(l, &f);
    bool ok = st_write(path, &list, NULL, e);
    st_list_free(&list);
    return ok;
}

/* This rank's states of its parameters, all first ones, then the second ones, ... */
static bool states_write(const char *path, const Params *own, Device *dev, Err *e) {
    StList list = {.prefix = "", .own = true, .dev = dev};
    for (int k = 0; k < STATES_MAX; k++)
        for (int i = 0; i < own->n; i++) {
            const Param *p = &own->p[i];
            Tensor x = p->state[k].t;
            char prefix[sizeof p->state->name + 1];
            if (!present(x)) continue;
            snprintf(prefix, sizeof prefix, "%s.", p->state[k].name);
            char *name = shard_entry(prefix, p->name, p->at, tensor_count(x), p->whole);
            if (strchr(name, '[')) x = TENSOR(x.p, x.dtype, (int)tensor_count(x));
            st_add(&list, name, x, x.dtype);
            free(name);
        }
    bool ok = st_write(path, &list, NULL, e);
    st_list_free(&list);
    return ok;
}

static bool text_write(const char *dir, const char *name, char *text, Err *e) {
    char *path = xformat("%s/%s", dir, name);
    bool ok = file_write(path, text, strlen(text), e);
    free(path);
    free(text);
    return ok;
}

/* The model's text interface: its tokenizer, or the task on which it was trained instead. */
static bool text_files_write(const Trainer *t, const char *dir, Err *e) {
    if (t->cfg->data.task.kind) return task_cfg_save(&t->cfg->data.task, dir, e);
    char *jinja = feed_jinja(t);
    ChatTemplate own = {.n = 0};
    const ChatTemplate *chat = &t->run->chat;
    if (jinja) own = chat_template_of(jinja), chat = &own;
    bool ok = text_write(dir, "tokenizer.json", tokenizer_json(&t->tok), e) &&
              text_write(dir, "tokenizer_config.json", chat_template_config(chat, tokenizer_config_json(&t->tok)), e) &&
              chat_template_write(chat, dir, e);
    chat_template_free(&own);
    free(jinja);
    return ok;
}

/* Every id that ended a text of the source ends one of a model tuned on conversations; the template's comes last. */
static void ends_keep(const Trainer *t, HfIds *ids) {
    HfIds all = t->run->source;
    for (int i = 0; i < ids->neos; i++) {
        bool there = false;
        for (int k = 0; k < all.neos; k++) there |= all.eos[k] == ids->eos[i];
        if (!there && all.neos < HF_EOS_MAX) all.eos[all.neos++] = ids->eos[i];
    }
    all.bos = ids->bos;
    *ids = all;
}

static bool model_write(const Trainer *t, const Model *m, Lora *l, const TrainState *s, const char *dir, Err *e) {
    HfIds text = {.bos = t->tok.eot}, none = {.bos = -1};
    if (t->cfg->data.sft.template && t->tok.bos >= 0) text.bos = t->tok.bos; /* begins a conversation, see chat.h */
    text.neos = feed_ends(t, text.eos);
    if (t->cfg->data.sft.template) ends_keep(t, &text);
    const HfIds *ids = t->cfg->data.task.kind ? &none : &text;
    char *trainer = xformat("%s/trainer", dir), *lora = xformat("%s/lora.safetensors", trainer),
         *state = xformat("%s/state.json", trainer);
    bool ok = hf_save(dir, m, ids, checkpoint_rounds(t) ? BF16 : REAL, e) &&
              (!t->run->generation || hf_generation_write(dir, ids, t->run->generation, e)) &&
              weights_write(t, m, dir, e) && text_files_write(t, dir, e) &&
              text_write(trainer, "config.yaml", config_text(t->run->cfg), e) && lora_write(lora, l, e) &&
              adapter_write(t, l, dir, e) && state_write(state, t, s, e) && clock_write(trainer, s, e);
    free(trainer);
    free(lora);
    free(state);
    return ok;
}

Keep checkpoint_keep(const Trainer *t) {
    const TrainCfg *c = &t->cfg->train;
    return (Keep){c->keep_last, c->keep_best, t->run->state.has_best ? t->run->state.best_step : -1};
}

static bool checkpoint_sum(const char *dir, const char *name, FileSum *s, Err *e) {
    char *path = xformat("%s/%s", dir, name);
    bool ok = file_sum(path, s, e);
    free(path);
    return ok;
}

bool checkpoint_begin(Trainer *t, int64_t step, Err *e) {
    if (!journal_sync(&t->run->metrics, e) || !journal_sync(&t->run->sample_file, e) ||
        !journal_sync(&t->run->events, e))
        return false;
    char *dir = run_dir_begin(&t->run->dir, step, e);
    if (!dir) return false;
    char *trainer = xformat("%s/trainer", dir);
    bool ok = !mkdir(trainer, 0777) || err_runtime(e, "cannot make %s: %s", trainer, strerror(errno));
    if (!ok) run_dir_abandon(&t->run->dir, step);
    free(trainer);
    free(dir);
    return ok;
}

bool checkpoint_files(Trainer *t, const CheckpointOf *of, CheckpointSums *sums, Err *e) {
    char *dir = run_dir_unfinished(&t->run->dir, of->state->step),
         *name = shard_name(t->dist.stage ? t->dist.rank : 0, t->dist.stage ? t->dist.world : 1),
         *path = xformat("%s/%s", dir, name);
    bool ok = states_write(path, of->own, of->model->dev, e) && file_sum(path, &sums->moments, e);
    if (trainer_writes(t))
        ok = ok && model_write(t, of->model, of->lora, of->state, dir, e) &&
             checkpoint_sum(dir, "model.safetensors", &sums->model, e) &&
             (!of->lora->n || checkpoint_sum(dir, "trainer/lora.safetensors", &sums->lora, e)) &&
             (!checkpoint_rounds(t) || checkpoint_sum(dir, WEIGHTS, &sums->weights, e));
    free(dir);
    free(name);
    free(path);
    return ok;
}

bool checkpoint_commit(Trainer *t, const CheckpointOf *of, const CheckpointSums *sums, const FileSum *moments,
                       Keep keep, Err *e) {
    int64_t step = of->state->step;
    Manifest m = {.step = step};
    int n = t->dist.stage ? t->dist.world : 1;
    manifest_add(&m, "model.safetensors", sums->model);
    if (of->lora->n) manifest_add(&m, "trainer/lora.safetensors", sums->lora);
    if (checkpoint_rounds(t)) manifest_add(&m, WEIGHTS, sums->weights);
    for (int k = 0; k < n; k++) {
        char *name = shard_name(k, n);
        manifest_add(&m, name, moments[k]);
        free(name);
    }
    char *dir = run_dir_unfinished(&t->run->dir, step), *path = xformat("%s/trainer/manifest.json", dir);
    bool ok = manifest_write(path, &m, e);
    if (!ok) run_dir_abandon(&t->run->dir, step);
    manifest_free(&m);
    free(dir);
    free(path);
    return ok && run_dir_publish(&t->run->dir, step, keep, e);
}

bool checkpoint_write(Trainer *t, const CheckpointOf *of, Keep keep, Err *e) {
    CheckpointSums sums;
    if (!checkpoint_begin(t, of->state->step, e)) return false;
    if (checkpoint_files(t, of, &sums, e)) return checkpoint_commit(t, of, &sums, &sums.moments, keep, e);
    run_dir_abandon(&t->run->dir, of->state->step);
    return false;
}

bool checkpoint_save(Trainer *t, Err *e) {
    CheckpointOf now = {&t->model, &t->lora, trainer_state(t), &t->run->state};
    CHECK(!t->dist.stage, "the optimizer's state is spread");
    if (!trainer_weights(t, e) || !watch_finite(t, e) || !checkpoint_write(t, &now, checkpoint_keep(t), e))
        return false;
    t->run->saved = t->run->state.step;
    return true;
}
