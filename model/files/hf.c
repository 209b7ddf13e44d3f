/* hf.c: loads, checks and saves the weights of a model directory. The model types are in hf_llama.c, hf_gpt.c and
 * hf_deepseek.c; hf_config.c reads config.json. */
#include "layers/mla/mla.h"
#include "model/inside.h"
#include "ops/file.h"
#include "hf_file.h"
#include "peft.h"

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static bool hf_ends(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}
/* Older files also hold the frequencies of the rotation, which follow from the settings, and causal masks. */
static bool hf_buffer(const char *name) {
    static const char *const end[] = {"rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias",
                                      ".attention.masked_bias"};
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (hf_ends(name, end[i])) return true;
    return false;
}
static bool buffer_or_head(const char *name) {
    return hf_buffer(name) || !strcmp(name, "lm_head.weight") || !strcmp(name, "embed_out.weight");
}

/* Find the names used in the files of DIR. They depend on the directory alone, so that a model of another kind with
 * the same tensors can be read from it too. */
static bool dir_places(const char *dir, const St *st, HfPlaces *p, Err *e) {
    char *path = xformat("%s/config.json", dir);
    json_t *j = json_read(path, e);
    const char *name = json_string_value(json_object_get(j, "model_type"));
    const HfType *type = name ? hf_type(name) : NULL;
    ModelCfg own;
    bool ok = j != NULL;
    *p = (HfPlaces){.type = type};
    if (ok && type && type->names && (ok = hf_config_read(dir, &own, e))) {
        hf_places(p, type, &own, st);
        model_cfg_free(&own);
    }
    if (ok && type && type->extra) {
        p->layers = (int)json_integer_value(json_object_get(j, "num_hidden_layers"));
        p->extra = (int)json_integer_value(json_object_get(j, type->extra));
    }
    json_decref(j);
    free(path);
    return ok;
}
/* What the tensor is that the type leaves out by its name; NULL: it does not. */
static const char *is_past(const HfPlaces *p, const char *name) {
    for (const HfPast *k = p->type ? p->type->past : NULL; k && k->begin; k++)
        if (!strncmp(name, k->begin, strlen(k->begin))) return k->what;
    return NULL;
}
/* The tensor is of a layer that the type has after its own. */
static bool is_extra(const HfPlaces *p, const char *name) {
    int layer;
    return p->extra > 0 && sscanf(name, "model.layers.%d.", &layer) == 1 && layer >= p->layers &&
           layer < p->layers + p->extra;
}

/* A norm before a layer that has no mixer: files of older versions have one, which has no effect. */
static bool is_idle_norm(const ModelCfg *c, const char *name) {
    int layer, used = 0;
    return sscanf(name, "model.layers.%d.input_layernorm.%n", &layer, &used) == 1 && used && layer >= 0 &&
           layer < c->layers && c->kind[c->pattern[layer]].mixer->reads_nothing;
}

/* The open files of a directory, and the names used in them. */
typedef struct {
    St st;
    HfPlaces places;
    StLoad load;
    Peft *peft; /* NULL: none */
} Source;
static void close_source(Source *s) {
    st_close(&s->st);
    if (s->peft) peft_close(s->peft);
    free(s->peft);
    s->peft = NULL;
}
static const StNames *names_of(const HfPlaces *p) { return p->names.find ? &p->names : NULL; }
/* The name of a table (V,d) in those files. */
static const char *table_name(const HfPlaces *p, const ModelCfg *c, const char *path, char name[192]) {
    if (!names_of(p)) return path;
    p->names.find(&p->names, path, TENSOR(NULL, REAL, c->vocab, c->d_model), name);
    return name;
}
bool hf_open_dir(St *st, const char *dir, Err *e) {
    if (!st_open_dir(st, dir, e)) return false;
    char *path = xformat("%s/config.json", dir);
    json_t *j = file_exists(dir, "config.json", e) ? json_read(path, e) : NULL;
    const json_t *v = json_object_get(j, "quantization_config");
    const char *name = json_string_value(json_object_get(j, "model_type"));
    const HfType *type = name ? hf_type(name) : NULL;
    bool ok = !e->status;
    if (ok && type && json_object_size(v)) ok = hf_quant_open(st, type, &(HfFile){path, v, e});
    if (ok && type == &hf_qwen3 && hf_dms_adapted(j)) {
        ModelCfg c;
        ok = hf_config_read(dir, &c, e);
        if (ok) {
            ok = hf_dms_open(st, &(HfFile){path, j, e}, &c);
            model_cfg_free(&c);
        }
    }
    json_decref(j);
    free(path);
    if (!ok) st_close(st);
    return ok;
}
static bool open_for(Source *s, const char *dir, const char *adapter, const ModelCfg *cfg, Err *e) {
    char head[192], embed[192];
    s->peft = NULL;
    if (!hf_open_dir(&s->st, dir, e)) return false;
    if (adapter) {
        s->peft = xcalloc(1, sizeof *s->peft);
        if (!peft_open(s->peft, adapter, e)) {
            free(s->peft);
            st_close(&s->st);
            return false;
        }
    }
    if (!dir_places(dir, &s->st, &s->places, e) ||
        (adapter && !peft_attach(s->peft, &s->st, s->places.type == &hf_gpt2, e))) {
        close_source(s);
        return false;
    }
    const char *h = table_name(&s->places, cfg, "lm_head.weight", head);
    if (cfg->tied || st_find(&s->st, h) ||
        !st_find(&s->st, table_name(&s->places, cfg, "model.embed_tokens.weight", embed))) {
        st_load_begin(&s->load, &s->st, NULL, e);
        s->load.names = names_of(&s->places);
        s->load.round = true;
        for (int i = 0; i < s->st.n; i++) {
            const char *name = s->st.entry[i].name;
            s->load.used[i] = is_extra(&s->places, name) || is_past(&s->places, name) || is_idle_norm(cfg, name);
        }
        return true;
    }
    err_input(e,
              "%s: tensor \"%s\" is missing; if the head is the embedding, config.json must say "
              "\"tie_word_embeddings\": true",
              s->st.path, h);
    close_source(s);
    return false;
}

bool hf_walk(const ModelCfg *cfg, Fields *f, Err *e) {
    Model m = {0};
    if (!model_map(&m, cfg, e)) {
        model_unmap(&m);
        return false;
    }
    Weights w = {.layer = xcalloc((size_t)m.L, sizeof *w.layer)};
    for (int l = 0; l < m.L; l++) {
        w.layer[l].mix = xcalloc(1, m.layer[l].kind->mixer->w_size);
        w.layer[l].ffn = xcalloc(1, m.layer[l].ffn->ffn->w_size);
    }
    model_fields(&m, &w, f);
    for (int l = 0; l < m.L; l++) {
        free(w.layer[l].mix);
        free(w.layer[l].ffn);
    }
    free(w.layer);
    model_unmap(&m);
    return true;
}

bool hf_check(const char *dir, const ModelCfg *cfg, Err *e) { return hf_check_with(dir, NULL, cfg, e); }
bool hf_check_with(const char *dir, const char *adapter, const ModelCfg *cfg, Err *e) {
    Source s;
    if (!open_for(&s, dir, adapter, cfg, e)) return false;
    Fields f = st_checker(&s.load);
    bool ok = hf_walk(cfg, &f, e);
    ok = st_load_end(&s.load, ok ? cfg->tied ? buffer_or_head : hf_buffer : NULL) && ok;
    close_source(&s);
    return ok;
}

bool hf_is_bf16(const char *dir, Err *e) {
    St st;
    int n = 0;
    Err why = {0};
    if (!hf_open_dir(&st, dir, &why)) {
        if (why.status == EXIT_RUNTIME) *e = why;
        return false;
    }
    bool all = true;
    for (int i = 0; i < st.n; i++) {
        if (st.entry[i].rank < 2 || st.entry[i].made) continue;
        n++;
        const StEntry *s = &st.entry[i];
        all &= s->scale ? st_scaled_as(s) == BF16 : !strcmp(s->dtype, "BF16");
    }
    st_close(&st);
    return all && n;
}

bool hf_load(const char *dir, Model *m, Err *e) { return hf_load_with(dir, NULL, m, e); }
bool hf_load_with(const char *dir, const char *adapter, Model *m, Err *e) {
    Source s;
    if (!open_for(&s, dir, adapter, &m->cfg, e)) return false;
    Fields f = st_loader(&s.load);
    s.load.dev = m->dev;
    model_fields(m, &m->w, &f);
    bool ok = st_load_end(&s.load, m->cfg.tied ? buffer_or_head : hf_buffer);
    close_source(&s);
    return ok;
}

void hf_files_plan(HfFiles *f, const ModelCfg *cfg) {
    *f = (HfFiles){.places = xcalloc(1, sizeof *f->places)};
    hf_places(f->places, hf_type_of(cfg), cfg, NULL);
    f->names = names_of(f->places);
}
bool hf_files_open(HfFiles *f, const char *dir, const ModelCfg *cfg, Err *e) {
    return hf_files_open_with(f, dir, NULL, cfg, e);
}
bool hf_files_open_with(HfFiles *f, const char *dir, const char *adapter, const ModelCfg *cfg, Err *e) {
    Source s;
    if (!open_for(&s, dir, adapter, cfg, e)) return false;
    st_load_end(&s.load, NULL);
    *f = (HfFiles){.st = s.st, .peft = s.peft, .places = xcalloc(1, sizeof *f->places)};
    hf_places(f->places, s.places.type, cfg, &f->st); /* its names point to itself */
    f->names = names_of(f->places);
    return true;
}
void hf_files_close(HfFiles *f) {
    if (f->st.path) st_close(&f->st);
    if (f->peft) peft_close(f->peft);
    free(f->peft);
    free(f->places);
    *f = (HfFiles){0};
}
StPlace hf_files_name(const HfFiles *f, const char *path, Tensor t, char name[192]) {
    if (f->names) return f->names->find(f->names, path, t, name);
    snprintf(name, 192, "%s", path);
    return ST_WHOLE;
}
const StEntry *hf_files_find(const HfFiles *f, const char *path, Tensor t, StPlace *place) {
    char name[192];
    *place = hf_files_name(f, path, t, name);
    return st_find(&f->st, name);
}

int hf_notes(const char *dir, FILE *f) {
    ModelCfg cfg;
    St st;
    int n = 0;
    Err ignored = {0};
    if (!hf_config_read(dir, &cfg, &ignored)) return 0;
    if (hf_open_dir(&st, dir, &ignored)) {
        HfPlaces p;
        char a[192], b[192];
        dir_places(dir, &st, &p, NULL);
        for (; n < st.nwarn; n++) fprintf(f, "%s\n", st.warn[n]);
        const StEntry *head = st_find(&st, table_name(&p, &cfg, "lm_head.weight", a)),
                      *embed = st_find(&st, table_name(&p, &cfg, "model.embed_tokens.weight", b));
        int extra = 0;
        for (int i = 0; i < st.n; i++) extra += is_extra(&p, st.entry[i].name);
        for (const HfPast *k = p.type ? p.type->past : NULL; k && k->begin; k++) {
            int left = 0;
            for (int i = 0; i < st.n; i++) left += !strncmp(st.entry[i].name, k->begin, strlen(k->begin));
            if (left) fprintf(f, "%s: %d tensors of %s are not read\n", dir, left, k->what), n++;
        }
        if (extra) fprintf(f, "%s: %d tensors of layers that predict further tokens are not read\n", dir, extra), n++;
        if (st.nscale)
            fprintf(f, "%s: %d quantised tensors are read as the values that they stand for\n", dir, st.nscale), n++;
        if (cfg.tied && head && embed && (head->bytes != embed->bytes || memcmp(head->p, embed->p, head->bytes)))
            fprintf(f, "%s: the head's tensor differs from the embedding but the head is tied: it is ignored\n", dir),
                n++;
        st_close(&st);
    }
    const Kind *k = &cfg.kind[0];
    const RopeCfg *r = k->mixer == mixer_find("gqa")   ? &((GqaCfg *)k->cfg)->rope
                       : k->mixer == mixer_find("mla") ? &((MlaCfg *)k->cfg)->rope
                                                       : NULL;
    if (r && r->type == ROPE_YARN && r->original_max_positions &&
        fabs(r->factor * r->original_max_positions - cfg.max_positions) > 1e-6 * cfg.max_positions)
        fprintf(f,
                "%s: yarn's factor %g is not max_position_embeddings / original_max_position_embeddings: older "
                "transformers computed this model in another way\n",
                dir, r->factor),
            n++;
    model_cfg_free(&cfg);
    return n;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put_ids(json_t *j, const HfIds *ids) {
    json_object_set_new(j, "bos_token_id", ids && ids->bos >= 0 ? json_integer(ids->bos) : json_null());
    json_t *eos = ids && ids->neos > 1 ? json_array() : ids && ids->neos ? json_integer(ids->eos[0]) : json_null();
    for (int i = 0; ids && ids->neos > 1 && i < ids->neos; i++) json_array_append_new(eos, json_integer(ids->eos[i]));
    json_object_set_new(j, "eos_token_id", eos);
}

bool hf_config_write(const char *path, const ModelCfg *c, const HfIds *ids, Dtype dtype, Err *e) {
    json_t *j = json_object();
    const char *name = dtype == F32 ? "float32" : dtype == BF16 ? "bfloat16" : dtype == F16 ? "float16" : "float64";
    const HfType *type = hf_type_of(c);
    if (type) {
        hf_type_json(type, j, c);
    } else {
        char *text = model_cfg_json(c);
        json_t *own = json_parse(text, strlen(text), "the model's settings", NULL, e);
        free(text);
        CHECK(own, "%s", e ? e->msg : "");
        json_object_set_new(j, "model_type", json_string("kvsmith"));
        json_object_set_new(j, "kvsmith", own);
        hf_modeling_json(j);
    }
    put_ids(j, ids);
    json_object_set_new(j, "dtype", json_string(name));
    json_object_set_new(j, "torch_dtype", json_string(name));
    bool ok = (type || hf_modeling_write(path, e)) && json_write(path, j, e);
    json_decref(j);
    return ok;
}

static bool generation_write(const char *path, const HfIds *ids, const json_t *keep, Err *e) {
    json_t *j = keep ? json_deep_copy(keep) : json_object();
    put_ids(j, ids);
    bool ok = json_write(path, j, e);
    json_decref(j);
    return ok;
}

bool hf_generation_write(const char *dir, const HfIds *ids, json_t *keep, Err *e) {
    char *path = xformat("%s/generation_config.json", dir);
    bool ok = generation_write(path, ids, keep, e);
    free(path);
    return ok;
}

/* Sort as transformers does, with a layer's norms after its parts: the order decides which shard a tensor goes to. */
static void norms_last(StList *l) {
    StItem *out = xcalloc((size_t)l->n, sizeof *out);
    int n = 0;
    for (int i = 0, end; i < l->n; i = end) {
        const char *dot = strstr(l->item[i].name, "model.layers."), *layer = l->item[i].name;
        size_t k = dot ? strcspn(dot + 13, ".") + (size_t)(dot + 14 - layer) : strlen(layer);
        for (end = i + 1; dot && end < l->n && !strncmp(l->item[end].name, layer, k);) end++;
        for (int norm = 0; norm < 2; norm++)
            for (int j = i; j < end; j++)
                if ((strstr(l->item[j].name, "layernorm.") != NULL) == norm) out[n++] = l->item[j];
    }
    memcpy(l->item, out, (size_t)l->n * sizeof *out);
    free(out);
}

bool hf_save_sharded(const char *dir, const Model *m, const HfIds *ids, Dtype as, size_t limit, Err *e) {
    char *config = xformat("%s/config.json", dir), *gen = xformat("%s/generation_config.json", dir);
    HfPlaces places;
    hf_places(&places, hf_type_of(&m->cfg), &m->cfg, NULL);
    StList l = {.as = as, .names = names_of(&places), .dev = m->dev};
    Fields f = st_lister(&l);
    Weights w = m->w; /* declaring sets shapes again; the pointers stay those of the model */
    if (m->sums) l.merge = m->sums->merge, l.merge_ctx = m->sums->ctx;
    model_fields(m, &w, &f);
    norms_last(&l);
    bool ok = hf_config_write(config, &m->cfg, ids, as, e) && generation_write(gen, ids, NULL, e) &&
              st_write_dir(dir, &l, limit, e);
    st_list_free(&l);
    free(config);
    free(gen);
    return ok;
}
bool hf_save(const char *dir, const Model *m, const HfIds *ids, Dtype as, Err *e) {
    return hf_save_sharded(dir, m, ids, as, 0, e);
}
