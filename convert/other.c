/* other.c: targets that keep the projections as they are and put another mixer, a window or a shared owner around them:
 * swa, dmc, cla, yoco. */
#include "../layers/dmc/dmc.h"
#include "kinds.h"

static bool same_tensors(Job *j, int l, Err *e) {
    (void)j, (void)l, (void)e;
    return true;
}

/* ---- swa -----------------------------------------------------------------------------------------------------------
 */

typedef struct {
    int window, sinks, every;
    Ints keep;
} Swa;
static const Key swa_keys[] = {{"window", KEY_INT, offsetof(Swa, window), NULL, 1, 1 << 30,
                                "positions a query looks back, itself included", 0, 0},
                               {"sinks", KEY_INT, offsetof(Swa, sinks), "0", 0, 1 << 20,
                                "first positions that stay visible beyond the window", 0, 0},
                               KEEP_KEYS(Swa),
                               {0}};
static json_t *kind_of(json_t *model, const char *name) {
    return json_object_get(json_object_get(model, "kinds"), name);
}
static bool swa_plan(Job *j, json_t *model, Err *e) {
    Swa *c = j->cfg;
    bool convert[LAYERS_MAX];
    if (!layers_chosen(j, &c->keep, c->every, convert, e)) return false;
    for (int l = 0; l < j->a.L; l++)
        if (convert[l] && job_gqa(&j->a, l)->window && job_gqa(&j->a, l)->window < c->window)
            return err_input(e, "window: layer %d has one of %d already, %d is wider", l, job_gqa(&j->a, l)->window,
                             c->window);
    for (int i = 0; i < j->from.nkinds; i++) {
        if (!kind_gqa(j, j->from.kind[i].name)) continue;
        json_t *kind = json_deep_copy(kind_of(model, j->from.kind[i].name));
        json_object_set_new(kind, "window", json_integer(c->window));
        json_object_set_new(kind, "sinks", json_integer(c->sinks));
        kind_split(model, j->from.kind[i].name, "swa", convert, kind);
    }
    j->exact = j->moves = c->window >= j->from.max_positions;
    snprintf(j->report->rule, sizeof j->report->rule, "swa window=%d sinks=%d", c->window, c->sinks);
    return true;
}
const Target swa_target = {.name = "swa",
                           .exact = "approximate; exact where the window holds all positions of the model",
                           .needs = "",
                           .about = "a sliding window in gqa layers; no tensor changes",
                           .keys = swa_keys,
                           .cfg_size = sizeof(Swa),
                           .plan = swa_plan,
                           .layer = same_tensors};

/* ---- dmc -----------------------------------------------------------------------------------------------------------
 */

typedef struct {
    int every;
    Ints keep;
} Dmc;
static const Key dmc_keys[] = {KEEP_KEYS(Dmc), {0}};
static bool dmc_plan(Job *j, json_t *model, Err *e) {
    Dmc *c = j->cfg;
    bool convert[LAYERS_MAX];
    if (!layers_chosen(j, &c->keep, c->every, convert, e)) return false;
    for (int l = 0; l < j->a.L; l++) {
        const GqaCfg *g = job_gqa(&j->a, l);
        if (convert[l] && (!gqa_plain(j, l, true, false, true, e))) return false;
        if (convert[l] && g->table.n && g->table.n < g->head_dim)
            return err_input(e, "--to dmc: of the heads of layer %d only %d numbers are rotated, which dmc cannot hold",
                             l, g->table.n);
        convert[l] &= j->a.layer[l].owner && job_gqa(&j->a, l)->heads > 0; /* readers stay: they see merged rows */
    }
    for (int i = 0; i < j->from.nkinds; i++) {
        const GqaCfg *g = kind_gqa(j, j->from.kind[i].name);
        if (!g) continue;
        json_t *kind = kind_of(model, j->from.kind[i].name);
        kind_split(model, j->from.kind[i].name, "dmc", convert,
                   json_pack("{ss si si si sO sb sb ss}", "mixer", "dmc", "heads", g->heads, "kv_heads", g->kv_heads,
                             "head_dim", g->head_dim, "rope", json_object_get(kind, "rope"), "qkv_bias", g->qkv_bias,
                             "o_bias", g->o_bias, "phase", "zero"));
    }
    snprintf(j->report->rule, sizeof j->report->rule, "dmc phase=zero");
    snprintf(j->report->note, sizeof j->report->note,
             "to be trained: first with phase zero, which fades the deciding number out, then with phase soft");
    return true;
}
const Target dmc_target = {
    .name = "dmc",
    .exact = "approximate: the deciding number of each head is 0 in evaluation",
    .needs = "no QK-norm, no window; training in phase zero, then soft",
    .about = "the same weights under the mixer dmc, marked for the stage that fades a number of each head",
    .keys = dmc_keys,
    .cfg_size = sizeof(Dmc),
    .plan = dmc_plan,
    .layer = same_tensors};

/* ---- cla, yoco -----------------------------------------------------------------------------------------------------
 */

enum { SHARE_MEAN, SHARE_FIRST };
static const char *const methods[] = {"mean", "first", NULL};
typedef struct {
    int n, window, method;
} Share;
#define METHOD                                                                                               \
    {                                                                                                        \
        "method", KEY_CHOICE, offsetof(Share, method), "mean", 0, 0,                                         \
            "keys and values of a group: the mean of its layers' weights, or those of its first", methods, 0 \
    }
static const Key cla_keys[] = {{"n", KEY_INT, offsetof(Share, n), "2", 2, LAYERS_MAX,
                                "layers that share one layer's keys and values", 0, 0},
                               METHOD,
                               {0}};
static const Key yoco_keys[] = {{"window", KEY_INT, offsetof(Share, window), NULL, 1, 1 << 30,
                                 "positions that the lower half of the layers looks back", 0, 0},
                                METHOD,
                                {0}};

/* The layer whose rows layer l will read. */
static int owner_of(const Job *j, int l) {
    const Share *c = j->cfg;
    return c->n ? l / c->n * c->n : l < j->a.L / 2 ? l : j->a.L / 2;
}
static bool share_plan(Job *j, json_t *model, Err *e) {
    Share *c = j->cfg;
    int most = 1;
    bool low[LAYERS_MAX];
    json_t *from = json_object();
    json_object_set_new(model, "kv_from", from);
    if (j->a.L < 2) return err_input(e, "--to %s: a model of one layer has none to share with", j->target->name);
    for (int l = 0; l < j->a.L; l++) {
        const GqaCfg *g = job_gqa(&j->a, l), *o = job_gqa(&j->a, owner_of(j, l));
        char name[16];
        low[l] = !c->n && l < j->a.L / 2;
        if (!g)
            return err_input(e, "--to %s: every layer must be gqa, layer %d is %s", j->target->name, l,
                             j->a.layer[l].kind->mixer->name);
        if (!gqa_plain(j, l, false, true, false, e)) return false;
        if (owner_of(j, l) == l) continue;
        most = imax(most, l - owner_of(j, l) + 1);
        if (g->qk_norm != o->qk_norm || g->qkv_bias != o->qkv_bias || g->table.n != o->table.n ||
            memcmp(g->table.f, o->table.f, (size_t)(g->table.n / 2) * sizeof *g->table.f))
            return err_input(e, "--to %s: layers %d and %d make keys in different ways (rotation, norm or bias)",
                             j->target->name, owner_of(j, l), l);
        snprintf(name, sizeof name, "%d", l);
        json_object_set_new(from, name, json_integer(owner_of(j, l)));
    }
    for (int i = 0; !c->n && i < j->from.nkinds; i++) {
        if (!kind_gqa(j, j->from.kind[i].name)) continue;
        json_t *kind = json_deep_copy(kind_of(model, j->from.kind[i].name));
        json_object_set_new(kind, "window", json_integer(c->window));
        kind_split(model, j->from.kind[i].name, "local", low, kind);
    }
    j->together = most;
    if (c->n)
        snprintf(j->report->rule, sizeof j->report->rule, "cla n=%d method=%s", c->n, methods[c->method]);
    else
        snprintf(j->report->rule, sizeof j->report->rule, "yoco window=%d method=%s", c->window, methods[c->method]);
    return true;
}

static bool share_layer(Job *j, int l, Err *e) {
    static const char *const names[] = {"self_attn.k_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.weight",
                                        "self_attn.v_proj.bias", "self_attn.k_norm.weight"};
    const Share *c = j->cfg;
    int end = l + 1;
    (void)e;
    while (end < j->a.L && owner_of(j, end) == l) end++;
    if (owner_of(j, l) != l || end == l + 1 || c->method == SHARE_FIRST) return true;
    for (int t = 0; t < 5; t++) {
        Tensor out = job_out(j, l, names[t]), in[LAYERS_MAX];
        for (int k = l; k < end; k++) in[k - l] = job_in(j, k, names[t]);
        if (j->failed) return false;
        for (size_t i = 0; present(out) && i < tensor_count(out); i++) {
            double sum = 0;
            for (int k = l; k < end; k++) sum += R(in[k - l])[i];
            R(out)[i] = (real)(sum / (end - l));
        }
    }
    return true;
}
const Target cla_target = {.name = "cla",
                           .exact = "approximate",
                           .needs = "gqa in all layers, each with keys and values of its own",
                           .about = "groups of neighbouring layers read the keys and values of their first",
                           .keys = cla_keys,
                           .cfg_size = sizeof(Share),
                           .plan = share_plan,
                           .layer = share_layer};
const Target yoco_target = {
    .name = "yoco",
    .exact = "approximate",
    .needs = "gqa in all layers, each with keys and values of its own",
    .about = "the lower half looks back a window, the upper half reads the keys and values of its first",
    .keys = yoco_keys,
    .cfg_size = sizeof(Share),
    .plan = share_plan,
    .layer = share_layer};
