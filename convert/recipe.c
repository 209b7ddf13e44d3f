/* recipe.c: see recipe.h. */
#include "recipe.h"
#include <jansson.h>
#include <stdlib.h>
#include "model/config/task_cfg.h"
#include "ops/file.h"
#include "ops/oom.h"

enum { SEQ_LEN = 1024 };

static bool has_mixer(const ModelCfg *m, const char *name) {
    for (int i = 0; i < m->nkinds; i++)
        if (!strcmp(m->kind[i].mixer->name, name)) return true;
    return false;
}

/* True if YAML and the settings can hold the name. */
static bool recipe_writable(const char *path) {
    json_t *j = json_string(path);
    bool ok = j && strlen(path) < KEY_TEXT_MAX && !strpbrk(path, "\n\t") && strncmp(path, "${here}", 7);
    json_decref(j);
    return ok;
}

static void write_teacher(Writer *w, const char *real, bool adapter) {
    if (!real) return;
    if (!recipe_writable(real)) {
        fputs("\n# teacher: {path: ...} is the source of the conversion, whose name cannot be written here.\n", w->f);
    } else {
        fprintf(w->f,
                "\n# %s so the model also learns from its source. null trains on the text alone.\nteacher:\n  path: ",
                adapter ? "Rows will be evicted," : "The conversion is approximate,");
        write_text(w, real);
        fputs("\n  losses: {lm: 1.0, kl: 1.0}\n", w->f);
    }
}

static void write_data(Writer *w, const ModelCfg *m, const TaskCfg *task) {
    if (task->kind) {
        fputs("\ndata:\n  task: ", w->f);
        w->first = true, w->flow = 0;
        write_map(w, true);
        task_cfg_write(w, task, false);
        write_map_end(w);
        fprintf(w->f, "\n  seq_len: %d\n", task->T);
        return;
    }
    fprintf(w->f,
            "\ndata:\n  train: ???              # your text, here or as data.train=FILE on the command line\n"
            "  seq_len: %d              # the model has %d positions\n",
            imin(SEQ_LEN, m->max_positions), m->max_positions);
}

/* The schedule: its stages where it has some. */
static void write_schedule(Writer *w, const ModelCfg *m, const Retrofit *f) {
    fputs("\ntrain:\n", w->f);
    if (!f->steps) fputs("  steps: 1000\n", w->f);
    fputs("  batch: 16\n  micro_batch: 1           # more at once is faster and needs more memory; --plan prints how "
          "much\n  eval_every: 100\n  save_every: 500\n",
          w->f);
    if (!f->steps) {
        fputs("\noptim:\n  lr: 1e-4\n  min_lr: 1e-5\n  warmup: 5%\n", w->f);
        return;
    }
    const RetrofitSteps n = retrofit_steps(f->steps, f->adapter);
    if (f->adapter) fputs("  train_only: ['*decide_proj*']  # everything else stays as it is\n", w->f);
    fprintf(w->f,
            "\n# %s while the target grows; the target holds.\n"
            "# The gain of model.kinds was chosen for this rate: change both together.\n"
            "optim:\n  lr: %g\n  warmup: 0\n  schedule: constant\nstages:\n",
            f->adapter ? "Adapters learn to decide"
                       : "The decision channel of each head fades from attention; it decides",
            f->rate);
    if (!f->adapter) fprintf(w->f, "  - {name: zero, steps: %d}\n", n.zero);
    for (int fix = 0; fix < 2; fix++) {
        fprintf(w->f, "  - name: %s\n    steps: %d\n    set:\n", fix ? "fix" : "retrofit", fix ? n.fix : n.ramp);
        for (int i = 0; i < m->nkinds && !f->adapter; i++) /* an adapter has no other phase */
            if (!strcmp(m->kind[i].mixer->name, "dmc"))
                fprintf(w->f, "      model.kinds.%s.phase: soft\n", m->kind[i].name);
        fprintf(w->f, "      train.compression: {target: %g, ramp: %s, exact: true}\n", f->target,
                fix ? "false" : "true");
        if (fix) fputs("      optim: {schedule: cosine, min_lr: 0}  # decisions come to rest\n", w->f);
    }
}

bool recipe_write(const char *dir, const ModelCfg *m, const char *teacher, const Retrofit *retrofit, Err *e) {
    TaskCfg task = {0};
    char *text = NULL, *real = teacher ? realpath(teacher, NULL) : NULL;
    size_t n;
    if (teacher && !real) return err_errno(e, "cannot look at", teacher);
    if (!task_cfg_load(&task, dir, e)) {
        free(real);
        return false;
    }
    char *path = xformat("%s/train.yaml", dir);
    Writer w = {.first = true, .f = oom_stream(&text, &n)};
    fprintf(w.f,
            "# Continue training this converted model: kvsmith train train.yaml%s\n"
            "# then: kvsmith generate run. ${here} is the folder of this file, so the folder may be moved before.\n"
            "run:\n  dir: ${here}/run\n"
            "init_from: ${here}              # model and %s; keys under `model:` change single settings\n",
            task.kind ? "" : " data.train=FILE", task.kind ? "weights" : "tokenizer");
    write_teacher(&w, real, retrofit->adapter);
    if (!retrofit->steps)
        fputs("\n# All weights are trained. Adapters alone need less memory:\n"
              "# lora: {rank: 16, alpha: 32}   # and optim.lr: 5e-4\n",
              w.f);
    if (has_mixer(m, "dmc") && !retrofit->steps)
        fputs("\n# Layers of mixer dmc learn to merge in stages: see configs/dmc.yaml.\n", w.f);
    write_data(&w, m, &task);
    write_schedule(&w, m, retrofit);
    fclose(w.f);
    bool ok = file_write(path, text, n, e);
    free(text);
    free(path);
    free(real);
    return ok;
}
