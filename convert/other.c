/* other.c: the target swa, which keeps the projections and puts a window around them. */
#include "kinds.h"

static bool other_same_tensors(Job *j, int l, Err *e) {
    (void)j, (void)l, (void)e;
    return true;
}

typedef struct {
    int window, sinks, every;
    Ints keep;
} Swa;
static const Key swa_keys[] = {{"window", KEY_INT, offsetof(Swa, window), NULL, 1, 1 << 30,
                                "positions that a query sees, its own included", 0, 0},
                               {"sinks", KEY_INT, offsetof(Swa, sinks), "0", 0, 1 << 20,
                                "first positions that every query sees", 0, 0},
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
            return err_input(e, "window: layer %d already has a window of %d; expected at most that, got %d", l,
                             job_gqa(&j->a, l)->window, c->window);
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
                           .exact = "approximate; lossless if the window covers all positions of the model",
                           .needs = "",
                           .about = "a sliding window in gqa layers; no tensor changes",
                           .keys = swa_keys,
                           .cfg_size = sizeof(Swa),
                           .plan = swa_plan,
                           .layer = other_same_tensors};
