/* hf_fla.c: what flash-linear-attention's model types have in common: sizes, softmax attention in some layers, a
 * swiglu. hf_fla_types.c has the types, and the sources. */
#include "hf_fla.h"

/* ---- values ------------------------------------------------------------------------------------------------------ */

bool fla_flag(const HfFile *f, const char *key, bool dflt, bool *out) {
    *out = false;
    return json_is_null(json_object_get(f->j, key)) || hf_flag_or(f, key, dflt, out);
}
bool fla_groups(const HfFile *f, const char *key, int heads, bool multiple, int *out) {
    if (!hf_whole(f, key, 1, heads, out)) return false;
    return (multiple ? *out % heads : heads % *out) == 0 ||
           err_input(f->e, "%s: \"%s\": expected a %s of num_heads (%d), found %d", f->path, key,
                     multiple ? "multiple" : "divisor", heads, *out);
}

bool fla_turns(const RopeCfg *r) { return r->type == ROPE_DEFAULT && !r->interleaved && !r->inclusive; }

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Layer l has this attention. */
static void fla_attends(FlaShape *x, int l, const GqaCfg *g) {
    int at = 0;
    for (; at < x->nspec; at++) {
        const GqaCfg *o = &x->spec[at];
        if (o->heads == g->heads && o->kv_heads == g->kv_heads && o->window == g->window &&
            o->qkv_bias == g->qkv_bias && o->rope.theta == g->rope.theta)
            break;
    }
    if (at == x->nspec) x->spec[x->nspec++] = *g;
    x->spec_of[l] = at;
}
/* One description of attention, f->j, which holds for the layers that it lists: of[l] becomes `number`. */
static bool spec_read(const HfFile *f, const FlaShape *x, int number, int *of, GqaCfg *g) {
    static const char *const known[] = {"layers", "num_heads", "num_kv_heads", "qkv_bias", "window_size", "rope_theta"};
    const json_t *layers = json_object_get(f->j, "layers");
    const char *key;
    json_t *v;
    if (!json_is_object(f->j) || !json_is_array(layers))
        return err_input(f->e, "%s: expected {layers: a list, num_heads, ...} or a list of such, found %s", f->path,
                         json_is_object(f->j) ? "no list of layers" : hf_json_kind(f->j));
    json_object_foreach((json_t *)f->j, key, v) {
        bool ours = json_is_null(v) || json_is_false(v);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) ours |= !strcmp(key, known[i]);
        if (!ours) return err_input(f->e, "%s: \"%.80s\" is not supported", f->path, key);
    }
    if (!hf_whole(f, "num_heads", 1, HF_NEEDED, &g->heads) ||
        !fla_groups(f, "num_kv_heads", g->heads, false, &g->kv_heads) ||
        !hf_whole(f, "window_size", 1, 0, &g->window) || !fla_flag(f, "qkv_bias", false, &g->qkv_bias) ||
        !hf_number(f, "rope_theta", 10000, false, &g->rope.theta))
        return false;
    if (x->s.d % g->heads || x->s.d / g->heads % 2)
        return err_input(f->e,
                         "%s: \"num_heads\": expected heads of an even width in hidden_size (%d), found "
                         "%d heads",
                         f->path, x->s.d, g->heads);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        v = json_array_get(layers, i);
        const json_int_t l = json_is_integer(v) ? json_integer_value(v) : -1;
        if (l < 0 || l >= x->s.layers || of[l] >= 0)
            return err_input(f->e, "%s: \"layers\": expected layers from 0 to %d, each once, found %s%lld", f->path,
                             x->s.layers - 1, json_is_integer(v) ? "" : "no whole number at place ",
                             (long long)(json_is_integer(v) ? json_integer_value(v) : (json_int_t)i));
        of[l] = number;
    }
    return true;
}
static bool specs_read(const HfFile *f, FlaShape *x) {
    const json_t *attn = json_object_get(f->j, "attn");
    const bool list = json_is_array(attn);
    const size_t n = !hf_given(f->j, "attn") ? 0 : list ? json_array_size(attn) : 1;
    int of[LAYERS_MAX];
    if (n > LAYERS_MAX) return err_input(f->e, "%s: \"attn\": expected at most %d entries", f->path, LAYERS_MAX);
    GqaCfg *all = xcalloc(n + 1, sizeof *all);
    char *path = xformat("%s: \"attn\"", f->path);
    bool ok = true;
    for (int l = 0; l < x->s.layers; l++) of[l] = -1;
    for (size_t i = 0; ok && i < n; i++)
        ok = spec_read(&(HfFile){path, list ? json_array_get(attn, i) : attn, f->e}, x, (int)i, of, &all[i]);
    for (int l = 0; ok && l < x->s.layers; l++) {
        x->s.state[l] = of[l] < 0;
        x->s.nstate += x->s.state[l];
        if (!x->s.state[l]) fla_attends(x, l, &all[of[l]]);
    }
    free(all), free(path);
    return ok;
}
static bool fla_sizes(const HfFile *f, const FlaType *t, HfShape *s) {
    double ratio;
    if (!hf_whole(f, "hidden_size", 1, HF_NEEDED, &s->d) ||
        !hf_whole(f, "num_hidden_layers", 1, HF_NEEDED, &s->layers) ||
        !hf_whole(f, "vocab_size", 1, HF_NEEDED, &s->V) || !hf_whole(f, "max_position_embeddings", 1, 2048, &s->P) ||
        !hf_whole(f, "intermediate_size", 1, 0, &s->F) || !hf_number(f, "norm_eps", 1e-6, false, &s->eps) ||
        !hf_number(f, "initializer_range", 0.02, true, &s->std) ||
        !fla_flag(f, "tie_word_embeddings", false, &s->tied) ||
        !hf_number(f, "hidden_ratio",
                   hf_given(f->j, "hidden_ratio")          ? 0
                   : json_object_get(f->j, "hidden_ratio") ? 4
                                                           : t->ratio,
                   false, &ratio))
        return false;
    if (s->layers > LAYERS_MAX)
        return err_input(f->e, "%s: \"num_hidden_layers\": expected at most %d layers, found %d", f->path, LAYERS_MAX,
                         s->layers);
    /* two thirds, rounded up to a multiple of 256 */
    const double width = s->d * ratio * 2 / 3;
    if (!s->F && width < 1 << 28) s->F = ((int)width + 255) / 256 * 256;
    return s->F ||
           err_input(f->e, "%s: \"hidden_ratio\": %g x hidden_size %d is not a usable width", f->path, ratio, s->d);
}
static json_t *fla_kinds(const FlaType *t, const FlaShape *x) {
    json_t *kinds = json_object();
    if (x->s.nstate) json_object_set_new(kinds, "state", t->kind(x));
    for (int i = 0; i < x->nspec; i++) {
        const GqaCfg *g = &x->spec[i];
        char name[32];
        snprintf(name, sizeof name, "attention%d", i);
        json_object_set_new(kinds, name,
                            json_pack("{ss si si si si sb s{sf}}", "mixer", "gqa", "heads", g->heads, "kv_heads",
                                      g->kv_heads, "head_dim", x->s.d / g->heads, "window", g->window, "qkv_bias",
                                      g->qkv_bias, "rope", "theta", g->rope.theta));
    }
    return kinds;
}
json_t *fla_settings(const FlaType *t, const HfFile *f) {
    FlaShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    json_t *j = NULL;
    if (hf_musts_met(f, t->type->musts) && fla_sizes(f, t, s) && t->read(f, x) && specs_read(f, x)) {
        json_t *pattern = json_array();
        char name[32];
        for (int l = 0; l < s->layers; l++) {
            snprintf(name, sizeof name, "attention%d", x->spec_of[l]);
            json_array_append_new(pattern, json_string(s->state[l] ? "state" : name));
        }
        j = json_pack("{si si si si sf sf sb ss so so s[{ss si}]}", "d_model", s->d, "layers", s->layers, "vocab", s->V,
                      "max_positions", s->P, "norm_eps", s->eps, "init_std", s->std, "tied", s->tied, "library", "fla",
                      "kinds", fla_kinds(t, x), "pattern", pattern, "ffn", "kind", "swiglu", "hidden", s->F);
    }
    free(x);
    return j;
}

/* ---- which models it holds, writing ------------------------------------------------------------------------------ */

/* Layer l, which has no state, is one of attention that the types may have. */
static bool fla_attention(const ModelCfg *c, int l, FlaShape *x, const char **why) {
    GqaCfg g;
    memcpy(&g, c->kind[c->pattern[l]].cfg, sizeof g);
    if (!g.heads) return hf_no(why, "a layer without queries");
    const int width = g.head_dim ? g.head_dim : c->d_model / g.heads;
    if (width * g.heads != c->d_model) return hf_no(why, "head_dim x heads that is not d_model");
    if (g.sinks || g.soft_cap > 0 || g.qk_norm || g.qk_norm_wide || g.out_gate || g.sink_scores || g.o_bias ||
        (g.rope_dims && g.rope_dims != width) || (g.scale > 0 && g.scale != 1 / sqrt(width)))
        return hf_no(why, "a setting of attention that fla does not have");
    if (!fla_turns(&g.rope)) return hf_no(why, "another rotation");
    if (!g.kv_heads) g.kv_heads = g.heads;
    fla_attends(x, l, &g);
    return true;
}
static bool fla_shape(const FlaType *t, const ModelCfg *c, FlaShape *x, const char **why) {
    HfShape *s = &x->s;
    FlaShape *next = NULL;
    if (c->library != LIBRARY_FLA) return hf_no(why, "library: transformers");
    if (!hf_plain(c, why) || !hf_block(c, (HfBlock){"gqa", t->mixer, NULL, NORM_RMS, POSITIONS_NONE, false}, why) ||
        !hf_decoder_feeds(t->type, c, s, why))
        return false;
    s->d = c->d_model;
    bool ok = true;
    for (int l = 0; ok && l < c->layers; l++) {
        const Kind *k = &c->kind[c->pattern[l]];
        s->state[l] = k->mixer == mixer_find(t->mixer);
        if (!s->state[l]) {
            ok = fla_attention(c, l, x, why);
            continue;
        }
        if (!s->nstate++) {
            ok = t->holds(c, k->cfg, x, why);
            continue;
        }
        if (!next) next = xcalloc(1, sizeof *next);
        ok = t->holds(c, k->cfg, next, why) &&
             ((!memcmp(&next->s.line, &s->line, sizeof s->line) && !memcmp(&next->kda, &x->kda, sizeof x->kda)) ||
              hf_no(why, "layers of several kinds"));
    }
    free(next);
    return ok && (s->nstate || hf_no(why, "no layer with a state"));
}
bool fla_is(const FlaType *t, const ModelCfg *c, const char **why) {
    FlaShape *x = xcalloc(1, sizeof *x);
    const bool ok = fla_shape(t, c, x, why);
    free(x);
    return ok;
}
static json_t *specs_json(const ModelCfg *c, const FlaShape *x) {
    if (!x->nspec) return json_null();
    json_t *all = json_array();
    for (int i = 0; i < x->nspec; i++) {
        const GqaCfg *g = &x->spec[i];
        json_t *layers = json_array();
        for (int l = 0; l < c->layers; l++)
            if (!x->s.state[l] && x->spec_of[l] == i) json_array_append_new(layers, json_integer(l));
        json_array_append_new(all, json_pack("{so si si sb so sf}", "layers", layers, "num_heads", g->heads,
                                             "num_kv_heads", g->kv_heads, "qkv_bias", g->qkv_bias, "window_size",
                                             g->window ? json_integer(g->window) : json_null(), "rope_theta",
                                             g->rope.theta));
    }
    if (x->nspec > 1) return all;
    json_t *one = json_incref(json_array_get(all, 0));
    json_decref(all);
    return one;
}
void fla_json(const FlaType *t, json_t *j, const ModelCfg *c) {
    FlaShape *x = xcalloc(1, sizeof *x);
    CHECK(fla_shape(t, c, x, NULL), "%s", t->type->type);
    json_object_set_new(j, "architectures", json_pack("[s]", t->type->architecture));
    json_object_set_new(j, "model_type", json_string(t->type->type));
    json_object_set_new(j, "vocab_size", json_integer(c->vocab));
    json_object_set_new(j, "hidden_size", json_integer(c->d_model));
    json_object_set_new(j, "intermediate_size", json_integer(x->s.F));
    json_object_set_new(j, "num_hidden_layers", json_integer(c->layers));
    json_object_set_new(j, "max_position_embeddings", json_integer(c->max_positions));
    json_object_set_new(j, "norm_eps", json_real(c->norm_eps));
    json_object_set_new(j, "hidden_act", json_string("swish"));
    json_object_set_new(j, "initializer_range", json_real(c->init_std));
    json_object_set_new(j, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(j, "attn", specs_json(c, x));
    json_object_set_new(j, "use_cache", json_true());
    t->write(j, x);
    free(x);
}
