/* hf.c: weights of a model directory, and config.json as we write it. Reading config.json is hf_config.c. */
#include "hf_file.h"
#include "../layers/ffn/ffn.h"
#include "../layers/gqa/gqa.h"
#include "../layers/mla/mla.h"
#include "act.h"
#include "safetensors.h"

/* ---- weights -------------------------------------------------------------------------------------------------------
 */

static bool ends(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}
/* Older files hold the frequencies of the rotation, which the settings give. */
static bool buffer(const char *name) { return ends(name, "rotary_emb.inv_freq"); }
static bool buffer_or_head(const char *name) { return buffer(name) || !strcmp(name, "lm_head.weight"); }

typedef struct {
    const St *st;
    StLoad *load;
    Err *err;
} Checking;

/* Shape and dtype alone: the same walk as loading, with nothing to load into. */
static void check_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Checking *c = f->ctx;
    const StEntry *s = st_find(c->st, path);
    if (c->load->failed) return;
    if (s) {
        c->load->used[s - c->st->entry] = true;
        c->load->failed = !st_fits(c->st, s, *t, c->err);
    } else if (!(flags & FIELD_OPTIONAL)) {
        c->load->failed = !err_input(c->err, "%s: tensor \"%s\" is missing", c->st->path, path);
    }
}

static bool open_for(St *st, const char *dir, const ModelCfg *cfg, Err *e) {
    if (!st_open_dir(st, dir, e)) return false;
    if (cfg->tied || st_find(st, "lm_head.weight") || !st_find(st, "model.embed_tokens.weight")) return true;
    err_input(e,
              "%s: tensor \"lm_head.weight\" is missing; if the head is the embedding, config.json must say "
              "\"tie_word_embeddings\": true",
              st->path);
    st_close(st);
    return false;
}

/* Weights without memory, to walk the declarations of a model that is not open. */
static bool walk(const ModelCfg *cfg, Fields *f, Err *e) {
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

bool hf_check(const char *dir, const ModelCfg *cfg, Err *e) {
    St st;
    StLoad load;
    if (!open_for(&st, dir, cfg, e)) return false;
    st_load_begin(&load, &st, NULL, e);
    Fields f = {.see = check_field, .ctx = &(Checking){&st, &load, e}};
    bool ok = walk(cfg, &f, e);
    ok = st_load_end(&load, ok ? cfg->tied ? buffer_or_head : buffer : NULL) && ok;
    st_close(&st);
    return ok;
}

bool hf_load(const char *dir, Model *m, Err *e) {
    St st;
    StLoad load;
    if (!open_for(&st, dir, &m->cfg, e)) return false;
    st_load_begin(&load, &st, NULL, e);
    Fields f = st_loader(&load);
    model_fields(m, &m->w, &f);
    bool ok = st_load_end(&load, m->cfg.tied ? buffer_or_head : buffer);
    st_close(&st);
    return ok;
}

int hf_notes(const char *dir, FILE *f) {
    ModelCfg cfg;
    St st;
    int n = 0;
    if (!hf_config_read(dir, &cfg, NULL)) return 0;
    if (st_open_dir(&st, dir, NULL)) {
        for (; n < st.nwarn; n++) fprintf(f, "%s\n", st.warn[n]);
        const StEntry *head = st_find(&st, "lm_head.weight"), *embed = st_find(&st, "model.embed_tokens.weight");
        if (cfg.tied && head && embed && (head->bytes != embed->bytes || memcmp(head->p, embed->p, head->bytes)))
            fprintf(f, "%s: \"lm_head.weight\" differs from the embedding but the head is tied: it is ignored\n", dir),
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

/* ---- config.json ---------------------------------------------------------------------------------------------------
 */

static bool no(const char **why, const char *what) {
    if (why) *why = what;
    return false;
}

bool hf_plain(const ModelCfg *c, const char *mixer, const char **why) {
    for (int l = 0; l < c->layers; l++) {
        if (c->pattern[l] != c->pattern[0]) return no(why, "layers of several kinds");
        if (c->kv_from[l] != l) return no(why, "kv_from");
    }
    if (c->embed_scale != 1) return no(why, "embed_scale");
    if (c->kind[c->pattern[0]].mixer != mixer_find(mixer)) return no(why, "another mixer");
    if (c->nffn != 1 || c->ffn[0].ffn != ffn_find("swiglu")) return no(why, "a feed-forward that is not one swiglu");
    return true;
}
const char *hf_rope_differs(const RopeCfg *r, int max_positions) {
    double L = r->original_max_positions ? r->original_max_positions : max_positions;
    if (r->type == ROPE_NONE) return "no rotation";
    if (r->inclusive) return "inclusive frequencies";
    /* Older versions replace yarn's factor by this quotient. */
    if (r->type == ROPE_YARN && fabs(r->factor * L - max_positions) > 1e-9 * max_positions)
        return "yarn whose factor is not max_positions / original_max_positions";
    /* transformers looks at the length of the input, we at the planned length. */
    if (r->type == ROPE_DYNAMIC && ((r->length && r->length > L) || L != max_positions))
        return "dynamic rotation for a planned length";
    if (r->type == ROPE_LONGROPE && memcmp(&r->short_factor, &r->long_factor, sizeof r->short_factor))
        return "longrope of one length";
    return NULL;
}

bool hf_is_llama(const ModelCfg *c, const char **why) {
    if (!hf_plain(c, "gqa", why)) return false;
    const GqaCfg *g = c->kind[c->pattern[0]].cfg;
    if (!g->heads) return no(why, "a layer without queries");
    if (g->window) return no(why, "a window");
    if (g->qk_norm) return no(why, "qk_norm");
    if (g->qkv_bias != g->o_bias) return no(why, "qkv_bias without o_bias, or the reverse");
    if (g->rope.interleaved) return no(why, "interleaved rotation");
    const char *differs = hf_rope_differs(&g->rope, c->max_positions);
    return !differs || no(why, differs);
}

static void put_ids(json_t *j, const HfIds *ids) {
    json_object_set_new(j, "bos_token_id", ids && ids->bos >= 0 ? json_integer(ids->bos) : json_null());
    json_t *eos = ids && ids->neos > 1 ? json_array() : ids && ids->neos ? json_integer(ids->eos[0]) : json_null();
    for (int i = 0; ids && ids->neos > 1 && i < ids->neos; i++) json_array_append_new(eos, json_integer(ids->eos[i]));
    json_object_set_new(j, "eos_token_id", eos);
}

static json_t *numbers(const Numbers *v) {
    json_t *a = json_array();
    for (int i = 0; i < v->n; i++) json_array_append_new(a, json_real(v->v[i]));
    return a;
}

/* rope_scaling as version 4 spells it, which version 5 reads as well. */
static json_t *rope_json(const RopeCfg *r, int max_positions) {
    static const char *const name[] = {[ROPE_LINEAR] = "linear",
                                       [ROPE_DYNAMIC] = "dynamic",
                                       [ROPE_LLAMA3] = "llama3",
                                       [ROPE_YARN] = "yarn",
                                       [ROPE_LONGROPE] = "longrope"};
    if (r->type == ROPE_DEFAULT) return json_null();
    json_t *j = json_object();
    json_object_set_new(j, "rope_type", json_string(name[r->type]));
    if (r->factor > 0) json_object_set_new(j, "factor", json_real(r->factor));
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN || r->type == ROPE_LONGROPE)
        json_object_set_new(j, "original_max_position_embeddings",
                            json_integer(r->original_max_positions ? r->original_max_positions : max_positions));
    if (r->type == ROPE_LLAMA3) {
        json_object_set_new(j, "low_freq_factor", json_real(r->low_freq_factor));
        json_object_set_new(j, "high_freq_factor", json_real(r->high_freq_factor));
    }
    if (r->type == ROPE_YARN) {
        json_object_set_new(j, "beta_fast", json_real(r->beta_fast));
        json_object_set_new(j, "beta_slow", json_real(r->beta_slow));
        json_object_set_new(j, "truncate", json_boolean(r->truncate));
        if (r->mscale > 0) json_object_set_new(j, "mscale", json_real(r->mscale));
        if (r->mscale_all_dim > 0) json_object_set_new(j, "mscale_all_dim", json_real(r->mscale_all_dim));
    }
    if (r->attention_factor > 0 && (r->type == ROPE_YARN || r->type == ROPE_LONGROPE))
        json_object_set_new(j, "attention_factor", json_real(r->attention_factor));
    if (r->type == ROPE_LONGROPE) {
        json_object_set_new(j, "short_factor", numbers(&r->short_factor));
        json_object_set_new(j, "long_factor", numbers(&r->long_factor));
    }
    return j;
}

void hf_family_json(json_t *j, const ModelCfg *c, HfFamily y) {
    json_object_set_new(j, "architectures", json_pack("[s]", y.architecture));
    json_object_set_new(j, "model_type", json_string(y.type));
    json_object_set_new(j, "vocab_size", json_integer(c->vocab));
    json_object_set_new(j, "hidden_size", json_integer(c->d_model));
    json_object_set_new(j, "intermediate_size", json_integer(((SwigluCfg *)c->ffn[0].cfg)->hidden));
    json_object_set_new(j, "num_hidden_layers", json_integer(c->layers));
    json_object_set_new(j, "num_attention_heads", json_integer(y.heads));
    json_object_set_new(j, "num_key_value_heads", json_integer(y.kv_heads));
    json_object_set_new(j, "head_dim", json_integer(y.head_dim));
    json_object_set_new(j, "hidden_act", json_string("silu"));
    json_object_set_new(j, "max_position_embeddings", json_integer(c->max_positions));
    json_object_set_new(j, "initializer_range", json_real(c->init_std));
    json_object_set_new(j, "rms_norm_eps", json_real(c->norm_eps));
    json_object_set_new(j, "rope_theta", json_real(y.rope->theta));
    json_object_set_new(j, "rope_scaling", rope_json(y.rope, c->max_positions));
    json_object_set_new(j, "attention_bias", json_boolean(y.bias));
    json_object_set_new(j, "attention_dropout", json_real(0));
    json_object_set_new(j, "mlp_bias", json_false());
    json_object_set_new(j, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(j, "use_cache", json_true());
}
static void llama_json(json_t *j, const ModelCfg *c) {
    const GqaCfg *g = c->kind[c->pattern[0]].cfg;
    hf_family_json(j, c,
                   (HfFamily){.architecture = "LlamaForCausalLM",
                              .type = "llama",
                              .heads = g->heads,
                              .kv_heads = g->kv_heads ? g->kv_heads : g->heads,
                              .head_dim = g->head_dim ? g->head_dim : c->d_model / g->heads,
                              .bias = g->qkv_bias,
                              .rope = &g->rope});
}

bool hf_config_write(const char *path, const ModelCfg *c, const HfIds *ids, Dtype dtype, Err *e) {
    json_t *j = json_object();
    const char *name = dtype == F32 ? "float32" : dtype == BF16 ? "bfloat16" : dtype == F16 ? "float16" : "float64";
    if (hf_is_llama(c, NULL)) {
        llama_json(j, c);
    } else if (hf_is_deepseek(c, NULL)) {
        hf_deepseek_json(j, c);
    } else {
        char *text = model_cfg_json(c);
        json_t *own = json_parse(text, strlen(text), "the model's settings", NULL, e);
        free(text);
        CHECK(own, "%s", e ? e->msg : "");
        json_object_set_new(j, "model_type", json_string("kvsmith"));
        json_object_set_new(j, "kvsmith", own);
    }
    put_ids(j, ids);
    json_object_set_new(j, "dtype", json_string(name));
    json_object_set_new(j, "torch_dtype", json_string(name));
    bool ok = json_write(path, j, e);
    json_decref(j);
    return ok;
}

static bool generation_write(const char *path, const HfIds *ids, Err *e) {
    json_t *j = json_object();
    put_ids(j, ids);
    bool ok = json_write(path, j, e);
    json_decref(j);
    return ok;
}

/* In the order of transformers, where a layer's norms come behind its parts: it decides which shard a tensor goes to.
 */
static void norms_last(StList *l) {
    StItem *out = xcalloc((size_t)l->n, sizeof *out);
    int n = 0;
    for (int i = 0, end; i < l->n; i = end) {
        const char *dot = strstr(l->item[i].name, ".layers."), *layer = l->item[i].name;
        size_t k = dot ? strcspn(dot + 8, ".") + (size_t)(dot + 9 - layer) : strlen(layer);
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
    StList l = {.as = as};
    Fields f = st_lister(&l);
    Weights w = m->w; /* declaring sets shapes again; the pointers are those of the model */
    model_fields(m, &w, &f);
    norms_last(&l);
    bool ok = hf_config_write(config, &m->cfg, ids, as, e) && generation_write(gen, ids, e) &&
              st_write_dir(dir, &l, limit, e);
    st_list_free(&l);
    free(config);
    free(gen);
    return ok;
}
bool hf_save(const char *dir, const Model *m, const HfIds *ids, Dtype as, Err *e) {
    return hf_save_sharded(dir, m, ids, as, 0, e);
}
