/* compare_run.c: one run of a comparison: what is known of it from its folder, and training it in a child process. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>
#include "ops/file.h"
#include "compare.h"
#include "compare_child.h"
#include "infer/engine.h"

/* ---- what is known -------------------------------------------------------------------------------------------------
 */

static bool compare_run_member(const char *line, const char *name, double *v) {
    const char *at = strstr(line, name);
    if (at) *v = strtod(at + strlen(name), NULL);
    return at != NULL;
}

bool compare_metrics(const char *folder, RunRecord *r, Err *e) {
    char *path = xformat("%s/metrics.jsonl", folder), *line = NULL;
    struct stat st;
    FileMap m = {0};
    double step, tokens, rate, loss, count, before = (double)r->start, seconds = 0;
    r->step = r->val_tokens = 0;
    r->val_loss = r->first_loss = NAN, r->tok_s = r->seconds = 0;
    bool ok = file_look(path, &st, e) ? file_map(&m, path, e) : !e->status;
    const char *at = (const char *)m.p, *all = at + m.n;
    for (const char *end; at < all && (end = memchr(at, '\n', (size_t)(all - at))); at = end + 1) {
        free(line);
        line = xformat("%.*s", (int)zmin((size_t)(end - at), 1 << 20), at);
        if (!compare_run_member(line, "{\"step\":", &step)) continue;
        r->step = (int64_t)fmax((double)r->step, step);
        if (compare_run_member(line, "\"val_loss\":", &loss) && compare_run_member(line, "\"val_tokens\":", &count)) {
            if (!(step > 0)) r->first_loss = loss;
            if (step > 0) r->val_loss = loss, r->val_tokens = (int64_t)count;
        } else if (compare_run_member(line, "\"tokens\":", &tokens) && compare_run_member(line, "\"tok_s\":", &rate) &&
                   rate > 0) {
            /* a record's rate is that of the steps since the record before */
            seconds += (tokens - before) / rate;
            before = tokens;
        }
    }
    if (seconds > 0) r->tok_s = (before - (double)r->start) / seconds, r->seconds = seconds;
    file_unmap(&m);
    free(line);
    free(path);
    return ok;
}

static char *compare_run_beside(const Config *cfg, const char *end) { return xformat("%s.%s", cfg->run.dir, end); }

/* A folder was begun by the same settings. */
static bool same_settings(const Config *cfg, Err *e) {
    char *path = xformat("%s/config.yaml", cfg->run.dir);
    Config *saved = xcalloc(1, sizeof *saved);
    Err why = {0};
    bool ok = config_read(saved, path, 0, NULL, e);
    if (ok) {
        ok = config_same_run(saved, cfg, &why);
        if (!ok) err_input(e, "%.100s: %.150s; remove it or choose another dir", cfg->run.dir, why.msg);
        config_free(saved);
    }
    free(saved);
    free(path);
    return ok;
}

static bool record_read(const Compare *c, const Config *cfg, RunRecord *r, Err *e) {
    char *path = compare_run_beside(cfg, "json");
    json_t *j = json_read(path, e);
    bool ok = j != NULL;
    if (ok) {
        const char *state = json_string_value(json_object_get(j, "state")),
                   *hash = json_string_value(json_object_get(j, "text_hash")),
                   *why = json_string_value(json_object_get(j, "why"));
        ok = state && hash && (!strcmp(state, "finished") || !strcmp(state, "diverged"));
        if (!ok) {
            err_input(e, "%s: expected the record of a run; remove the file and run the command again", path);
        } else if (strcmp(hash, c->text_hash)) {
            ok = err_input(e, "%.150s was trained on another text; remove it or choose another dir", cfg->run.dir);
        } else {
            r->state = *state == 'f' ? RUN_FINISHED : RUN_DIVERGED;
            r->step = json_integer_value(json_object_get(j, "step"));
            r->tokens = json_integer_value(json_object_get(j, "tokens"));
            r->val_tokens = json_integer_value(json_object_get(j, "val_tokens"));
            r->threads = (int)json_integer_value(json_object_get(j, "threads"));
            r->cut = json_is_true(json_object_get(j, "cut"));
            const json_t *loss = json_object_get(j, "val_loss");
            r->val_loss = json_is_number(loss) ? json_number_value(loss) : NAN;
            const json_t *first = json_object_get(j, "first_loss");
            r->first_loss = json_is_number(first) ? json_number_value(first) : NAN;
            r->tok_s = json_number_value(json_object_get(j, "tok_s"));
            r->seconds = json_number_value(json_object_get(j, "seconds"));
            snprintf(r->why, sizeof r->why, "%s", why ? why : "");
        }
    }
    json_decref(j);
    free(path);
    return ok;
}

static bool record_write(const Compare *c, const Config *cfg, const RunRecord *r, Err *e) {
    bool done = r->state == RUN_FINISHED;
    json_t *j = json_pack("{s:s, s:f, s:I, s:I, s:I, s:I, s:b, s:o, s:I, s:o, s:o, s:i, s:s, s:s}", "state",
                          done ? "finished" : "diverged", "lr", r->lr, "seed", (json_int_t)r->seed, "step",
                          (json_int_t)r->step, "steps", (json_int_t)r->steps, "tokens", (json_int_t)r->tokens, "cut",
                          r->cut, "val_loss", engine_number(r->val_loss), "val_tokens", (json_int_t)r->val_tokens,
                          "tok_s", engine_number(r->tok_s), "seconds", engine_number(r->seconds), "threads", r->threads,
                          "version", KVSMITH_VERSION, "text_hash", c->text_hash);
    if (isfinite(r->first_loss)) json_object_set_new(j, "first_loss", json_real(r->first_loss));
    if (!done) json_object_set_new(j, "why", json_string(r->why));
    char *path = compare_run_beside(cfg, "json");
    bool ok = json_write(path, j, e);
    free(path);
    json_decref(j);
    return ok;
}

bool compare_look(const Compare *c, const CompareRow *row, const Config *cfg, int mark, RunRecord *r, Err *e) {
    int64_t before = mark > 0 ? row->mark_hold[mark - 1] : 0;
    *r = (RunRecord){.lr = cfg->optim.lr,
                     .seed = cfg->run.seed,
                     .steps = compare_steps(c, row, cfg->run.seed, mark),
                     .start = before * cfg->train.batch * cfg->data.seq_len,
                     .val_loss = NAN,
                     .first_loss = NAN};
    if (!file_exists(cfg->run.dir, "config.yaml", e)) return !e->status;
    if (!same_settings(cfg, e)) return false;
    struct stat st;
    char *record = compare_run_beside(cfg, "json");
    bool over = file_look(record, &st, e);
    free(record);
    if (e->status) return false;
    if (over) return record_read(c, cfg, r, e);
    r->state = RUN_BEGUN;
    if (!compare_metrics(cfg->run.dir, r, e)) return false;
    r->tokens = r->step * cfg->train.batch * cfg->data.seq_len;
    return true;
}

/* ---- the child -----------------------------------------------------------------------------------------------------
 */

typedef struct {
    const char *name;
    const Progressing *p;
    double shown;
} Showing;
/* A step of a run as the live line. */
static void compare_run_show(void *ctx, const char *line) {
    Showing *s = ctx;
    if (!s->p->live || strncmp(line, "step ", 5) || now_seconds() - s->shown < 0.1) return;
    fprintf(s->p->out, "\r[%d/%d] %s  %.90s\x1b[K", s->p->at, s->p->total, s->name, line);
    fflush(s->p->out);
    s->shown = now_seconds();
}

/* Time left; a run that was killed a moment before its end still has a second for it. */
static double seconds_left(const Compare *c, const RunRecord *r) {
    return c->budget.max_seconds > 0 ? fmax(1, c->budget.max_seconds - r->seconds) : 0;
}

static bool settings_write(const Config *cfg, char **path, Err *e) {
    char *folder = xstrdup(cfg->run.dir), *text = config_text(cfg);
    *strrchr(folder, '/') = 0;
    *path = compare_run_beside(cfg, "yaml");
    bool ok = file_folders(folder, "folder", NULL, e) && file_write(*path, text, strlen(text), e);
    free(folder);
    free(text);
    return ok;
}

bool compare_train(const Compare *c, const CompareRow *row, const Config *settings, int mark, Progressing *p,
                   RunRecord *r, int *status, Err *e) {
    Child k = {0};
    char *path, msg[301], name[128], lr[32], at[32] = "";
    Config cfg = *settings;
    if (row->marks.n)
        snprintf(at, sizeof at, " mark %g %%", row->marks.v[mark]);
    else
        cfg.train.max_seconds = seconds_left(c, r);
    snprintf(name, sizeof name, "%.40s lr %s seed %lld%s", row->name, compare_lr_name(r->lr, lr), (long long)r->seed,
             at);
    p->at++;
    if (p->out && !p->live)
        fprintf(p->out, "[%d/%d] %s: %s step %lld of %lld\n", p->at, p->total, name,
                r->state == RUN_BEGUN ? "continues at or before" : "begins at",
                (long long)(r->state == RUN_BEGUN ? r->step : r->start / (cfg.train.batch * cfg.data.seq_len)),
                (long long)r->steps),
            fflush(p->out);
    bool ok = settings_write(&cfg, &path, e);
    if (ok) { /* its own newest checkpoint, or the one that it branches off from */
        char *start = compare_mark_start(c, row, r->lr, r->seed, mark);
        bool own = !start || file_exists(cfg.run.dir, "last/config.json", e);
        char *argv[] = {"kvsmith", "train", path, "--resume", own ? "auto" : start, NULL};
        ok = !e->status && child_start(&k, argv, e);
        free(start);
    }
    free(path);
    if (!ok) return false;
    Showing s = {name, p, 0};
    int end = child_follow(&k, compare_run_show, &s);
    if (s.shown > 0) fputs("\r\x1b[K", p->out);
    child_said(&k, msg);
    *status = 0;
    if (WIFSIGNALED(end))
        return err_runtime(e, "%.150s: the run was killed by signal %d; run the same command to continue", cfg.run.dir,
                           WTERMSIG(end));
    if (WEXITSTATUS(end) == EXIT_SIGNAL) {
        *status = EXIT_SIGNAL;
        return true;
    }
    bool diverged = WEXITSTATUS(end) == EXIT_RUNTIME && !strncmp(msg, "training diverged", 17);
    if (WEXITSTATUS(end) == EXIT_INPUT) return err_input(e, "%s", msg);
    if (WEXITSTATUS(end) && !diverged) return err_runtime(e, "%s", *msg ? msg : "a run failed without a message");
    if (!compare_metrics(cfg.run.dir, r, e)) return false;
    r->state = diverged ? RUN_DIVERGED : RUN_FINISHED;
    r->tokens = r->step * cfg.train.batch * cfg.data.seq_len;
    r->seconds = r->tok_s > 0 ? (double)r->tokens / r->tok_s : 0;
    r->cut = !diverged && r->step < r->steps;
    r->threads = c->threads;
    if (diverged)
        snprintf(r->why, sizeof r->why, "%s", msg);
    else if (!isfinite(r->val_loss))
        return err_runtime(e, "%.150s: the run ended without a validation", cfg.run.dir);
    if (!record_write(c, &cfg, r, e)) return false;
    if (p->out && diverged) fprintf(p->out, "[%d/%d] %s: %s\n", p->at, p->total, name, r->why);
    if (p->out && !diverged)
        fprintf(p->out, "[%d/%d] %s: validation loss %.4f after %lld steps, %.1f s (%.0f tok/s)%s\n", p->at, p->total,
                name, r->val_loss, (long long)r->step, r->seconds, r->tok_s,
                r->cut ? ", stopped by the time limit" : "");
    if (p->out) fflush(p->out);
    return true;
}
