#include "teacher.h"
#include "model/cost.h"
#include "model/files/hf.h"
#include "model/files/peft.h"
#include "ops/host.h"
#include "ids.h"
#include "trainer.h"

/* ---- opening --------------------------------------------------------------------------------------------------------
 */

static bool teacher_fits(Trainer *t, Teacher *s, Err *e) {
    const ModelCfg *own = &t->cfg->model;
    const TeacherLosses *l = &t->cfg->teacher.losses;
    const char *layered = l->attention > 0 ? "attention" : "hidden";
    if (!ids_fit(s->dir, own, t->cfg->data.task.kind ? NULL : &t->tok, e) ||
        !hf_check_with(s->dir, peft_path(t->cfg->teacher.path), &s->cfg, e))
        return false;
    if (s->cfg.max_positions < t->cfg->data.seq_len)
        return err_input(e, "%.150s has %d positions, data.seq_len is %d", s->dir, s->cfg.max_positions,
                         t->cfg->data.seq_len);
    if (l->attention == 0 && l->hidden == 0) return true;
    if (s->cfg.d_model != own->d_model)
        return err_input(e, "%.150s has d_model %d, the model %d; give teacher.losses.%s 0", s->dir, s->cfg.d_model,
                         own->d_model, layered);
    return s->cfg.layers == own->layers || err_input(e, "%.150s has %d layers, the model %d; give teacher.losses.%s 0",
                                                     s->dir, s->cfg.layers, own->layers, layered);
}

/* Tensors of a micro-batch, in the order of their declaration; without memory while dry. */
static void teacher_rows_take(Teacher *s, const TeacherCfg *c, int N) {
    const TeacherLosses *l = &c->losses;
    const int e = s->cfg.d_model;
    Teach *h = &s->teach;
    Fields f = arena_placer(&s->rows);
    const size_t row = (size_t)N * sizeof(real);
    *h = (Teach){.logits = {l->lm, l->kl, l->rkl, c->temperature, LOGITS_PLAIN, model_logits(&s->model)},
                 .attention = l->attention,
                 .hidden = l->hidden};
    if (l->kl > 0 || l->rkl > 0) {
        field(&f, &h->xf, "teacher's rows", 0, N, e);
        h->kl = arena_take(&s->rows, row, "kl");
        h->rkl = arena_take(&s->rows, row, "rkl");
    }
    if (l->attention > 0) {
        for (int i = 0; i < s->model.L; i++)
            if (!s->model.layer[i].publisher) field(&f, &s->mix[i], "teacher's mixer", 0, N, e);
        h->mix = s->mix;
        h->mixs = arena_take(&s->rows, row, "attention");
    }
    if (l->hidden > 0) {
        for (int i = 0; i < s->model.L; i++) field(&f, &s->out[i], "teacher's stream", 0, N, e);
        h->out = s->out;
        h->outs = arena_take(&s->rows, row, "hidden");
    }
    h->head = s->cfg.tied ? s->model.w.embed : s->model.w.head;
}

typedef struct {
    Device *dev;
    uint64_t sum;
} Hash;
/* Hashes pieces of fixed size and combines them in order, so the number of threads changes nothing. */
static void see_hash(Fields *f, Tensor *t, const char *path, unsigned flags) {
    enum { PIECE = 1 << 16 };
    Hash *h = f->ctx;
    Tensor view = view_open(h->dev, *t, true);
    size_t n = tensor_count(*t), pieces = (n + PIECE - 1) / PIECE;
    uint64_t *part = xcalloc(pieces + 1, sizeof *part);
    (void)flags;
#pragma omp parallel for schedule(static)
    for (size_t p = 0; p < pieces; p++) {
        size_t end = zmin(n, (p + 1) * PIECE);
        for (size_t i = p * PIECE; i < end; i++) {
            uint64_t bits = 0;
            real x; /* as `real`, whatever it is in memory */
            tensor_read(view, i, 1, &x);
            memcpy(&bits, &x, sizeof x);
            part[p] = (part[p] ^ bits) * 0x100000001b3u;
        }
    }
    h->sum = rng_name(h->sum, path);
    for (size_t p = 0; p < pieces; p++) h->sum = rng_mix(h->sum, part[p]);
    free(part);
    view_close(h->dev, *t, view, false);
}
static uint64_t hash_of(Teacher *s) {
    char *json = model_cfg_json(&s->cfg);
    Hash h = {s->model.dev, rng_name(1, json)};
    Fields f = {.see = see_hash, .ctx = &h};
    model_fields(&s->model, &s->model.w, &f);
    free(json);
    return h.sum ? h.sum : 1;
}

static bool open(Trainer *t, Teacher *s, Err *e) {
    const TeacherCfg *c = &t->cfg->teacher;
    const int b = t->cfg->train.micro_batch, N = b * t->cfg->data.seq_len;
    ModelOpts o = {.max_rows = N, .max_samples = b, .dry = t->dry, .states = true};
    if (!model_dir_resolve(c->path, s->dir, e) || !hf_config_read(s->dir, &s->cfg, e) || !teacher_fits(t, s, e) ||
        !trainer_stores_bf16(t, "teacher.dtype", c->dtype, peft_is(c->path) ? "" : s->dir, &o.bf16_weights, e) ||
        !model_open(&s->model, t->dev, &s->cfg, o, e) || !workspace_open(&s->work, &s->model, e))
        return false;
    model_plan(&s->model, t->cfg->data.seq_len);
    s->rows.name = "teacher's rows";
    teacher_rows_take(s, c, N);
    s->flops = cost_model(&s->model, t->cfg->data.seq_len).itemised / 3;
    if (t->dry) return true;
    if (!arena_open_at(&s->rows, device_memory(t->dev, false), "teacher's rows", s->rows.peak, false, e)) return false;
    teacher_rows_take(s, c, N);
    if (!hf_load_with(s->dir, peft_path(c->path), &s->model, e)) return false;
    s->hash = hash_of(s);
    return dist_same(t->run->comm, "teacher weights", s->hash, e);
}

bool teacher_open(Trainer *t, ModelOpts *student, Err *e) {
    Teacher *s = &t->teacher;
    Err why = {0};
    *s = (Teacher){0};
    if (!teacher_wanted(&t->cfg->teacher)) return true;
    s->on = true;
    if (open(t, s, &why)) {
        s->loss = teach_hook(&s->teach);
        student->loss = &s->loss;
        return true;
    }
    teacher_close(s);
    if (why.status == EXIT_RUNTIME) return err_runtime(e, "%s", why.msg);
    return err_input(e, "teacher.path: %.270s", why.msg);
}

void teacher_close(Teacher *s) {
    workspace_close(&s->work);
    if (s->model.dev) model_close(&s->model);
    arena_close(&s->rows);
    model_cfg_free(&s->cfg);
    *s = (Teacher){0};
}

void teacher_regions(const Teacher *s, Regions *r) {
    if (!s->on) return;
    regions_add(r, "teacher_weights", &s->model.aw, 0);
    regions_add(r, "teacher_weights_bf16", &s->model.ah, REGION_IF_ANY);
    regions_add(r, "teacher_activations", &s->work.keep, 0);
    regions_add(r, "teacher_scratch", &s->work.scratch, 0);
    regions_add(r, "teacher_rows", &s->rows, 0);
}

bool teacher_same(const Trainer *t, uint64_t saved, const char *dir, Err *e) {
    uint64_t now = t->teacher.on ? t->teacher.hash : 0;
    if (now == saved) return true;
    if (!now || !saved)
        return err_input(e, "teacher.path: checkpoint %.150s was trained %s a teacher; that may not change on resume",
                         dir, saved ? "with" : "without");
    return err_input(e, "teacher.path: %.120s differs from the teacher that checkpoint %.120s was trained with",
                     t->teacher.dir, dir);
}

/* ---- a step ---------------------------------------------------------------------------------------------------------
 */

static void teacher_add(double *sum, const real *rows, int n) {
    for (int i = 0; rows && i < n; i++) *sum += (double)rows[i];
}

void teacher_step(Trainer *t, TrainLosses *sums) {
    Teacher *s = &t->teacher;
    const Loader *l = &t->loader;
    const int N = l->batch.N;
    Teach now = s->teach; /* of as many rows as there are */
    Tensor mix[LAYERS_MAX], out[LAYERS_MAX];
    if (present(now.xf)) now.xf.n[0] = N;
    for (int i = 0; i < s->model.L; i++) {
        mix[i] = s->mix[i], out[i] = s->out[i];
        mix[i].n[0] = out[i].n[0] = N;
    }
    if (now.mix) now.mix = mix;
    if (now.out) now.out = out;
    model_states(&s->model, &s->work, &l->batch, l->tok, now.xf, now.mix, now.out);
    const bool apart = device_apart(t->dev);
    const LossHook loss = teach_hook(&now);
    model_train_with(&t->model, &t->work, &l->batch, l->tok, l->tgt, t->g, apart ? NULL : t->nll, &loss);
    if (apart) return;
    teacher_add(&sums->kl, now.kl, N);
    teacher_add(&sums->rkl, now.rkl, N);
    teacher_add(&sums->attention, now.mixs, N);
    teacher_add(&sums->hidden, now.outs, N);
}

double teacher_loss(const Teacher *s, TrainLosses *l, double lm, int64_t targets) {
    const Teach *h = &s->teach;
    const double n = (double)targets;
    *l = (TrainLosses){true, h->logits.kl > 0, h->logits.rkl > 0, h->attention > 0, h->hidden > 0,
                       lm,   l->kl / n,        l->rkl / n,        l->attention / n, l->hidden / n};
    return h->logits.lm * lm + h->logits.kl * l->kl + h->logits.rkl * l->rkl + h->attention * l->attention +
           h->hidden * l->hidden;
}
