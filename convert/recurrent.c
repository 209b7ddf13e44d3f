/* recurrent.c: mixers that keep a state: q, k, v and output projections copied (keys and values repeated where query
 * heads share them), short convolutions begin as the identity, what else the mixer has begins as in training. Source of
 * the practice: arXiv:2505.03005, arXiv:2408.15237. The result needs training: layer by layer, then as a whole. */
#include "kinds.h"

typedef struct {
    int every;
    int64_t seed;
    Ints keep;
} Cfg;
static const Key keys[] = {KEEP_KEYS(Cfg),
                           {"seed", KEY_LONG, offsetof(Cfg, seed), "0", 0, 9e15,
                            "seed of weights that the source does not have", 0, 0},
                           {0}};

static bool plan(Job *j, json_t *model, Err *e) {
    Cfg *c = j->cfg;
    const char *to = j->target->name;
    bool convert[LAYERS_MAX], rotates = !strcmp(to, "retention") || !strcmp(to, "gated_retention");
    int n = 0;
    if (!layers_chosen(j, &c->keep, c->every, convert, e)) return false;
    for (int l = 0; l < j->a.L; l++) {
        if (!convert[l]) continue;
        n++;
        if (!gqa_plain(j, l, true, true, false, e)) return false;
        if (!job_gqa(&j->a, l)->heads) return err_input(e, "--to %s: layer %d has no queries", to, l);
        if (job_gqa(&j->a, l)->qkv_bias || job_gqa(&j->a, l)->o_bias)
            return err_input(e, "--to %s: layer %d has biases of its projections, which %s cannot hold", to, l, to);
    }
    for (int i = 0; i < j->from.nkinds; i++) {
        const GqaCfg *g = kind_gqa(j, j->from.kind[i].name);
        if (!g) continue;
        json_t *kind =
            json_pack("{ss si si si}", "mixer", to, "heads", g->heads, "head_dim", g->head_dim, "v_dim", g->head_dim);
        json_t *old = json_object_get(json_object_get(model, "kinds"), j->from.kind[i].name);
        if (rotates) json_object_set(kind, "rope", json_object_get(old, "rope"));
        kind_split(model, j->from.kind[i].name, to, convert, kind);
    }
    snprintf(j->report->rule, sizeof j->report->rule, "%s in %d of %d layers: projections copied", to, n, j->a.L);
    snprintf(j->report->note, sizeof j->report->note, "train it next: gates and decays are those of a new model");
    return true;
}

static bool copy_heads(Job *j, int l, const char *from, const char *to, int source, int target) {
    Tensor in = job_in(j, l, from), out = job_out(j, l, to);
    if (j->failed || !present(out)) return !j->failed;
    size_t head = tensor_count(in) / (size_t)source;
    for (int h = 0; h < target; h++)
        memcpy(R(out) + (size_t)h * head, R(in) + (size_t)(h * source / target) * head, head * sizeof(real));
    return true;
}

typedef struct {
    Job *j;
    int l;
} Fresh;
static void place_overwritten(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Fresh *x = f->ctx;
    char *skip = xformat("model.layers.%d.", x->l);
    const char *name = path + strlen(skip);
    (void)flags;
    t->p = strncmp(name, "self_attn.", 10) ? NULL : job_out(x->j, x->l, name).p;
    free(skip);
}

static bool layer(Job *j, int l, Err *e) {
    static const char *const convs[] = {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight",
                                        "self_attn.v_conv1d.weight"};
    const GqaCfg *g = job_gqa(&j->a, l);
    (void)e;
    if (!g || job_gqa(&j->b, l)) return true;
    Fresh x = {j, l};
    Weights w = j->b.w;
    Fields f = {.see = place_overwritten, .ctx = &x};
    model_layer_fields(&j->b, l, &w, &f);
    model_layer_init(&j->b, l, &w, (uint64_t)((Cfg *)j->cfg)->seed);
    for (int i = 0; i < 3; i++) {
        Tensor t = job_out(j, l, convs[i]);
        for (size_t k = 0; present(t) && k < tensor_count(t); k++) R(t)[k] = (k + 1) % (size_t)t.n[2] == 0;
    }
    return copy_heads(j, l, "self_attn.q_proj.weight", "self_attn.q_proj.weight", g->heads, g->heads) &&
           copy_heads(j, l, "self_attn.k_proj.weight", "self_attn.k_proj.weight", g->kv_heads, g->heads) &&
           copy_heads(j, l, "self_attn.v_proj.weight", "self_attn.v_proj.weight", g->kv_heads, g->heads) &&
           copy_heads(j, l, "self_attn.o_proj.weight", "self_attn.o_proj.weight", 1, 1) &&
           copy_heads(j, l, "self_attn.o_proj.weight", "self_attn.out_proj.weight", 1, 1);
}

#define RECURRENT(mixer, what)                                                                  \
    const Target mixer##_target = {.name = #mixer,                                              \
                                   .exact = "approximate: a starting point for training",       \
                                   .needs = "no QK-norm, no biases, no shared keys and values", \
                                   .about = what " in gqa layers: projections copied",          \
                                   .keys = keys,                                                \
                                   .cfg_size = sizeof(Cfg),                                     \
                                   .plan = plan,                                                \
                                   .layer = layer}
RECURRENT(kda, "Kimi Delta Attention");
RECURRENT(gdn, "Gated DeltaNet");
RECURRENT(deltanet, "DeltaNet");
RECURRENT(gla, "gated linear attention");
RECURRENT(linear, "linear attention");
RECURRENT(retention, "retention");
RECURRENT(gated_retention, "gated retention");
