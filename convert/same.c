/* same.c: the same layout stored in another way: dtype, shards, order of rotated elements, head, vocabulary; gains
 * folded and heads rotated into a common basis, which changes values but not the function; layers without attention. */
#include "layers/mla/mla.h"
#include "heads.h"
#include "kinds.h"
#include "ops/text.h"

enum { KEEP };
enum { LAYOUT_HALF = 1, LAYOUT_INTERLEAVED };
enum { TIED_TRUE = 1, TIED_FALSE };
enum { SAME_TRANSFORMERS = 1, SAME_FLA };
static const char *const dtypes[] = {"keep", "f32", "bf16", "f16", NULL},
                         *const layouts[] = {"keep", "half", "interleaved", NULL},
                         *const ties[] = {"keep", "true", "false", NULL},
                         *const libraries[] = {"keep", "transformers", "fla", NULL};
typedef struct {
    int dtype, rope_layout, tied, library, pad_vocab, drop_attention, align_groups;
    bool fold_norms;
    char shard[KEY_TEXT_MAX];
    Grams grams;
    double *cosine; /* (L) sums over calibration tokens */
} Cfg;
static const Key keys[] = {
    {"dtype", KEY_CHOICE, offsetof(Cfg, dtype), "keep", 0, 0, "dtype of all tensors: f32, bf16, f16", dtypes, 0},
    {"shard", KEY_TEXT, offsetof(Cfg, shard), "", 0, 0, "largest size of a file: 500MB, 2GB, 1GiB; none: one file", 0,
     0},
    {"rope_layout", KEY_CHOICE, offsetof(Cfg, rope_layout), "keep", 0, 0,
     "pairs of the rotation: half (i, i+n/2) or interleaved (2i, 2i+1)", layouts, 0},
    {"tied", KEY_CHOICE, offsetof(Cfg, tied), "keep", 0, 0,
     "true: the head is the embedding (both must be equal); false: a separate tensor", ties, 0},
    {"library", KEY_CHOICE, offsetof(Cfg, library), "keep", 0, 0,
     "whose classes load the result: transformers, or fla (flash-linear-attention), which must have such a model",
     libraries, 0},
    {"pad_vocab", KEY_INT, offsetof(Cfg, pad_vocab), "0", 0, 1 << 20,
     "add ids until the vocabulary is a multiple of this; their rows are the mean row", 0, 0},
    {"fold_norms", KEY_BOOL, offsetof(Cfg, fold_norms), "false", 0, 0,
     "multiply the norms' gains into the projections that read them (the last norm's into an untied head)", 0, 0},
    {"align_groups", KEY_INT, offsetof(Cfg, align_groups), "0", 0, 1024,
     "put the key/value heads into the order and the bases in which method=aligned pools them", 0, 0},
    {"drop_attention", KEY_INT, offsetof(Cfg, drop_attention), "0", 0, LAYERS_MAX,
     "remove attention from this many layers: those that change the stream least, by the cosine of its rows", 0, 0},
    {0}};

/* ---- plan ----------------------------------------------------------------------------------------------------------
 */

static bool shard_read(const char *text, size_t *out, Err *e) {
    return bytes_parse(text, out) ||
           err_input(e, "shard: expected a size such as 500MB, 2GB or 1GiB, got '%.40s'", text);
}

static bool rope_plan(Job *j, json_t *model, Err *e) {
    bool want = ((Cfg *)j->cfg)->rope_layout == LAYOUT_INTERLEAVED;
    const char *name;
    json_t *kind;
    for (int l = 0; l < j->a.L; l++)
        if (!gqa_follows(j, l, false, "rope_layout", e)) return false;
    json_object_foreach(json_object_get(model, "kinds"), name, kind) {
        const char *mixer = json_string_value(json_object_get(kind, "mixer"));
        json_t *rope = json_object_get(kind, "rope");
        if (!rope || !strcmp(json_string_value(json_object_get(rope, "type")), "none") ||
            json_is_true(json_object_get(rope, "interleaved")) == want)
            continue;
        if (strcmp(mixer, "gqa") && strcmp(mixer, "mla"))
            return err_input(e, "rope_layout: kind %.40s is a %s, whose rows cannot be moved (gqa and mla can)", name,
                             mixer);
        json_object_set_new(rope, "interleaved", json_boolean(want));
    }
    return true;
}

static bool tied_plan(Job *j, json_t *model, Err *e) {
    bool want = ((Cfg *)j->cfg)->tied == TIED_TRUE;
    if (want && !j->from.tied) {
        const Tensor t = TENSOR(NULL, REAL, j->from.vocab, j->from.d_model);
        StPlace p;
        const StEntry *a = hf_files_find(&j->files, "model.embed_tokens.weight", t, &p),
                      *b = hf_files_find(&j->files, "lm_head.weight", t, &p);
        if (st_patched(&j->files.st, b) || a->scale || b->scale || a->bytes != b->bytes || strcmp(a->dtype, b->dtype) ||
            memcmp(a->p, b->p, a->bytes))
            return err_input(e,
                             "tied: the source's head differs from its embedding; only an equal one can be left out");
    }
    json_object_set_new(model, "tied", json_boolean(want));
    return true;
}

static bool fold_plan(Job *j, Err *e) {
    if (j->from.norm != NORM_RMS)
        return err_input(e, "fold_norms: this model's norms are LayerNorms, whose biases cannot be folded");
    if (j->from.norm_place != NORM_PRE || j->from.norm_plus_one)
        return err_input(e,
                         "fold_norms: expected norms before mixer and feed-forward part that multiply by their "
                         "weights; this model has %s",
                         j->from.norm_plus_one ? "norm_plus_one" : "norm_place post or both");
    for (int l = 0; l < j->a.L; l++) {
        const Layer *y = &j->a.layer[l];
        const char *mixer = y->kind->mixer->name, *ffn = y->ffn->ffn->name;
        if (strcmp(mixer, "gqa") && strcmp(mixer, "mla"))
            return err_input(e, "fold_norms: layer %d is a %s; only gqa and mla can absorb a gain", l, mixer);
        if (strcmp(ffn, "swiglu") && strcmp(ffn, "geglu"))
            return err_input(
                e, "fold_norms: the feed-forward part of layer %d is a %s; only swiglu and geglu can absorb a gain", l,
                ffn);
    }
    return true;
}

static void see_cosine(void *ctx, const FlowView *v) {
    Job *j = ctx;
    const int T = v->x.n[0], d = v->x.n[1];
    for (int t = 0; v->window < j->win.calib && t < T; t++) {
        const real *x = R(v->x) + (size_t)t * (size_t)d, *y = R(v->mid) + (size_t)t * (size_t)d;
        double xy = 0, xx = 0, yy = 0;
        for (int i = 0; i < d; i++) xy += (double)x[i] * y[i], xx += (double)x[i] * x[i], yy += (double)y[i] * y[i];
        ((Cfg *)j->cfg)->cosine[v->l] += xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 1;
    }
}

/* It has attention, and no other layer reads its rows or writes them for it. */
static bool same_droppable(const Job *j, int l) {
    const Layer *y = &j->a.layer[l];
    return y->owner && !y->shared && strcmp(y->kind->mixer->name, "none") != 0;
}
static bool drop_plan(Job *j, json_t *model, Err *e) {
    Cfg *c = j->cfg;
    Flow f;
    int L = j->a.L, can = 0;
    if (!j->o->calib) return err_input(e, "drop_attention needs activations; give a text with --calib FILE");
    for (int l = 0; l < L; l++) can += same_droppable(j, l);
    if (c->drop_attention > can)
        return err_input(e,
                         "drop_attention: expected at most %d, the layers with attention whose keys and values no "
                         "other layer reads, got %d",
                         can, c->drop_attention);
    c->cosine = xcalloc((size_t)L, sizeof *c->cosine);
    if (!flow_open(&f, j->dev, &j->files, &j->from, &j->win, 0, j->win.calib, e)) return false;
    bool ok = true;
    for (int l = 0; ok && l < L; l++) ok = flow_layer(&f, l, see_cosine, j, e);
    flow_close(&f);
    for (int l = 0; ok && l < L; l++)
        if (!isfinite(c->cosine[l]))
            ok = err_input(
                e, "drop_attention: layer %d's output on the text is not finite; check that all weights are finite", l);
    if (!ok) return false;
    json_t *pattern = json_object_get(model, "pattern");
    char *gone = kind_name(model, "dropped", "attention");
    json_object_set_new(json_object_get(model, "kinds"), gone, json_pack("{s:s}", "mixer", "none"));
    char said[200] = "layers without attention:";
    for (int n = 0; n < c->drop_attention; n++) {
        int best = -1;
        for (int l = 0; l < L; l++)
            if (same_droppable(j, l) && c->cosine[l] > -INFINITY && (best < 0 || c->cosine[l] > c->cosine[best]))
                best = l;
        json_array_set_new(pattern, (size_t)best, json_string(gone));
        snprintf(said + strlen(said), sizeof said - strlen(said), " %d (cosine %.4f)", best,
                 c->cosine[best] / (j->win.calib * j->win.T));
        c->cosine[best] = -INFINITY;
    }
    free(gone);
    /* a kind that no layer is left of may go */
    const char *name;
    json_t *kind, *kinds = json_object_get(model, "kinds");
    void *tmp;
    json_object_foreach_safe(kinds, tmp, name, kind) {
        bool used = false;
        for (int l = 0; l < L; l++) used |= !strcmp(json_string_value(json_array_get(pattern, (size_t)l)), name);
        if (!used) json_object_del(kinds, name);
    }
    snprintf(j->report->note, sizeof j->report->note, "%s", said);
    return true;
}

static bool align_plan(Job *j, Err *e) {
    Cfg *c = j->cfg;
    int layers = 0;
    if (!j->o->calib) return err_input(e, "align_groups needs activations; give a text with --calib FILE");
    for (int l = 0; l < j->a.L; l++) {
        const GqaCfg *g = job_gqa(&j->a, l);
        if (!g) continue;
        layers++;
        if (!gqa_follows(j, l, true, "align_groups", e)) return false;
        if (g->kv_heads % c->align_groups)
            return err_input(e,
                             "align_groups: expected a divisor of the source's %d key/value heads (layer %d), got %d",
                             g->kv_heads, l, c->align_groups);
    }
    return layers || err_input(e, "align_groups: the source has no layer with mixer gqa");
}

static bool library_fits(const json_t *model, Err *e) {
    char *text = json_dumps(model, JSON_COMPACT);
    const char *why = NULL;
    ModelCfg c;
    bool ok = text && model_cfg_from_json(&c, text, strlen(text), "the converted model", e);
    if (ok) {
        ok = hf_is_fla(&c, &why) ||
             err_input(e, "library: fla has no model type for this model (%s); leave it out", why);
        model_cfg_free(&c);
    }
    free(text);
    return ok;
}
static bool same_plan(Job *j, json_t *model, Err *e) {
    static const int as[] = {-1, F32, BF16, F16};
    Cfg *c = j->cfg;
    c->grams.layer = -1;
    j->as = as[c->dtype];
    j->exact = !c->drop_attention;
    j->moves = !c->fold_norms && !c->align_groups;
    j->calibrates = c->align_groups;
    if (*c->shard && !shard_read(c->shard, &j->shard, e)) return false;
    if (c->library) json_object_set_new(model, "library", json_string(libraries[c->library]));
    if ((c->rope_layout && !rope_plan(j, model, e)) || (c->tied && !tied_plan(j, model, e)) ||
        (c->fold_norms && !fold_plan(j, e)) || (c->align_groups && !align_plan(j, e)))
        return false;
    if (c->pad_vocab && j->from.logits_cap > 0)
        return err_input(e, "pad_vocab: logits_cap %g of this model leaves no bound for the old ids; leave it out",
                         j->from.logits_cap);
    if (c->pad_vocab) {
        long V = ((long)j->from.vocab + c->pad_vocab - 1) / c->pad_vocab * c->pad_vocab;
        json_object_set_new(model, "vocab", json_integer(V));
        snprintf(j->report->note, sizeof j->report->note,
                 "ids %d to %ld are new; the others' probabilities fall by at most %.3g %%", j->from.vocab, V - 1,
                 100.0 * (double)(V - j->from.vocab) / (double)V);
    }
    j->fold = c->fold_norms && !json_is_true(json_object_get(model, "tied"));
    j->moves &= !j->fold;
    snprintf(j->report->rule, sizeof j->report->rule, "same");
    for (int i = 0; i < j->o->nword; i++) {
        size_t n = strlen(j->report->rule);
        snprintf(j->report->rule + n, sizeof j->report->rule - n, " %s", j->o->word[i]);
    }
    return (!c->drop_attention || drop_plan(j, model, e)) && (c->library != SAME_FLA || library_fits(model, e));
}

/* ---- layers --------------------------------------------------------------------------------------------------------
 */

/* Numbers at..at+n-1 of a head that begins at row `first` of t (rows of any width), to interleaved order or back. */
static void same_permute(Tensor t, size_t first, int at, int n, bool interleave) {
    if (!present(t)) return;
    const size_t width = t.rank > 1 ? (size_t)t.n[1] : 1;
    real *p = R(t) + (first + (size_t)at) * width, *copy = xcalloc((size_t)n * width, sizeof *copy);
    memcpy(copy, p, (size_t)n * width * sizeof *copy);
    for (int i = 0; i < n / 2; i++)
        for (int half = 0; half < 2; half++) {
            int split = i + half * (n / 2), pair = 2 * i + half, from = interleave ? split : pair,
                to = interleave ? pair : split;
            memcpy(p + (size_t)to * width, copy + (size_t)from * width, width * sizeof *p);
        }
    free(copy);
}

static void turn_gqa(Job *j, int l, const GqaCfg *g, bool interleave) {
    static const char *const names[] = {"self_attn.q_proj.weight", "self_attn.q_proj.bias",
                                        "self_attn.k_proj.weight", "self_attn.k_proj.bias",
                                        "self_attn.q_norm.weight", "self_attn.k_norm.weight"};
    for (int i = 0; i < 6; i++) {
        Tensor t = job_edit(j, l, names[i]);
        int heads = i >= 4 && !g->qk_norm_wide ? 1 : i < 2 || i == 4 ? g->heads : g->kv_heads;
        for (int h = 0; h < heads && !j->failed; h++)
            same_permute(t, (size_t)h * (size_t)g->head_dim, g->table.at, g->table.n, interleave);
    }
}
static void turn_mla(Job *j, int l, const MlaCfg *m, bool interleave) {
    static const char *const q[] = {"self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.q_b_proj.weight",
                                    "self_attn.q_b_proj.bias"},
                             *const kv[] = {"self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_proj_with_mqa.bias"};
    for (int i = 0; i < 4; i++) {
        Tensor t = job_edit(j, l, q[i]);
        for (int h = 0; h < m->heads && !j->failed; h++)
            same_permute(t, (size_t)h * (size_t)(m->nope_dim + m->rope_dim), m->nope_dim, m->rope_dim, interleave);
    }
    for (int i = 0; i < 2; i++) {
        Tensor t = job_edit(j, l, kv[i]);
        for (int h = 0; h < m->rope_heads && !j->failed; h++)
            same_permute(t, (size_t)m->kv_rank + (size_t)h * (size_t)m->rope_dim, 0, m->rope_dim, interleave);
    }
}

/* W <- W diag(gain), gain <- 1, for the matrices `names` that read the norm. */
static void same_fold(Job *j, int l, const char *norm, const char *const *names) {
    Tensor g = job_edit(j, l, norm);
    for (; *names; names++) {
        Tensor w = job_edit(j, l, *names);
        if (j->failed || !present(w)) continue;
        for (size_t i = 0; i < tensor_count(w); i++) R(w)[i] *= R(g)[i % (size_t)w.n[1]];
    }
    for (int i = 0; !j->failed && present(g) && i < g.n[0]; i++) R(g)[i] = 1;
}
static void fold_layer(Job *j, int l) {
    static const char *const attention[] = {"self_attn.q_proj.weight",
                                            "self_attn.k_proj.weight",
                                            "self_attn.v_proj.weight",
                                            "self_attn.q_a_proj.weight",
                                            "self_attn.kv_a_proj_with_mqa.weight",
                                            "self_attn.decide_proj.weight",
                                            NULL},
                             *const mlp[] = {"mlp.gate_proj.weight", "mlp.up_proj.weight", NULL};
    same_fold(j, l, "input_layernorm.weight", attention);
    same_fold(j, l, "post_attention_layernorm.weight", mlp);
}

static bool align_layer(Job *j, Cfg *c, int l, Err *e) {
    static const char *const names[] = {"self_attn.k_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.weight",
                                        "self_attn.v_proj.bias"};
    const GqaCfg *g = job_gqa(&j->a, l);
    const Gauge *x;
    if (!grams_gauge(j, &c->grams, l, c->align_groups, true, &x, e)) return false;
    heads_follow(j, l, x);
    for (int t = 0; t < 4 && j->a.layer[l].owner; t++) {
        Tensor in = job_in(j, l, names[t]), out = job_out(j, l, names[t]);
        for (int i = 0; i < g->kv_heads && !j->failed; i++) {
            const double *M = (t > 1 ? x->v : x->k) + (size_t)x->order[i] * (size_t)g->head_dim * (size_t)g->head_dim;
            heads_mix(j, out, i, in, &x->order[i], 1, &M, g->head_dim, 1);
        }
    }
    return !j->failed;
}

static bool same_layer(Job *j, int l, Err *e) {
    Cfg *c = j->cfg;
    const char *mixer = j->b.layer[l].kind->mixer->name;
    bool interleave = c->rope_layout == LAYOUT_INTERLEAVED;
    if (c->align_groups && job_gqa(&j->a, l) && job_gqa(&j->b, l) && !align_layer(j, c, l, e)) return false;
    if (c->fold_norms) fold_layer(j, l);
    if (c->rope_layout && !strcmp(mixer, "gqa")) {
        const GqaCfg *a = job_gqa(&j->a, l);
        if (a->table.interleaved != interleave && a->table.n) turn_gqa(j, l, a, interleave);
    }
    if (c->rope_layout && !strcmp(mixer, "mla")) {
        const MlaCfg *a = j->a.layer[l].cfg;
        if (a->k_turn.interleaved != interleave && a->k_turn.n) turn_mla(j, l, a, interleave);
    }
    return !j->failed;
}

static void same_see(Job *j, const FlowView *v) { grams_see(j, &((Cfg *)j->cfg)->grams, v->l, v->kv); }
static size_t same_memory(const Job *j, int l) { return j->calibrates ? grams_memory(j, l) : 0; }
static void same_done(Job *j) {
    grams_free(&((Cfg *)j->cfg)->grams);
    free(((Cfg *)j->cfg)->cosine);
}

const Target same_target = {
    .name = "same",
    .exact = "dtype: lossless to F32, else approximate by its rounding; pad_vocab: lossless on the old ids, whose "
             "probability falls by at most new/all; drop_attention: approximate; the rest: lossless",
    .needs = "align_groups, drop_attention: --calib",
    .about = "the same layout, stored in another way",
    .keys = keys,
    .cfg_size = sizeof(Cfg),
    .plan = same_plan,
    .layer = same_layer,
    .see = same_see,
    .memory = same_memory,
    .done = same_done};
