/* job.c: what a target's rule asks of the job: tensors of the source and of the target, layer by layer, and kinds. */
#include "job.h"
#include "ops/signals.h"

const GqaCfg *job_gqa(const Model *m, int l) {
    return m->layer[l].kind->mixer == mixer_find("gqa") ? m->layer[l].cfg : NULL;
}

const MlaCfg *job_mla(const Model *m, int l) { return m->layer[l].kind->mixer == &mla_mixer ? m->layer[l].cfg : NULL; }

json_t *job_kind(json_t *model, const char *mixer, json_t *after) {
    const char *name;
    json_t *kind, *kinds = json_object_get(model, "kinds");
    bool passed = !after;
    json_object_foreach(kinds, name, kind) {
        if (passed && !strcmp(json_string_value(json_object_get(kind, "mixer")), mixer)) return kind;
        passed |= kind == after;
    }
    return NULL;
}

const StEntry *job_entry(const Job *j, const char *path, Tensor t, StPlace *place) {
    return hf_files_find(&j->files, path, t, place);
}

typedef struct {
    const char *name;
    Tensor t;
    unsigned flags;
} Finding;
static void job_find_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Finding *x = f->ctx;
    if (!strcmp(path, x->name)) x->t = *t, x->flags = flags;
}
Tensor job_declared(const Model *m, int l, const char *name) {
    char *full = xformat("model.layers.%d.%s", l, name);
    Finding x = {full, ABSENT, 0};
    Weights w = m->w;
    model_layer_fields(m, l, &w, &(Fields){.see = job_find_field, .ctx = &x});
    free(full);
    x.t.p = NULL;
    return x.t;
}
bool job_has(const Job *j, int l, const char *name) { return present(job_declared(&j->b, l, name)); }

static Tensor job_piece(Job *j, bool out, int l, const char *name, Tensor shape) {
    char *full = xformat("model.layers.%d.%s", l, name);
    for (int i = 0; i < j->npiece; i++)
        if (j->piece[i].out == out && !strcmp(j->piece[i].name, full)) {
            free(full);
            return j->piece[i].t;
        }
    Tensor t = arena_tensor(&j->layer, name, REAL, shape.rank, shape.n);
    j->piece = xrealloc(j->piece, (size_t)j->npiece + 1, sizeof *j->piece);
    j->piece[j->npiece++] = (JobPiece){full, out, t};
    if (!out && !j->failed) {
        StPlace place;
        const StEntry *s = job_entry(j, full, t, &place);
        j->failed = !st_read_part(&j->files.st, s, t, place, j->err);
    }
    return t;
}
Tensor job_in(Job *j, int l, const char *name) {
    Tensor t = job_declared(&j->a, l, name);
    return present(t) ? job_piece(j, false, l, name, t) : ABSENT;
}
Tensor job_out(Job *j, int l, const char *name) {
    Tensor t = job_declared(&j->b, l, name);
    return present(t) ? job_piece(j, true, l, name, t) : ABSENT;
}
Tensor job_edit(Job *j, int l, const char *name) {
    int before = j->npiece;
    Tensor out = job_out(j, l, name);
    if (j->npiece == before || !present(out)) return out;
    Tensor in = job_in(j, l, name);
    CHECK(tensor_bytes(in) == tensor_bytes(out), "%s has another shape", name);
    if (!j->failed) memcpy(out.p, in.p, tensor_bytes(out));
    return out;
}
void job_layer_drop(Job *j) {
    for (int i = 0; i < j->npiece; i++) free(j->piece[i].name);
    free(j->piece);
    j->piece = NULL;
    j->npiece = 0;
}
void job_layer_done(Job *j) {
    job_layer_drop(j);
    arena_release(&j->layer, (Mark){0});
}

bool job_interrupted(Err *e) {
    if (!signals_pending()) return false;
    err_runtime(e, "interrupted; nothing was written");
    if (e) e->status = EXIT_SIGNAL;
    return true;
}

ConvertSize job_size(const Model *m, size_t params, size_t bytes) {
    CacheCost c;
    cost_cache(m, 0, &c);
    return (ConvertSize){params, bytes, c.bytes_per_token, c.state_bytes};
}
