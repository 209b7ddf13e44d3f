/* other.c: targets that keep the projections as they are and put another mixer or a window around them:
 * swa, dmc. Those that share an owner's rows are in share.c. */
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
