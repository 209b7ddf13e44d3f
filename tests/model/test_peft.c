/* test_peft.c: adapters of `peft` added to what is read of their base: logits that transformers computes with them, the
 * same through every reader, what is written, and files that are refused. Runs and commands are in test_peft.sh. */
#include "tests/lib/dirs.h"
#include "model/files/peft.h"
#include "ops/host.h"
#include <sys/stat.h>

#define PEFT "tests/golden/peft/"
static const struct {
    const char *name, *base;
} adapter[] = {{"mistral", "mistral"}, {"patterns", "mistral"}, {"gpt2", "gpt2"}, {"gpt_neox", "gpt_neox"}};
enum { ADAPTERS = sizeof adapter / sizeof *adapter };
static char *base_dir(int i) { return xformat("tests/golden/families/%s", adapter[i].base); }

Test(peft, logits) {
    for (int i = 0; i < ADAPTERS; i++) {
        char *dir = xformat(PEFT "%s", adapter[i].name), *base = base_dir(i);
        Dir o;
        Err e = {0};
        real *want;
        int n;
        dir_open(&o, base);
        cr_assert(hf_check_with(base, dir, &o.cfg, &e), "%s", e.msg);
        cr_assert(hf_load_with(base, dir, &o.model, &e), "%s", e.msg);
        real *got = dir_golden(&o, dir, &want, &n);
        CHECK_CLOSE(adapter[i].name, got, want, (size_t)n, 1e-4);
        free(got), free(want), free(dir), free(base);
        dir_close(&o);
    }
}

/* ---- parts and roundings --------------------------------------------------------------------------------------------
 */

typedef struct {
    HfFiles *files;
    Tensor *w;
    int n, changed;
    bool bf16;
} Compared;
static void see_read(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Compared *x = f->ctx;
    StPlace place;
    Err e = {0};
    (void)flags;
    const StEntry *s = hf_files_find(x->files, path, *t, &place);
    cr_assert(s, "%s", path);
    Tensor got = tensor_make(xcalloc(tensor_count(*t), sizeof(real)), REAL, t->rank, t->n);
    cr_assert(st_read_part(&x->files->st, s, got, place, &e), "%s", e.msg);
    CHECK_BYTES(path, got.p, t->p, tensor_bytes(got));
    x->changed += st_patched(&x->files->st, s);
    if (t->rank == 2) { /* rounded once, from the sum */
        Tensor half = tensor_make(xcalloc(tensor_count(*t), 2), BF16, 2, t->n);
        cr_assert(st_read_round(&x->files->st, s, half, place, &e), "%s", e.msg);
        for (size_t k = 0; k < tensor_count(*t); k++) {
            uint16_t near = bf16_from((float)R(got)[k]);
            int off = ((uint16_t *)half.p)[k] - near;
            cr_assert(REAL == F64 ? abs(off) <= 1 : off == 0, "%s %zu: %04x, want %04x", path, k,
                      ((uint16_t *)half.p)[k], near);
        }
        free(half.p);
    }
    if (t->rank == 2 && place.parts == 1 && !place.turned && t->n[0] > 3) { /* some rows of an entry */
        uint64_t shape[2] = {2, s->shape[1]};
        StEntry some = *s;
        some.p += 1 * (s->bytes / s->shape[0]);
        some.bytes = 2 * (s->bytes / s->shape[0]);
        some.shape = shape;
        Tensor rows = TENSOR(xcalloc((size_t)(2 * t->n[1]), sizeof(real)), REAL, 2, t->n[1]);
        cr_assert(st_read_part(&x->files->st, &some, rows, place, &e), "%s", e.msg);
        CHECK_BYTES(path, rows.p, R(*t) + t->n[1], tensor_bytes(rows));
        free(rows.p);
    }
    free(got.p);
    x->n++;
}
/* Every reader sees the same sums: fields of a model, tensors of open files, rows of them, and those in bf16. */
Test(peft, every_reader) {
    for (int i = 0; i < ADAPTERS; i++) {
        char *dir = xformat(PEFT "%s", adapter[i].name), *base = base_dir(i);
        Dir o;
        HfFiles files;
        Err e = {0};
        dir_open(&o, base);
        cr_assert(hf_load_with(base, dir, &o.model, &e), "%s", e.msg);
        cr_assert(hf_files_open_with(&files, base, dir, &o.cfg, &e), "%s", e.msg);
        Compared x = {.files = &files};
        Weights w = o.model.w;
        model_fields(&o.model, &w, &(Fields){.see = see_read, .ctx = &x});
        cr_assert(x.changed >= 6 && x.changed < x.n, "%d of %d", x.changed, x.n);
        hf_files_close(&files);
        dir_close(&o);
        free(dir), free(base);
    }
}

/* ---- writing --------------------------------------------------------------------------------------------------------
 */

enum { RANK = 2, FIELDS_MAX = 32 };
typedef struct {
    PeftField field[FIELDS_MAX];
    int n;
} Drawn;
static void see_draw(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Drawn *d = f->ctx;
    if (t->rank != 2 || flags & FIELD_TABLE || strstr(path, "k_proj")) return;
    PeftField *x = &d->field[d->n];
    cr_assert(d->n++ < FIELDS_MAX);
    *x = (PeftField){xstrdup(path), TENSOR(xcalloc((size_t)(RANK * t->n[1]), sizeof(real)), REAL, RANK, t->n[1]),
                     TENSOR(xcalloc((size_t)(t->n[0] * RANK), sizeof(real)), REAL, t->n[0], RANK)};
    uint64_t key = rng_name(5, path);
    for (size_t k = 0; k < tensor_count(x->a); k++) R(x->a)[k] = (real)(float)(0.3 * rng_normal(key, k));
    for (size_t k = 0; k < tensor_count(x->b); k++) R(x->b)[k] = (real)(float)(0.3 * rng_normal(rng_mix(key, 1), k));
}
static void see_sum(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Drawn *d = f->ctx;
    (void)flags;
    for (int i = 0; i < d->n; i++)
        for (int r = 0; !strcmp(path, d->field[i].path) && r < t->n[0]; r++)
            for (int c = 0; c < t->n[1]; c++)
                for (int k = 0; k < RANK; k++) R(*t)
    [r * t->n[1] + c] +=
        (real)(5.0 / RANK * (double)R(d->field[i].b)[r * RANK + k] * (double)R(d->field[i].a)[k * t->n[1] + c]);
}
/* What is written reads as W + s B A, of joined and turned matrices, too, one of whose parts has no adapter; taken
 * apart again it is what it was, bit for bit. */
Test(peft, there_and_back) {
    static const char *const base[] = {"tests/golden/families/mistral", "tests/golden/families/gpt2",
                                       "tests/golden/families/gpt_neox", "tests/golden/families/qwen3"};
    for (int i = 0; i < 4; i++) {
        Dir want, got;
        Drawn d = {.n = 0};
        Err e = {0};
        Peft p;
        int tok[24];
        char why[200], name[32];
        snprintf(name, sizeof name, "adapter%d", i);
        char *dir = check_path(name);
        cr_assert(!mkdir(dir, 0700));
        dir_open(&want, base[i]);
        dir_open(&got, base[i]);
        Weights w = want.model.w;
        model_fields(&want.model, &w, &(Fields){.see = see_draw, .ctx = &d});
        model_fields(&want.model, &w, &(Fields){.see = see_sum, .ctx = &d});
        cr_assert(peft_can(base[i], &want.cfg, d.n, d.field, why), "%s", why);
        cr_assert(peft_write(dir, base[i], &want.cfg, d.n, d.field, 5, &e), "%s", e.msg);
        cr_assert(peft_is(dir) && !peft_is(base[i]));
        char *back = peft_base(dir, &e);
        cr_assert_str_eq(back, base[i]);
        cr_assert(hf_load_with(base[i], dir, &got.model, &e), "%s", e.msg);
        for (int k = 0; k < 24; k++) tok[k] = k * 5 % want.cfg.vocab;
        real *a = dir_logits(&want.model, tok, 1, 24), *b = dir_logits(&got.model, tok, 1, 24);
        CHECK_CLOSE(base[i], b, a, (size_t)(24 * want.cfg.vocab), REAL == F64 ? 1e-11 : 1e-4);
        cr_assert(peft_open(&p, dir, &e), "%s", e.msg);
        for (int k = 0; k < d.n; k++) {
            PeftField *f = &d.field[k];
            Tensor x = f->a, y = f->b;
            x.p = xcalloc(1, tensor_bytes(x)), y.p = xcalloc(1, tensor_bytes(y));
            cr_assert(peft_take(&p, &want.cfg, f->path, x, y, 5.0 / RANK, &e), "%s: %s", f->path, e.msg);
            CHECK_BYTES(f->path, x.p, f->a.p, tensor_bytes(x));
            CHECK_BYTES(f->path, y.p, f->b.p, tensor_bytes(y));
            free(x.p), free(y.p), free(f->a.p), free(f->b.p), free((char *)f->path);
        }
        peft_close(&p);
        free(a), free(b), free(dir), free(back);
        dir_close(&want), dir_close(&got);
    }
}

/* ---- refusals -------------------------------------------------------------------------------------------------------
 */

static json_t *stage(const char *name, char **dir) {
    Err e = {0};
    size_t n;
    *dir = check_path(name);
    cr_assert(!mkdir(*dir, 0700));
    char *to = xformat("%s/adapter_model.safetensors", *dir),
         *bytes = check_read(PEFT "mistral/adapter_model.safetensors", &n);
    check_write(to, bytes, n);
    json_t *j = json_read(PEFT "mistral/adapter_config.json", &e);
    cr_assert(j, "%s", e.msg);
    free(to), free(bytes);
    return j;
}
static void refused(const char *what, const char *dir, const char *part) {
    static const char base[] = "tests/golden/families/mistral";
    ModelCfg cfg;
    Err e = {0};
    cr_assert(hf_config_read(base, &cfg, &e), "%s", e.msg);
    cr_assert(!hf_check_with(base, dir, &cfg, &e), "%s passed", what);
    dir_refused(what, NULL, &e, part);
    model_cfg_free(&cfg);
}
Test(peft, settings_refused) {
    static const struct {
        const char *key, *value, *part;
    } k[] = {{"peft_type", "\"IA3\"", "\"peft_type\": expected \"LORA\", found IA3"},
             {"peft_type", NULL, "\"peft_type\" is missing"},
             {"task_type", "\"SEQ_CLS\"", "\"task_type\""},
             {"bias", "\"all\"", "\"bias\""},
             {"use_dora", "true", "\"use_dora\" is not supported"},
             {"modules_to_save", "[\"lm_head\"]", "\"modules_to_save\" is not supported"},
             {"lora_bias", "true", "\"lora_bias\""},
             {"layer_replication", "[[0, 2]]", "\"layer_replication\""},
             {"trainable_token_indices", "[1]", "\"trainable_token_indices\""},
             {"a_key_of_tomorrow", "{\"a\": 1}", "\"a_key_of_tomorrow\""},
             {"init_lora_weights", "\"pissa\"", "pissa changes the base"},
             {"rank_pattern", "{\"layers.[01].q_proj\": 2}", "regular expression"},
             {"rank_pattern", "{\"q_proj\": \"2\"}", "expected a number above 0"},
             {"rank_pattern", "{\"layers.1.mlp.up_proj\": 2}", "expected 2 rows"},
             {"r", "4", "expected 4 rows"},
             {"r", "0", "\"r\""},
             {"r", "2.5", "\"r\""},
             {"lora_alpha", "-1", "\"lora_alpha\""},
             {"lora_alpha", NULL, "\"lora_alpha\""}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char name[16], *dir;
        snprintf(name, sizeof name, "s%zu", i);
        json_t *j = stage(name, &dir);
        dir_edit(j, k[i].key, k[i].value);
        char *path = xformat("%s/adapter_config.json", dir);
        Err e = {0};
        cr_assert(json_write(path, j, &e), "%s", e.msg);
        refused(k[i].part, dir, k[i].part);
        json_decref(j);
        free(path), free(dir);
    }
}

/* One tensor of the golden adapter left out, renamed, of another shape, or not finite. */
Test(peft, tensors_refused) {
    enum { LEFT_OUT, NAMED, TALLER, WIDE, NOT_FINITE, NONE };
    static const char A[] = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight",
                      B[] = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight";
    static const struct {
        int how;
        const char *name, *to, *part;
    } k[] = {{LEFT_OUT, A, "", "has no lora_A"},
             {LEFT_OUT, B, "", "lora_B.weight\" is missing"},
             {NAMED, B, "base_model.model.model.layers.1.mlp.up_proj.lora_B0.weight", "lora_B.weight\" is missing"},
             {NAMED, A, "base_model.model.model.layers.1.mlp.up_proj.lora_magnitude_vector", "expected names"},
             {NAMED, A, "model.layers.1.mlp.up_proj.lora_A.weight", "expected names"},
             {TALLER, A, "", "columns, as many as lora_A has rows"},
             {TALLER, B, "", "up_proj: (21,16)"},
             {WIDE, A, "", "up_proj: (20,17)"},
             {NOT_FINITE, A, "", "number 3 is not finite"},
             {NOT_FINITE, B, "", "number 3 is not finite"},
             {NONE, "", "", "no adapter in it"}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char name[16], *dir;
        snprintf(name, sizeof name, "t%zu", i);
        json_t *j = stage(name, &dir);
        char *path = xformat("%s/adapter_config.json", dir), *file = xformat("%s/adapter_model.safetensors", dir);
        Err e = {0};
        St st;
        StList list = {0};
        cr_assert(json_write(path, j, &e) && st_open(&st, PEFT "mistral/adapter_model.safetensors", &e), "%s", e.msg);
        float *room[64] = {0};
        for (int n = 0; n < st.n && k[i].how != NONE; n++) {
            const StEntry *s = &st.entry[n];
            bool this = !strcmp(s->name, k[i].name);
            if (this && k[i].how == LEFT_OUT) continue;
            Tensor t = TENSOR(NULL, F32, (int)s->shape[0], (int)s->shape[1]);
            t.p = room[n] = xcalloc(tensor_count(t) + 64, sizeof(float));
            cr_assert(st_read(&st, s, t, &e), "%s", e.msg);
            if (this && k[i].how == NOT_FINITE) room[n][3] = NAN;
            if (this && k[i].how == TALLER) t.n[0]++;
            if (this && k[i].how == WIDE) t.n[1]++;
            st_add(&list, this && k[i].how == NAMED ? k[i].to : s->name, t, F32);
        }
        cr_assert(st_write(file, &list, NULL, &e), "%s", e.msg);
        refused(k[i].part, dir, k[i].part);
        for (int n = 0; n < st.n; n++) free(room[n]);
        st_list_free(&list);
        st_close(&st);
        json_decref(j);
        free(path), free(file), free(dir);
    }
}

/* Another base, and files that are not there. */
Test(peft, places_refused) {
    ModelCfg cfg;
    Err e = {0};
    char *dir;
    json_t *j = stage("bare", &dir);
    char *path = xformat("%s/adapter_config.json", dir);
    refused("no settings", dir, "no adapter_config.json");
    dir_edit(j, "base_model_name_or_path", "\"meta-llama/Llama-3-8B\"");
    cr_assert(json_write(path, j, &e), "%s", e.msg);
    cr_assert(!peft_base(dir, &e));
    dir_refused("a base elsewhere", NULL, &e, "meta-llama/Llama-3-8B, is no directory here");
    e = (Err){0};
    cr_assert(hf_config_read("tests/golden/families/qwen2", &cfg, &e), "%s", e.msg);
    cr_assert(!hf_check_with("tests/golden/families/qwen2", PEFT "mistral", &cfg, &e));
    dir_refused("another base", NULL, &e, "which the matrix in");
    model_cfg_free(&cfg);
    e = (Err){0};
    cr_assert(hf_config_read("tests/golden/families/gpt2", &cfg, &e), "%s", e.msg);
    cr_assert(!hf_check_with("tests/golden/families/gpt2", PEFT "mistral", &cfg, &e));
    dir_refused("another family", NULL, &e, "is this the adapter's base?");
    model_cfg_free(&cfg);
    char *file = xformat("%s/adapter_model.safetensors", dir), *cut = xformat("truncate -s -9 '%s'", file);
    cr_assert_eq(system(cut), 0);
    refused("a torn file", dir, "adapter_model.safetensors");
    cr_assert_eq(remove(file), 0);
    refused("no tensors", dir, "no adapter_model.safetensors");
    json_decref(j);
    free(dir), free(path), free(file), free(cut);
}
