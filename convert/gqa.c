/* gqa.c: fewer heads of keys and values by pooling (arXiv:2305.13245), with or without a common basis (align.h); more
 * of them by repetition, which is exact. */
#include "layers/gqa/gqa.h"
#include "heads.h"
#include "kinds.h"
#include "stock.h"

enum { MEAN, FIRST, RANDOM, ALIGNED };
static const char *const methods[] = {"mean", "first", "random", "aligned", NULL}, *const partitions[] = {"similar",
                                                                                                          "adjacent",
                                                                                                          NULL};
typedef struct {
    int kv_heads, method, groups;
    int64_t seed;
    bool stock;
    Grams grams;
} Cfg;

#define METHOD_KEYS                                                                                                 \
    {"method",                                                                                                      \
     KEY_CHOICE,                                                                                                    \
     offsetof(Cfg, method),                                                                                         \
     "mean",                                                                                                        \
     0,                                                                                                             \
     0,                                                                                                             \
     "fewer heads: mean of a group, its first head, random (new weights), or aligned (mean of similar heads after " \
     "rotation into a common basis, scaled to their norm)",                                                         \
     methods,                                                                                                       \
     0},                                                                                                            \
        {"groups",                                                                                                  \
         KEY_CHOICE,                                                                                                \
         offsetof(Cfg, groups),                                                                                     \
         "similar",                                                                                                 \
         0,                                                                                                         \
         0,                                                                                                         \
         "aligned: heads of a group: similar (by what they compute) or adjacent",                                   \
         partitions,                                                                                                \
         0},                                                                                                        \
        {"seed", KEY_LONG, offsetof(Cfg, seed), "0", 0, 9e15, "random: seed of the new weights", 0, 0}, {           \
        0                                                                                                           \
    }
static const Key gqa_keys[] = {
    {"kv_heads", KEY_INT, offsetof(Cfg, kv_heads), "0", 0, 1024,
     "key/value heads of every gqa layer: a divisor of the source's (heads are pooled) or a multiple (repeated); 0: "
     "convert other mixers only, latents to one head for each query head",
     0, 0},
    METHOD_KEYS};
static const Key mqa_keys[] = {METHOD_KEYS};

static bool gqa_plan(Job *j, json_t *model, Err *e) {
    Cfg *c = j->cfg;
    int layers = 0, G = c->kv_heads ? c->kv_heads : 1;
    bool fewer = false, more = false;
    c->grams.layer = -1;
    if (!strcmp(j->target->name, "gqa") && stock_wanted(j, c->kv_heads)) {
        c->stock = true;
        return stock_plan(j, model, c->kv_heads, e);
    }
    for (int l = 0; l < j->a.L; l++) {
        const GqaCfg *g = job_gqa(&j->a, l);
        if (!g) continue;
        layers++;
        if (g->kv_heads % G && G % g->kv_heads)
            return err_input(e, "kv_heads: expected a divisor or a multiple of the source's %d (layer %d), got %d",
                             g->kv_heads, l, G);
        if (g->heads && g->heads % G)
            return err_input(e, "kv_heads: expected a divisor of the source's %d query heads (layer %d), got %d",
                             g->heads, l, G);
        if (g->qk_norm_wide && G != g->kv_heads)
            return err_input(e,
                             "--to %s: layer %d norms its %d key heads together (qk_norm_wide); their number cannot "
                             "change",
                             j->target->name, l, g->kv_heads);
        fewer |= G<g->kv_heads, more |= G> g->kv_heads;
    }
    if (!layers)
        return err_input(e, "--to %s: the source has no layer with mixer gqa (layer 0 is %s)", j->target->name,
                         j->a.layer[0].kind->mixer->name);
    for (json_t *k = NULL; (k = job_kind(model, "gqa", k));) json_object_set_new(k, "kv_heads", json_integer(G));
    j->exact = j->moves = !fewer;
    j->calibrates = fewer && c->method == ALIGNED;
    if (j->calibrates && !j->o->calib)
        return err_input(e, "method=aligned needs activations; give a text with --calib FILE");
    for (int l = 0; j->calibrates && l < j->a.L; l++)
        if (!gqa_follows(j, l, true, "method=aligned", e)) return false;
    snprintf(j->report->rule, sizeof j->report->rule, "%s kv_heads=%d%s%s", j->target->name, G,
             fewer  ? " method="
             : more ? ": repeated"
                    : ": as it was",
             fewer ? methods[c->method] : "");
    return true;
}

static void gqa_see(Job *j, const FlowView *v) { grams_see(j, &((Cfg *)j->cfg)->grams, v->l, v->kv); }
static size_t gqa_memory(const Job *j, int l) { return j->calibrates ? grams_memory(j, l) : 0; }

static void gqa_redraw(Job *j, int l, const char *name, Tensor out, uint64_t seed) {
    uint64_t key = rng_mix(rng_name(rng_mix(seed, 0x9EA), name), (uint64_t)l);
    for (size_t i = 0; i < tensor_count(out); i++)
        R(out)[i] = out.rank > 1 ? (real)(j->from.init_std * rng_normal(key, i)) : 0;
}

static bool gqa_layer(Job *j, int l, Err *e) {
    static const char *const names[] = {"self_attn.k_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.weight",
                                        "self_attn.v_proj.bias"};
    Cfg *c = j->cfg;
    const GqaCfg *a = job_gqa(&j->a, l), *b = job_gqa(&j->b, l);
    const Gauge *x = NULL;
    if (c->stock) return stock_layer(j, l, e);
    if (!a || a->kv_heads == b->kv_heads) return true;
    const int K = a->kv_heads, G = b->kv_heads, D = a->head_dim, g = imax(1, K / G);
    if (j->calibrates) {
        if (!grams_gauge(j, &c->grams, l, G, c->groups == 0, &x, e)) return false;
        heads_follow(j, l, x);
    }
    if (!j->a.layer[l].owner) return !j->failed;
    int *head = xcalloc((size_t)g, sizeof *head);
    const double **M = xcalloc((size_t)g, sizeof *M);
    for (int t = 0; t < 4; t++) {
        Tensor in = job_in(j, l, names[t]), out = job_out(j, l, names[t]);
        bool value = t > 1;
        if (j->failed || !present(out)) continue;
        if (K > G && c->method == RANDOM) {
            gqa_redraw(j, l, names[t], out, (uint64_t)c->seed);
            continue;
        }
        for (int i = 0; i < G; i++) {
            int n = K < G || c->method == FIRST ? 1 : g;
            for (int m = 0; m < n; m++) {
                head[m] = x ? x->order[i * g + m] : K < G ? (int)((long)i * K / G) : i * g + m;
                if (x) M[m] = (value ? x->v : x->k) + (size_t)head[m] * (size_t)D * (size_t)D;
            }
            heads_mix(j, out, i, in, head, n, x ? M : NULL, D, (x ? value ? x->keep_v[i] : x->keep_k[i] : 1) / n);
        }
    }
    free(M);
    free(head);
    return !j->failed;
}

static void gqa_done(Job *j) { grams_free(&((Cfg *)j->cfg)->grams); }

const Target gqa_target = {
    .name = "gqa",
    .exact = "repeated heads: lossless; pooled: approximate; from latents: lossless; from merged rows: approximate "
             "(lossless in phase zero without rotation)",
    .needs = "method=aligned: --calib; latents: no norm on them, keys as wide as values; layers that own their keys "
             "and values",
    .about = "kv_heads key/value heads in every gqa layer; mla, dmc and windows over all positions become gqa",
    .keys = gqa_keys,
    .cfg_size = sizeof(Cfg),
    .plan = gqa_plan,
    .layer = gqa_layer,
    .see = gqa_see,
    .memory = gqa_memory,
    .done = gqa_done};
const Target mqa_target = {.name = "mqa",
                           .exact = "approximate",
                           .needs = "method=aligned: --calib",
                           .about = "one key/value head in every gqa layer",
                           .keys = mqa_keys,
                           .cfg_size = sizeof(Cfg),
                           .plan = gqa_plan,
                           .layer = gqa_layer,
                           .see = gqa_see,
                           .memory = gqa_memory,
                           .done = gqa_done};
