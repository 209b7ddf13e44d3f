/* dirs.c: see dirs.h. */
#include "dirs.h"
#include "model/files/safetensors.h"
#include <sys/stat.h>
#include <unistd.h>

const char *const dir_names[DIR_NAMES] = {"llama3-untied", "llama3-tied", "bias",     "bf16",    "mqa-wide",
                                          "linear",        "yarn",        "longrope", "dynamic", "sharded"};

void dir_refused(const char *what, const char *path, const Err *e, const char *part) {
    cr_expect_eq(e->status, EXIT_INPUT, "%s: status %d: %s", what, e->status, e->msg);
    cr_expect(strstr(e->msg, part), "%s: no '%s' in: %s", what, part, e->msg);
    cr_expect(strlen(e->msg) <= 300 && !strchr(e->msg, '\n'), "%s: %s", what, e->msg);
    if (path) cr_expect(strstr(e->msg, path), "%s: no file name in: %s", what, e->msg);
}

/* (N,V) logits of B documents of T tokens each, in one pass. */
real *dir_logits(Model *m, const int *tok, int B, int T) {
    int N = B * T;
    int *of = xcalloc((size_t)N, sizeof *of), *pos = xcalloc((size_t)N, sizeof *pos),
        *first = xcalloc((size_t)N, sizeof *first);
    int *all = xcalloc((size_t)N, sizeof *all), *off = xcalloc((size_t)B + 1, sizeof *off),
        *seq = xcalloc((size_t)B, sizeof *seq);
    uint64_t *id = xcalloc((size_t)B, sizeof *id);
    for (int i = 0; i < N; i++) of[i] = i / T, pos[i] = i % T, first[i] = i / T * T, all[i] = i;
    for (int b = 0; b < B; b++) off[b + 1] = (b + 1) * T, seq[b] = b, id[b] = (uint64_t)b;
    Batch batch = {.B = B, .N = N, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .id = id};
    real *logits = xcalloc((size_t)N * (size_t)m->cfg.vocab, sizeof *logits);
    Cache cache;
    Workspace work;
    Err e = {0};
    workspace_empty(&work, m, m->dev);
    cr_assert(model_cache_open(m, &cache, B, T, N, 0, false, &e), "%s", e.msg);
    cr_assert(model_extend_reserve(m, &work, &cache, N, N, B, &e), "%s", e.msg);
    cr_assert(model_extend(m, &work, &cache, &batch, tok, (RowList){N, all}, TENSOR(logits, REAL, N, m->cfg.vocab), &e),
              "%s", e.msg);
    kv_close(&cache);
    workspace_close(&work);
    free(of), free(pos), free(first), free(all), free(off), free(seq), free(id);
    return logits;
}

real *dir_in_pieces(Model *m, const int *tok, int T, const int *cuts, Cache *cache) {
    const int V = m->cfg.vocab;
    int *pos = xcalloc((size_t)T, sizeof *pos), *first = xcalloc((size_t)T, sizeof *first),
        *of = xcalloc((size_t)T, sizeof *of), *all = xcalloc((size_t)T, sizeof *all);
    real *logits = xcalloc((size_t)T * (size_t)V, sizeof *logits);
    uint64_t id = 0;
    Workspace work;
    Err e = {0};
    workspace_empty(&work, m, m->dev);
    cr_assert(model_cache_open(m, cache, 1, T, T, 4, false, &e), "%s", e.msg);
    cr_assert(model_extend_reserve(m, &work, cache, T, T, 1, &e), "%s", e.msg);
    for (int t = 0; t < T; t++) all[t] = t;
    for (const int *at = cuts; *at < T; at++) {
        const int n = at[1] - at[0];
        int off[2] = {0, n}, seq = 0;
        for (int t = 0; t < n; t++) pos[t] = at[0] + t, first[t] = at[0] ? -1 : 0;
        Batch b = {.B = 1, .N = n, .off = off, .seq = &seq, .of = of, .pos = pos, .first = first, .id = &id};
        b.history = at[0] > 0;
        Tensor out = TENSOR(logits + (size_t)at[0] * (size_t)V, REAL, n, V);
        cr_assert(model_extend(m, &work, cache, &b, tok + at[0], (RowList){n, all}, out, &e), "%s", e.msg);
    }
    workspace_close(&work);
    free(pos), free(first), free(of), free(all);
    return logits;
}

void dir_open(Dir *o, const char *dir) {
    Err e = {0};
    cr_assert(device_open(&o->dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(hf_config_read(dir, &o->cfg, &e), "%s", e.msg);
    cr_assert(hf_check(dir, &o->cfg, &e), "%s", e.msg);
    cr_assert(model_open(&o->model, o->dev, &o->cfg, (ModelOpts){.poison = true}, &e), "%s", e.msg);
    cr_assert(hf_load(dir, &o->model, &e), "%s", e.msg);
}
void dir_close(Dir *o) {
    model_close(&o->model);
    model_cfg_free(&o->cfg);
    device_close(o->dev);
}

/* Our logits of the golden input of `dir` with the weights of `o`; *want: those of transformers. */
real *dir_golden(Dir *o, const char *dir, real **want, int *n) { return dir_golden_of(o, dir, "logits", want, n); }
real *dir_golden_of(Dir *o, const char *dir, const char *name, real **want, int *n) {
    char *path = xformat("%s/golden.safetensors", dir);
    St st;
    Err e = {0};
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    const StEntry *ids = st_find(&st, "input_ids"), *logits = st_find(&st, name);
    if (!logits) {
        st_close(&st);
        free(path);
        return NULL;
    }
    int B = (int)ids->shape[0], T = (int)ids->shape[1], V = (int)logits->shape[2], tok[1024];
    cr_assert(!strcmp(ids->dtype, "I64") && B * T <= 1024 && V == o->cfg.vocab);
    for (int i = 0; i < B * T; i++) tok[i] = ids->p[8 * i] | ids->p[8 * i + 1] << 8;
    *n = B * T * V;
    *want = xcalloc((size_t)*n, sizeof **want);
    cr_assert(st_read(&st, logits, TENSOR(*want, REAL, B, T, V), &e), "%s", e.msg);
    st_close(&st);
    free(path);
    return dir_logits(&o->model, tok, B, T);
}

static void link_file(const char *from, const char *dir, const char *name) {
    char *here = realpath(from, NULL), *to = xformat("%s/%s", dir, name);
    if (here) cr_assert_eq(symlink(here, to), 0, "%s", to);
    free(here);
    free(to);
}

/* A copy of a golden directory whose config.json is the test's own. */
char *dir_stage(const char *golden, json_t **config) {
    static int count;
    char name[32], from[256];
    snprintf(name, sizeof name, "model-%d", count++);
    char *dir = check_path(name);
    cr_assert_eq(mkdir(dir, 0700), 0);
    static const char *const files[] = {"model.safetensors", "generation_config.json", "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, GOLDEN "%s/%s", golden, files[i]);
        link_file(from, dir, files[i]);
    }
    snprintf(from, sizeof from, GOLDEN "%s/config.json", golden);
    *config = json_load_file(from, 0, NULL);
    cr_assert(*config);
    return dir;
}
void dir_config(const char *dir, const json_t *j) {
    char *path = xformat("%s/config.json", dir);
    cr_assert_eq(json_dump_file(j, path, 0), 0);
    free(path);
}
/* NULL: remove the key. `key` may be "a/b". */
void dir_edit(json_t *j, const char *key, const char *value) {
    const char *slash = strchr(key, '/');
    if (slash) {
        char *outer = xstrdup(key);
        outer[slash - key] = 0;
        dir_edit(json_object_get(j, outer), slash + 1, value);
        free(outer);
    } else if (!value) {
        json_object_del(j, key);
    } else {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        cr_assert(v, "%s", value);
        json_object_set_new(j, key, v);
    }
}

void dir_tried(const char *dir, json_t *j, const char *name, const char *key, const char *value, const char *part,
               const char *where) {
    ModelCfg c = {0};
    Err e = {0};
    dir_edit(j, key, value);
    dir_config(dir, j);
    const bool ok = hf_config_read(dir, &c, &e);
    cr_expect_eq(ok, !part, "%s %s %s: %s", name, key, value ? value : "nothing", ok ? "accepted" : e.msg);
    if (!ok && part) dir_refused(key, where, &e, part);
    if (ok) model_cfg_free(&c);
}

char *dir_settings(const char *dir) {
    ModelCfg c;
    Err e = {0};
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    char *text = model_cfg_json(&c);
    model_cfg_free(&c);
    return text;
}

/* Rewrite DIR/model.safetensors from the golden one: `name` dropped, or given another shape or name. */
void dir_rewrite(const char *dir, const char *golden, const char *name, Change how, const char *added) {
    char *path = xformat("%s/model.safetensors", dir), *from = xformat(GOLDEN "%s/model.safetensors", golden);
    static real room[96][2048];
    StList l = {0};
    St st;
    Err e = {0};
    cr_assert(st_open(&st, from, &e), "%s", e.msg);
    cr_assert(st.n < 95);
    for (int i = 0; i < st.n; i++) {
        const StEntry *s = &st.entry[i];
        bool me = !strcmp(s->name, name);
        int n[2] = {(int)s->shape[0], s->rank > 1 ? (int)s->shape[1] : 1};
        cr_assert(s->rank <= 2 && n[0] * n[1] < 2000);
        Tensor t = tensor_make(room[i], REAL, s->rank, n);
        cr_assert(st_read(&st, s, t, &e), "%s", e.msg);
        if (me && how == DROP) continue;
        if (me && how == WIDER) t.n[0]++;
        if (me && how == TURNED) t.n[0] = n[1], t.n[1] = n[0];
        st_add(&l, me && how == RENAMED ? added : s->name, t, F32);
        if (me && how == ADDED) st_add(&l, added, t, F32);
    }
    st_close(&st);
    unlink(path);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    st_list_free(&l);
    free(path);
    free(from);
}
