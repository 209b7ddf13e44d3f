/* dmc.c: the targets dmc and dms: the same projections in the mixer dmc, ready for the stages in which one channel of
 * each head learns to merge or evict rows of the cache. */
#include "layers/dmc/dmc.h"
#include "kinds.h"

enum { DECIDE_LANE = DMC_LANE, DECIDE_ADAPTER = DMC_ADAPTER, DECIDE_AUTO };
static const char *const deciders[] = {"lane", "adapter", "auto", NULL};

typedef struct {
    int action, decide, lane, window, delay, governs, steps, every;
    double temperature, offset, rate, target;
    char gain[KEY_TEXT_MAX];
    Ints keep;
} Dmc;
#define AT(member) offsetof(Dmc, member)
#define DMC_KEYS(action_, delay_, decide_)                                                                            \
    {                                                                                                                 \
        {"action",                                                                                                    \
         KEY_CHOICE,                                                                                                  \
         AT(action),                                                                                                  \
         action_,                                                                                                     \
         0,                                                                                                           \
         0,                                                                                                           \
         "merge: a token joins its predecessor's row (DMC); evict: the predecessor's row is removed (DMS)",           \
         dmc_actions,                                                                                                 \
         0},                                                                                                          \
            {"decide",                                                                                                \
             KEY_CHOICE,                                                                                              \
             AT(decide),                                                                                              \
             decide_,                                                                                                 \
             0,                                                                                                       \
             0,                                                                                                       \
             "lane: a channel of each head; adapter (evict alone): a new projection, of zeros at first; the rest of " \
             "the model stays as it is; auto: adapter if a layer has latents (mla) or only publishes its rows",       \
             deciders,                                                                                                \
             0},                                                                                                      \
            {"lane", KEY_CHOICE, AT(lane), "last", 0, 0, "channel of each head that decides", dmc_lanes, 0},          \
            {"window",                                                                                                \
             KEY_INT,                                                                                                 \
             AT(window),                                                                                              \
             "12",                                                                                                    \
             0,                                                                                                       \
             4096,                                                                                                    \
             "merge: a row is the mean of at most this many newest tokens; 0: all",                                   \
             0,                                                                                                       \
             0},                                                                                                      \
            {"delay",                                                                                                 \
             KEY_INT,                                                                                                 \
             AT(delay),                                                                                               \
             delay_,                                                                                                  \
             0,                                                                                                       \
             1 << 20,                                                                                                 \
             "evict: positions that a row stays visible after the decision",                                          \
             0,                                                                                                       \
             0},                                                                                                      \
            {"governs",                                                                                               \
             KEY_CHOICE,                                                                                              \
             AT(governs),                                                                                             \
             "previous",                                                                                              \
             0,                                                                                                       \
             0,                                                                                                       \
             "evict: which row a token's decision is about: the previous token's, or its own: itself",                \
             dmc_governs,                                                                                             \
             0},                                                                                                      \
            {"temperature", KEY_FLOAT, AT(temperature), "0.1", 1e-3, 1e3, "temperature of the soft decisions", 0, 0}, \
            {"offset", KEY_FLOAT, AT(offset), "5", 0, 1e3, "how far below its threshold a decision starts", 0, 0},    \
            {"gain",                                                                                                  \
             KEY_TEXT,                                                                                                \
             AT(gain),                                                                                                \
             "auto",                                                                                                  \
             0,                                                                                                       \
             0,                                                                                                       \
             "factor of the decision channel; auto: 20 offset / (rate d_model steps in phase soft), so that "         \
             "decisions can follow",                                                                                  \
             0,                                                                                                       \
             0},                                                                                                      \
            {"rate", KEY_FLOAT, AT(rate), "3e-4", 1e-12, 1, "learning rate of the training that follows", 0, 0},      \
            {"target", KEY_FLOAT, AT(target), "2", 1, 1e3, "compression ratio of the training that follows", 0, 0},   \
            {"steps", KEY_INT, AT(steps), "1000", 10, 1 << 30, "steps of the training that follows", 0, 0},           \
            KEEP_KEYS(Dmc), {                                                                                         \
            0                                                                                                         \
        }                                                                                                             \
    }
static const Key dmc_keys[] = DMC_KEYS("merge", "0", "lane"), dms_keys[] = DMC_KEYS("evict", "16", "auto");
#undef AT

/* The factor of the decision channel; refuses one by which no decision could turn within the steps. */
static bool dmc_gain_of(const Job *j, bool adapter, double *gain, Err *e) {
    const Dmc *c = j->cfg;
    const int soft = c->steps - retrofit_steps(c->steps, adapter).zero;
    const double fits = dmc_gain(c->offset, c->rate, j->from.d_model, soft);
    Number n;
    if (!strcmp(c->gain, "auto")) {
        *gain = fits;
    } else if (number_parse(c->gain, &n) && n.fits && n.f > 0 && n.f <= 1e6) {
        *gain = n.f;
    } else {
        return err_input(e, "gain: expected auto or a number above 0 and at most 1e6, got %.40s", c->gain);
    }
    const double moves = dmc_moves(*gain, c->rate, j->from.d_model, soft), needs = DMC_REACH * c->offset;
    return moves >= needs ||
           err_input(e,
                     "--to %s: nothing would be %s: with gain %.3g, %d steps at rate %g move a decision by at most "
                     "%.3g, and offset %g needs %g; set gain=%.3g, offset=%.2g or steps=%.0f",
                     j->target->name, c->action == DMC_MERGE ? "merged" : "evicted", *gain, soft, c->rate, moves,
                     c->offset, needs, fits, moves / DMC_REACH, ceil(c->steps * needs / moves));
}
/* Whether layer l makes the rows that it reads, or that others read. */
static bool dmc_owns(const Job *j, int l) { return j->a.layer[l].owner; }
/* Refuses a layer of grouped queries that the mixer dmc cannot hold. */
static bool dmc_fits(const Job *j, int l, bool adapter, Err *e) {
    const GqaCfg *g = job_gqa(&j->a, l);
    const MlaCfg *m = job_mla(&j->a, l);
    const char *to = j->target->name;
    if (m && m->evict)
        return err_input(e, "--to %s: layer %d already evicts its latents; keep=[%d] leaves it as it is", to, l, l);
    const int window = g ? g->window : m->window;
    if (window)
        return err_input(e, "--to %s: layer %d has a window of %d, which %s cannot hold; keep=[%d] leaves it as it is",
                         to, l, window, to, l);
    if (m || !gqa_plain(j, l, !adapter, false, false, e)) return m != NULL;
    if (adapter && !gqa_unscaled(j, l, e)) return false;
    if (!adapter && g->table.n && g->table.n < g->head_dim)
        return err_input(e, "--to %s: the heads of layer %d rotate only %d elements, which needs decide=adapter", to, l,
                         g->table.n);
    return true;
}
/* The layer that needs a projection to decide about its rows: of one lane for all heads, or without queries; -1: none
 * does. */
static int dmc_needs_adapter(const Job *j, const bool *convert) {
    for (int l = 0; l < j->a.L; l++)
        if (convert[l] && dmc_owns(j, l) && (job_mla(&j->a, l) || !job_gqa(&j->a, l)->heads)) return l;
    return -1;
}
/* Chooses who decides. */
static bool dmc_decider(const Job *j, const bool *convert, bool *adapter, Err *e) {
    const Dmc *c = j->cfg;
    const int l = c->action == DMC_EVICT ? dmc_needs_adapter(j, convert) : -1;
    *adapter = c->decide == DECIDE_ADAPTER || (c->decide == DECIDE_AUTO && l >= 0);
    if (*adapter && c->action == DMC_MERGE)
        return err_input(e, "decide: adapter evicts rows and merges none; use --to dms, or decide=lane");
    if (c->window != DMC_WINDOW && c->action == DMC_EVICT)
        return err_input(e, "window: evicted rows have no mean; use --to dmc, or leave window out");
    if (c->governs == DMC_ITSELF && c->action == DMC_MERGE)
        return err_input(e, "governs: a merge is with the previous row; use --to dms, or leave governs out");
    for (int k = 0; c->governs == DMC_ITSELF && k < j->a.L; k++)
        if (convert[k] && job_mla(&j->a, k))
            return err_input(e, "governs: latents (layer %d) are decided about by the next token; leave governs out",
                             k);
    if (*adapter || l < 0) return true;
    return err_input(e, "decide: layer %d %s, so no channel of a head can decide; set decide=adapter or keep=[%d]", l,
                     job_mla(&j->a, l) ? "has latents, one row for all heads" : "publishes its rows, without queries",
                     l);
}
/* The layers that change: those that own their rows. Readers stay: they see the rows that are left. */
static bool dmc_layers(const Job *j, bool convert[LAYERS_MAX], bool *adapter, Err *e) {
    const Dmc *c = j->cfg;
    int n = 0;
    if (!layers_chosen_of(j, &c->keep, c->every, c->action == DMC_EVICT, convert, e) ||
        !dmc_decider(j, convert, adapter, e))
        return false;
    for (int l = 0; l < j->a.L; l++) {
        if (!convert[l]) continue;
        if ((dmc_owns(j, l) || !*adapter) && !dmc_fits(j, l, *adapter, e)) return false;
        convert[l] = dmc_owns(j, l) && (*adapter || job_gqa(&j->a, l)->heads > 0);
        n += convert[l];
    }
    return n ||
           err_input(e, "--to %s: all layers that are left to convert read another's rows (kv_from)", j->target->name);
}
static void dmc_kind(const Job *j, json_t *model, const char *name, bool adapter, double gain, const bool *convert) {
    const Dmc *c = j->cfg;
    const GqaCfg *g = kind_gqa(j, name);
    json_t *kind = json_object_get(json_object_get(model, "kinds"), name);
    kind_split(model, name, j->target->name, convert,
               json_pack("{ss si si si sO si sb sb sb sb ss ss ss ss si si ss sf sf sf}", "mixer", "dmc", "heads",
                         g->heads, "kv_heads", g->kv_heads, "head_dim", g->head_dim, "rope",
                         json_object_get(kind, "rope"), "rope_dims", g->rope_dims, "qk_norm", g->qk_norm,
                         "qk_norm_wide", g->qk_norm_wide, "qkv_bias", g->qkv_bias, "o_bias", g->o_bias, "phase",
                         adapter ? "soft" : "zero", "action", dmc_actions[c->action], "decide",
                         dmc_deciders[adapter ? DMC_ADAPTER : DMC_LANE], "lane", dmc_lanes[c->lane], "window",
                         c->window, "delay", c->delay, "governs", dmc_governs[c->governs], "temperature",
                         c->temperature, "offset", c->offset, "gain", gain));
}
static void mla_kind(const Job *j, json_t *model, const char *name, double gain, const bool *convert) {
    const Dmc *c = j->cfg;
    json_t *next = json_deep_copy(json_object_get(json_object_get(model, "kinds"), name)),
           *more = json_pack("{sb si sf sf sf}", "evict", 1, "delay", c->delay, "temperature", c->temperature, "offset",
                             c->offset, "gain", gain);
    json_object_update(next, more);
    json_decref(more);
    kind_split(model, name, j->target->name, convert, next);
}
static bool dmc_plan(Job *j, json_t *model, Err *e) {
    const Dmc *c = j->cfg;
    const char *to = j->target->name;
    bool convert[LAYERS_MAX], adapter = false;
    double gain = 0;
    if (!dmc_layers(j, convert, &adapter, e) || !dmc_gain_of(j, adapter, &gain, e)) return false;
    for (int i = 0; i < j->from.nkinds; i++) {
        const char *name = j->from.kind[i].name;
        if (kind_gqa(j, name))
            dmc_kind(j, model, name, adapter, gain, convert);
        else if (j->from.kind[i].mixer == &mla_mixer && adapter)
            mla_kind(j, model, name, gain, convert);
    }
    j->exact = j->moves = adapter; /* zeros are not above a threshold, which is 0 or more */
    j->retrofit = (Retrofit){c->rate, c->target, c->steps, adapter};
    snprintf(j->report->rule, sizeof j->report->rule, "%s action=%s decide=%s delay=%d offset=%g gain=%.4g phase=%s",
             to, dmc_actions[c->action], dmc_deciders[adapter ? DMC_ADAPTER : DMC_LANE], c->delay, c->offset, gain,
             adapter ? "soft" : "zero");
    snprintf(j->report->note, sizeof j->report->note,
             adapter
                 ? "train it next: train.yaml in the result trains the projections that decide, and nothing else, up "
                   "to a compression of %g"
                 : "train it next: train.yaml in the result has the stages, first phase zero, which removes the "
                   "decision channel from attention, then phase soft up to a compression of %g",
             c->target);
    return true;
}
/* The same tensors, and zeros for an adapter. */
static bool dmc_layer(Job *j, int l, Err *e) {
    static const char *const names[] = {"self_attn.decide_proj.weight", "self_attn.decide_proj.bias"};
    (void)e;
    for (int i = 0; i < 2; i++) {
        const Tensor t = job_out(j, l, names[i]);
        if (present(t) && !j->failed) memset(t.p, 0, tensor_bytes(t));
    }
    return true;
}
const Target dmc_target = {
    .name = "dmc",
    .exact = "approximate: the decision channel of each head is 0 in evaluation",
    .needs = "no QK-norm, no window; then training in phase zero, then soft: the result's train.yaml",
    .about = "the same weights in the mixer dmc, ready for the stages in which one channel of each head learns to "
             "merge rows",
    .keys = dmc_keys,
    .cfg_size = sizeof(Dmc),
    .plan = dmc_plan,
    .layer = dmc_layer};
const Target dms_target = {.name = "dms",
                           .exact =
                               "approximate: the decision channel of a query head of each group is 0 in evaluation; "
                               "lossless with decide=adapter",
                           .needs = "as dmc; QK-norm, partial rotations, latents (mla) and layers that only publish "
                                    "rows with decide=adapter",
                           .about = "as dmc, for delayed eviction: a row leaves some positions after the decision",
                           .keys = dms_keys,
                           .cfg_size = sizeof(Dmc),
                           .plan = dmc_plan,
                           .layer = dmc_layer};
