/* hf_decoder.c: decoders of the Llama kind between config.json and our own settings: what all such types spell alike.
 * Their differences are in their tables and hooks (hf_llama.c and others). Source of fields, defaults and meaning:
 * transformers configuration_llama and modeling_llama, and those of the others. */
#include "layers/dmc/dmc.h"
#include "hf_file.h"

/* ---- tables ------------------------------------------------------------------------------------------------------ */

bool hf_keys_read(const HfFile *f, const HfKey *k, HfShape *s) {
    bool ok = true;
    for (; ok && k && k->key; k++) {
        void *to = (char *)s + k->at;
        const bool other = k->also && hf_given(f->j, k->also);
        const char *key = other ? k->also : k->key;
        if (other && hf_given(f->j, k->key) && !json_equal(json_object_get(f->j, k->key), json_object_get(f->j, key)))
            return err_input(f->e, "%s: \"%s\" and \"%s\" differ; remove one", f->path, k->key, key);
        if (k->type == HF_WHOLE) ok = hf_whole(f, key, k->least, (int)k->dflt, to);
        if (k->type == HF_REAL) ok = hf_number(f, key, k->dflt, !k->least, to);
        if (k->type == HF_FLAG) ok = hf_flag_or(f, key, k->dflt != 0, to);
    }
    return ok;
}
void hf_keys_write(json_t *j, const HfKey *k, const HfShape *s) {
    for (; k && k->key; k++) {
        const void *from = (const char *)s + k->at;
        json_object_set_new(j, k->key,
                            k->type == HF_WHOLE  ? json_integer(*(const int *)from)
                            : k->type == HF_REAL ? json_real(*(const double *)from)
                                                 : json_boolean(*(const bool *)from));
    }
}
bool hf_musts_met(const HfFile *f, const HfMust *m) {
    bool ok = true;
    for (; ok && m && m->key; m++) {
        if (!hf_given(f->j, m->key)) continue;
        const json_t *v = json_object_get(f->j, m->key);
        char *found = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        json_t *want = json_loads(m->value, JSON_DECODE_ANY, NULL);
        bool same = json_equal(v, want) ||
                    (json_is_number(v) && json_is_number(want) && json_number_value(v) == json_number_value(want));
        ok = same || err_input(f->e, "%s: \"%s\": expected %s, found %.60s; another value is not supported", f->path,
                               m->key, m->value, found ? found : "");
        json_decref(want);
        free(found);
    }
    return ok;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

#define AT(member) offsetof(HfShape, member)
static const HfKey sizes[] = {{"hidden_size", HF_WHOLE, AT(d), 1, HF_NEEDED, NULL},
                              {"intermediate_size", HF_WHOLE, AT(F), 1, 0, NULL},
                              {"num_hidden_layers", HF_WHOLE, AT(layers), 1, HF_NEEDED, NULL},
                              {"num_attention_heads", HF_WHOLE, AT(g.heads), 1, HF_NEEDED, NULL},
                              {"vocab_size", HF_WHOLE, AT(V), 1, HF_NEEDED, NULL},
                              {0}};
static const HfKey others[] = {{"initializer_range", HF_REAL, AT(std), 0, 0.02, NULL}, {0}};
#undef AT

/* A missing value is treated as an oversight if the class has a default that is not the number of heads. */
static bool kv_heads(const HfType *t, const HfFile *f, GqaCfg *g) {
    if (!t->heads && !json_object_get(f->j, "num_key_value_heads"))
        return err_input(f->e, "%s: \"num_key_value_heads\" is missing", f->path);
    return hf_whole(f, "num_key_value_heads", 1, g->heads, &g->kv_heads);
}
static bool decoder_heads(const HfType *t, const HfFile *f, HfShape *s) {
    GqaCfg *g = &s->g;
    if (!hf_given(f->j, "head_dim") && !t->head_dim && s->d % g->heads)
        return err_input(f->e,
                         "%s: \"num_attention_heads\": %d does not divide hidden_size %d and there is no head_dim",
                         f->path, g->heads, s->d);
    if (!hf_whole(f, "head_dim", 2, t->head_dim ? t->head_dim : s->d / g->heads, &g->head_dim)) return false;
    if (g->heads % g->kv_heads || g->head_dim % 2)
        return err_input(f->e,
                         g->heads % g->kv_heads
                             ? "%s: \"num_key_value_heads\": %d does not divide num_attention_heads %d"
                             : "%s: \"head_dim\": expected an even number, found %d (num_attention_heads %d)",
                         f->path, g->heads % g->kv_heads ? g->kv_heads : g->head_dim, g->heads);
    return true;
}
/* Types whose layers all have experts may leave it out. */
static bool width_read(const HfType *t, const HfFile *f, const HfShape *s) {
    return s->F || (t->experts_alone && s->nsparse == s->layers) ||
           err_input(f->e, "%s: \"intermediate_size\" is missing", f->path);
}
bool hf_part_turned(const HfFile *f, double part, HfShape *s) {
    const int D = s->g.head_dim, n = part > 1 ? 0 : (int)(D * part);
    s->g.rope_dims = n < D ? n : 0;
    return (n >= 2 && n % 2 == 0) || err_input(f->e,
                                               "%s: \"partial_rotary_factor\" %g of head_dim %d: expected an even "
                                               "number of elements from 2 to head_dim",
                                               f->path, part, D);
}
double hf_part_of(const HfShape *s) {
    const int dims = s->g.rope_dims ? s->g.rope_dims : s->g.head_dim;
    const double part = (double)dims / s->g.head_dim;
    return (int)(s->g.head_dim * part) < dims ? nextafter(part, 2) : part; /* the reader truncates the product */
}
static bool decoder_read(const HfType *t, const HfFile *f, HfShape *s) {
    const bool gqa = !strcmp(t->mixer, "gqa");
    bool bias = false;
    s->embed_scale = s->residual_scale = s->logits_divisor = 1;
    if (!hf_keys_read(f, sizes, s) || (gqa && !kv_heads(t, f, &s->g)) ||
        !hf_whole(f, "max_position_embeddings", 1, t->positions ? t->positions : 2048, &s->P) ||
        !hf_number(f, "rms_norm_eps", t->eps > 0 ? t->eps : 1e-6, false, &s->eps) || !hf_keys_read(f, others, s) ||
        !hf_flag_or(f, "tie_word_embeddings", t->tied, &s->tied) ||
        (t->attention_bias && !hf_flag(f, "attention_bias", &bias)) || !hf_supported(t, f) ||
        !hf_musts_met(f, t->musts) || (gqa && !decoder_heads(t, f, s)))
        return false;
    s->g.qkv_bias = s->g.o_bias = s->mla.a_bias = s->mla.o_bias = bias;
    s->mla.heads = s->g.heads;
    if (s->layers > LAYERS_MAX)
        return err_input(f->e, "%s: \"num_hidden_layers\": expected at most %d layers, found %d", f->path, LAYERS_MAX,
                         s->layers);
    s->rope = json_object();
    return (t->ropes ? t->ropes(f, s) : hf_rope_read(f, t->theta > 0 ? t->theta : 10000, s->rope)) &&
           hf_keys_read(f, t->table, s) && (!t->read || t->read(f, s)) && width_read(t, f, s);
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

/* Delayed eviction: the settings of a gqa become those of a dmc. */
static void dms_json(const HfDms *d, json_t *kind) {
    json_object_set_new(kind, "mixer", json_string("dmc"));
    json_object_set_new(kind, "action", json_string("evict"));
    json_object_set_new(kind, "decide", json_string(dmc_deciders[d->adapter ? DMC_ADAPTER : DMC_LANE]));
    json_object_set_new(kind, "governs", json_string(dmc_governs[d->own ? DMC_ITSELF : DMC_PREVIOUS]));
    json_object_set_new(kind, "lane_turned", json_boolean(d->own));
    json_object_set_new(kind, "delay", json_integer(d->delay));
    json_object_set_new(kind, "gain", json_real(d->gain));
    json_object_set_new(kind, "offset", json_real(d->offset));
    json_object_set_new(kind, "temperature", json_real(d->temperature));
}
/* Of layer l. */
static json_t *gqa_json(const HfShape *s, int l) {
    const GqaCfg *g = &s->g;
    json_t *rope = s->slides[l] && s->local_rope_json ? s->local_rope_json : s->rope;
    json_t *k = json_pack("{ss si si si sO sb sb}", "mixer", "gqa", "heads", g->heads, "kv_heads", g->kv_heads,
                          "head_dim", g->head_dim, "rope", rope, "qkv_bias", g->qkv_bias, "o_bias", g->o_bias);
    if (s->unturned[l]) json_object_set_new(k, "rope", json_string("none"));
    if (s->slides[l]) json_object_set_new(k, "window", json_integer(s->window));
    if (g->qk_norm) json_object_set_new(k, "qk_norm", json_true());
    if (g->qk_norm_wide) json_object_set_new(k, "qk_norm_wide", json_true());
    if (g->rope_dims && !s->unturned[l]) json_object_set_new(k, "rope_dims", json_integer(g->rope_dims));
    if (g->scale > 0 && g->scale != 1 / sqrt(g->head_dim)) json_object_set_new(k, "scale", json_real(g->scale));
    if (g->soft_cap > 0) json_object_set_new(k, "soft_cap", json_real(g->soft_cap));
    if (g->out_gate) json_object_set_new(k, "out_gate", json_true());
    if (g->sink_scores) json_object_set_new(k, "sink_scores", json_true());
    if (s->dms.on) dms_json(&s->dms, k);
    return k;
}
static json_t *line_json(const HfType *t, const HfShape *s) {
    const LineCfg *c = &s->line;
    return json_pack("{ss si si si si si}", "mixer", t->state, "heads", c->heads, "v_heads", c->v_heads, "head_dim",
                     c->head_dim, "v_dim", c->v_dim, "conv", c->conv);
}
json_t *hf_mla_json(const HfShape *s) {
    const MlaCfg *m = &s->mla;
    return json_pack("{ss si si si si si si sO sb sb sb}", "mixer", "mla", "heads", m->heads, "kv_rank", m->kv_rank,
                     "q_rank", m->q_rank, "nope_dim", m->nope_dim, "rope_dim", m->rope_dim, "v_dim", m->v_dim, "rope",
                     s->rope, "a_bias", m->a_bias, "o_bias", m->o_bias, "out_gate", m->out_gate);
}
static json_t *kind_json(const HfType *t, const HfShape *s, int l) {
    return s->state[l] ? line_json(t, s) : !strcmp(t->mixer, "mla") ? hf_mla_json(s) : gqa_json(s, l);
}
json_t *hf_moe_json(const HfShape *s) {
    const MoeCfg *m = &s->moe;
    json_t *j = json_pack("{ss si si si si si sb ss sb sf si si sb sb sb sf ss si}", "kind", "moe", "experts",
                          m->experts, "top_k", m->top_k, "hidden", m->hidden, "shared", m->shared, "shared_hidden",
                          m->shared_hidden, "shared_gate", m->shared_gate, "router",
                          m->router == ROUTER_SIGMOID ? "sigmoid" : "softmax", "norm_topk", m->norm_topk, "scale",
                          m->scale > 0 ? m->scale : 1, "groups", m->groups ? m->groups : 1, "top_groups", m->top_groups,
                          "bias_balance", m->bias_balance, "router_bias", m->router_bias, "expert_bias", m->expert_bias,
                          "limit", m->limit, "act", m->act == EXPERT_RELU2 ? "relu2" : "swiglu", "latent", m->latent);
    if (m->limit > 0) json_object_set_new(j, "alpha", json_real(m->alpha));
    return j;
}
static json_t *swiglu_json(const HfType *t, const HfShape *s) {
    return json_pack("{ss si}", "kind", t->geglu ? "geglu" : "swiglu", "hidden", s->F);
}
/* Settings of the whole model that a llama does not have. */
static void switches_json(const HfType *t, const HfShape *s, json_t *j) {
    static const char *const places[] = {[NORM_PRE] = "pre", [NORM_POST] = "post", [NORM_BOTH] = "both"};
    if (t->norm_place != NORM_PRE) json_object_set_new(j, "norm_place", json_string(places[t->norm_place]));
    if (t->norm_plus_one) json_object_set_new(j, "norm_plus_one", json_true());
    if (s->embed_scale != 1) json_object_set_new(j, "embed_scale", json_real(s->embed_scale));
    if (s->residual_scale != 1) json_object_set_new(j, "residual_scale", json_real(s->residual_scale));
    if (s->logits_divisor != 1) json_object_set_new(j, "logits_divisor", json_real(s->logits_divisor));
    if (s->logits_cap > 0) json_object_set_new(j, "logits_cap", json_real(s->logits_cap));
}

/* The names of layers' kinds are those that they are seen by: full and local, latent, recurrent, dense and experts. */
json_t *hf_decoder_settings(const HfType *t, const HfFile *f) {
    HfShape *s = xcalloc(1, sizeof *s);
    json_t *j = NULL;
    if (decoder_read(t, f, s)) {
        json_t *kinds = json_object(), *pattern = json_array();
        for (int l = 0; l < s->layers; l++) {
            const char *name = s->state[l]                ? "recurrent"
                               : !strcmp(t->mixer, "mla") ? "latent"
                               : s->unturned[l]           ? s->slides[l] ? "local_unturned" : "unturned"
                               : s->slides[l]             ? "local"
                                                          : "full";
            json_array_append_new(pattern, json_string(name));
            if (!json_object_get(kinds, name)) json_object_set_new(kinds, name, kind_json(t, s, l));
        }
        j = json_pack("{si si si si sf sf sb so so}", "d_model", s->d, "layers", s->layers, "vocab", s->V,
                      "max_positions", s->P, "norm_eps", s->eps, "init_std", s->std, "tied", s->tied, "kinds", kinds,
                      "pattern", pattern);
        switches_json(t, s, j);
        if (s->nsparse && s->nsparse < s->layers) {
            json_t *parts = json_array();
            for (int l = 0; l < s->layers; l++)
                json_array_append_new(parts, json_string(s->sparse[l] ? "experts" : "dense"));
            json_object_set_new(j, "ffn", json_pack("{so so}", "dense", swiglu_json(t, s), "experts", hf_moe_json(s)));
            json_object_set_new(j, "ffn_pattern", parts);
        } else {
            json_object_set_new(j, "ffn", json_pack("[o]", s->nsparse ? hf_moe_json(s) : swiglu_json(t, s)));
        }
    }
    json_decref(s->rope);
    json_decref(s->local_rope_json);
    free(s);
    return j;
}

/* ---- which type a model is --------------------------------------------------------------------------------------- */

bool hf_no(const char **why, const char *what) {
    if (why) *why = what;
    return false;
}
bool hf_plain(const ModelCfg *c, const char **why) {
    if (c->embed_scale != 1) return hf_no(why, "embed_scale");
    if (c->residual_scale != 1) return hf_no(why, "residual_scale");
    if (c->logits_divisor != 1) return hf_no(why, "logits_divisor");
    if (c->logits_cap > 0) return hf_no(why, "logits_cap");
    if (c->norm_place != NORM_PRE) return hf_no(why, "norm_place");
    return !c->norm_plus_one || hf_no(why, "norm_plus_one");
}
bool hf_block(const ModelCfg *c, HfBlock b, const char **why) {
    for (int l = 0; l < c->layers; l++) {
        if (c->kv_from[l] != l) return hf_no(why, "kv_from");
        const Mixer *mixer = c->kind[c->pattern[l]].mixer;
        if (mixer != mixer_find(b.mixer) && (!b.state || mixer != mixer_find(b.state)))
            return hf_no(why, "another mixer");
        if (b.ffn && (c->ffn_pattern[l] != c->ffn_pattern[0] || c->ffn[c->ffn_pattern[l]].ffn != ffn_find(b.ffn)))
            return hf_no(why, "another feed-forward part, or several");
    }
    if (c->norm != b.norm) return hf_no(why, "another norm");
    if (c->positions != b.positions) return hf_no(why, "other positions");
    return c->parallel == b.parallel || hf_no(why, "parallel");
}
bool hf_attention(const ModelCfg *c, HfShape *s, const char **why) {
    bool seen = false, known[2] = {false, false}; /* rotations of layers without and with the window */
    RopeCfg rope[2];
    s->nslide = s->window = s->nunturned = 0;
    for (int l = 0; l < c->layers; l++) {
        GqaCfg g;
        if (c->kind[c->pattern[l]].mixer != mixer_find("gqa")) continue;
        memcpy(&g, c->kind[c->pattern[l]].cfg, sizeof g); /* with its padding, which is compared too */
        const bool slides = g.window > 0, none = g.rope.type == ROPE_NONE;
        if (!g.heads) return hf_no(why, "a layer without queries");
        if (g.sinks) return hf_no(why, "sinks");
        if (!g.kv_heads) g.kv_heads = g.heads;
        if (!g.head_dim) g.head_dim = c->d_model / g.heads;
        if (g.rope_dims == g.head_dim) g.rope_dims = 0;
        if (g.scale == 1 / sqrt(g.head_dim)) g.scale = 0;
        if (g.window && s->window && g.window != s->window) return hf_no(why, "windows of several sizes");
        if (slides) s->window = g.window, s->slides[l] = true, s->nslide++;
        g.window = 0;
        if (none) s->unturned[l] = true, s->nunturned++;
        if (!none && known[slides] && memcmp(&rope[slides], &g.rope, sizeof g.rope))
            return hf_no(why, "layers of several kinds");
        if (!none || !seen) memcpy(&rope[slides], &g.rope, sizeof g.rope);
        known[slides] |= !none;
        memset(&g.rope, 0, sizeof g.rope); /* compared above */
        if (!seen) memcpy(&s->g, &g, sizeof g);
        if (memcmp(&s->g, &g, sizeof g)) return hf_no(why, "layers of several kinds");
        seen = true;
    }
    if (!seen) return hf_no(why, "no layer with attention");
    if (known[0] || known[1])
        memcpy(&s->g.rope, &rope[!known[0]], sizeof *rope), memcpy(&s->local_rope, &rope[known[1]], sizeof *rope);
    else
        s->g.rope.type = s->local_rope.type = ROPE_NONE;
    return true;
}
void hf_line_plain(LineCfg *c, int d_model) {
    if (!c->v_heads) c->v_heads = c->heads;
    if (!c->head_dim) c->head_dim = d_model / c->heads;
    if (!c->v_dim) c->v_dim = 2 * c->head_dim;
}
/* The settings of layers with a state, which are all alike. */
static bool decoder_states(const HfType *t, const ModelCfg *c, HfShape *s, const char **why) {
    for (int l = 0; t->state && l < c->layers; l++) {
        const Kind *k = &c->kind[c->pattern[l]];
        LineCfg line;
        if (k->mixer != mixer_find(t->state)) continue;
        memcpy(&line, k->cfg, sizeof line);
        hf_line_plain(&line, c->d_model);
        if (!s->nstate) memcpy(&s->line, &line, sizeof line);
        if (memcmp(&s->line, &line, sizeof line)) return hf_no(why, "layers of several kinds");
        s->state[l] = true, s->nstate++;
    }
    return true;
}
static bool decoder_latents(const ModelCfg *c, HfShape *s, const char **why) {
    for (int l = 0; l < c->layers; l++)
        if (c->pattern[l] != c->pattern[0]) return hf_no(why, "layers of several kinds");
    MlaCfg *m = &s->mla;
    memcpy(m, c->kind[c->pattern[0]].cfg, sizeof *m);
    if (!m->heads) return hf_no(why, "a layer without queries");
    if (!m->nope_dim || !m->rope_dim) return hf_no(why, "keys of one part alone");
    if (m->rope_heads != 1) return hf_no(why, "rope_heads");
    if (m->window) return hf_no(why, "a window");
    if (m->evict) return hf_no(why, "evict");
    if (!m->latent_norm || (m->q_rank && !m->q_latent_norm)) return hf_no(why, "a latent without its norm");
    if (m->a_bias != m->o_bias) return hf_no(why, "a_bias without o_bias, or the reverse");
    if (m->q_bias) return hf_no(why, "q_bias");
    if (m->out_gate) return hf_no(why, "out_gate");
    if (m->rope.mscale_all_dim > 0 && m->rope.type != ROPE_YARN) return hf_no(why, "mscale_all_dim without yarn");
    if (!m->v_dim) m->v_dim = m->nope_dim;
    return true;
}
bool hf_decoder_feeds(const HfType *t, const ModelCfg *c, HfShape *s, const char **why) {
    for (int l = 0; l < c->layers; l++) {
        const FfnKind *k = &c->ffn[c->ffn_pattern[l]];
        MoeCfg m;
        if (k->ffn == (t->geglu ? &geglu_ffn : &swiglu_ffn)) {
            if (t->geglu && ((const SwigluCfg *)k->cfg)->act != GELU_TANH) return hf_no(why, "act");
            const int F = ((const SwigluCfg *)k->cfg)->hidden;
            if (s->F && s->F != F) return hf_no(why, "another feed-forward part, or several");
            s->F = F;
            continue;
        }
        if (k->ffn != &moe_ffn || !t->experts) return hf_no(why, "another feed-forward part, or several");
        memcpy(&m, k->cfg, sizeof m);
        if (!t->bounded && (m.router_bias || m.expert_bias || m.limit > 0))
            return hf_no(why, "a router_bias, an expert_bias or a limit");
        if (m.act != EXPERT_SWIGLU || m.latent) return hf_no(why, "experts with act or latent");
        if (!m.top_groups) m.top_groups = m.groups;
        if (m.shared_hidden == m.hidden) m.shared_hidden = 0;
        if (!s->nsparse) memcpy(&s->moe, &m, sizeof m);
        if (memcmp(&s->moe, &m, sizeof m)) return hf_no(why, "experts of several kinds");
        s->sparse[l] = true, s->nsparse++;
    }
    return true;
}
/* What a llama does not have, the type must have or may have. */
static bool decoder_switches(const HfType *t, const ModelCfg *c, HfShape *s, const char **why) {
    const GqaCfg *g = &s->g;
    const struct {
        unsigned may;
        bool has;
        const char *what;
    } k[] = {{HF_PART_TURNED, g->rope_dims > 0, "rope_dims"},
             {HF_UNTURNED, s->nunturned > 0, "no rotation"},
             {HF_LOCAL_ROPE, memcmp(&g->rope, &s->local_rope, sizeof g->rope) != 0, "layers of several kinds"},
             {HF_SCORE_SCALE, g->scale > 0, "scale"},
             {HF_SCORE_CAP, g->soft_cap > 0, "soft_cap"},
             {HF_WIDE_NORM, g->qk_norm_wide, "qk_norm_wide"},
             {HF_OUT_GATE, g->out_gate, "out_gate"},
             {HF_SINK_SCORES, g->sink_scores, "sink_scores"},
             {HF_EMBED_SCALE, c->embed_scale != 1, "embed_scale"},
             {HF_FACTORS, c->residual_scale != 1, "residual_scale"},
             {HF_FACTORS, c->logits_divisor != 1, "logits_divisor"},
             {HF_LOGITS_CAP, c->logits_cap > 0, "logits_cap"}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        if (k[i].has && (t->may & k[i].may) != k[i].may) return hf_no(why, k[i].what);
    s->embed_scale = c->embed_scale, s->residual_scale = c->residual_scale;
    s->logits_divisor = c->logits_divisor, s->logits_cap = c->logits_cap;
    if (c->norm_place != t->norm_place) return hf_no(why, "norm_place");
    return c->norm_plus_one == t->norm_plus_one || hf_no(why, "norm_plus_one");
}
static bool decoder_shape(const HfType *t, const ModelCfg *c, HfShape *s, const char **why) {
    const bool gqa = !strcmp(t->mixer, "gqa");
    if (!hf_block(c, (HfBlock){t->mixer, t->state, NULL, NORM_RMS, POSITIONS_NONE, false}, why) ||
        !(gqa ? hf_attention : decoder_latents)(c, s, why) || !decoder_states(t, c, s, why) ||
        !hf_decoder_feeds(t, c, s, why))
        return false;
    const RopeCfg *rope = gqa ? &s->g.rope : &s->mla.rope;
    if (!decoder_switches(t, c, s, why)) return false;
    if (gqa && s->g.head_dim % 2) return hf_no(why, "an odd head_dim"); /* of no layer with a rotation */
    if (gqa && rope->type == ROPE_NONE && t->may & HF_UNTURNED) /* no layer has one: settings without an effect */
        s->g.rope = s->local_rope = (RopeCfg){.type = ROPE_DEFAULT, .theta = t->theta};
    if (gqa && (rope->interleaved || s->local_rope.interleaved)) return hf_no(why, "interleaved rotation");
    const char *differs = hf_rope_differs(rope, c->max_positions);
    if (gqa && !differs) differs = hf_rope_differs(&s->local_rope, c->max_positions);
    s->d = c->d_model, s->layers = c->layers, s->V = c->vocab, s->P = c->max_positions;
    s->eps = c->norm_eps, s->std = c->init_std, s->tied = c->tied;
    return !differs || hf_no(why, differs);
}
bool hf_decoder_is(const HfType *t, const ModelCfg *c, const char **why) {
    HfShape *s = xcalloc(1, sizeof *s);
    bool ok = decoder_shape(t, c, s, why);
    if (ok && !strcmp(t->mixer, "gqa") && t->attention_bias && s->g.qkv_bias != s->g.o_bias)
        ok = hf_no(why, "qkv_bias without o_bias, or the reverse");
    ok = ok && (!t->holds || t->holds(c, s, why));
    free(s);
    return ok;
}
const char *hf_rope_differs(const RopeCfg *r, int max_positions) {
    double L = r->original_max_positions ? r->original_max_positions : max_positions;
    if (r->type == ROPE_NONE) return "no rotation";
    if (r->inclusive) return "inclusive frequencies";
    /* Older versions replace yarn's factor by this quotient. */
    if (r->type == ROPE_YARN && fabs(r->factor * L - max_positions) > 1e-9 * max_positions)
        return "yarn whose factor is not max_positions / original_max_positions";
    /* transformers uses the length of the input, we use the planned length. */
    if (r->type == ROPE_DYNAMIC && ((r->length && r->length > L) || L != max_positions))
        return "dynamic rotation for a planned length";
    if (r->type == ROPE_LONGROPE && r->length && memcmp(&r->short_factor, &r->long_factor, sizeof r->short_factor))
        return "longrope of one length";
    return NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static json_t *hf_decoder_numbers(const Numbers *v) {
    json_t *a = json_array();
    for (int i = 0; i < v->n; i++) json_array_append_new(a, json_real(v->v[i]));
    return a;
}

/* In the spelling of version 4, which version 5 reads as well. */
json_t *hf_rope_json(const RopeCfg *r, int max_positions) {
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
        json_object_set_new(j, "short_factor", hf_decoder_numbers(&r->short_factor));
        json_object_set_new(j, "long_factor", hf_decoder_numbers(&r->long_factor));
    }
    return j;
}

void hf_decoder_json(const HfType *t, json_t *j, const ModelCfg *c) {
    HfShape *s = xcalloc(1, sizeof *s);
    CHECK(decoder_shape(t, c, s, NULL), "%s", t->type);
    const bool gqa = !strcmp(t->mixer, "gqa");
    const RopeCfg *rope = gqa ? &s->g.rope : &s->mla.rope;
    json_object_set_new(j, "architectures", json_pack("[s]", t->architecture));
    json_object_set_new(j, "model_type", json_string(t->type));
    json_object_set_new(j, "vocab_size", json_integer(c->vocab));
    json_object_set_new(j, "hidden_size", json_integer(c->d_model));
    json_object_set_new(j, "intermediate_size", json_integer(s->F ? s->F : s->moe.hidden));
    json_object_set_new(j, "num_hidden_layers", json_integer(c->layers));
    json_object_set_new(j, "num_attention_heads", json_integer(gqa ? s->g.heads : s->mla.heads));
    json_object_set_new(j, "num_key_value_heads", json_integer(gqa ? s->g.kv_heads : s->mla.heads));
    json_object_set_new(j, "head_dim", json_integer(gqa ? s->g.head_dim : s->mla.rope_dim));
    json_object_set_new(j, "hidden_act", json_string("silu"));
    json_object_set_new(j, "max_position_embeddings", json_integer(c->max_positions));
    json_object_set_new(j, "initializer_range", json_real(c->init_std));
    json_object_set_new(j, "rms_norm_eps", json_real(c->norm_eps));
    json_object_set_new(j, "rope_theta", json_real(rope->theta));
    json_object_set_new(j, "rope_scaling", hf_rope_json(rope, c->max_positions));
    if (t->attention_bias) json_object_set_new(j, "attention_bias", json_boolean(gqa ? s->g.qkv_bias : s->mla.a_bias));
    json_object_set_new(j, "attention_dropout", json_real(0));
    if (t->mlp_bias) json_object_set_new(j, "mlp_bias", json_false());
    json_object_set_new(j, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(j, "use_cache", json_true());
    hf_keys_write(j, t->table, s);
    if (t->write) t->write(j, c, s);
    free(s);
}
