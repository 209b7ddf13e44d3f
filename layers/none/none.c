/* none.c: no sequence mixer: y = 0, so that a block is its feed-forward part alone. What is left of a layer whose
 * attention was dropped (arXiv:2406.15786); it keeps nothing per token. The norm before it has no effect. */
#include "../../ops/ops.h"
#include "../mixer.h"

typedef struct {
    LayerCfg base;
} Cfg;
static const Key keys[] = {{0}};

static bool check(void *cfg, Err *e) {
    return ((const Cfg *)cfg)->base.owner ||
           err_input(e, "kv_from: a layer without attention reads no other's keys and values");
}
static void weights(const void *cfg, void *w, Fields *f) { (void)cfg, (void)w, (void)f; }
static void saved(const void *cfg, int N, void *s, Fields *f) { (void)cfg, (void)N, (void)s, (void)f; }
static void rows(const void *cfg, KvShape *s) {
    (void)cfg;
    *s = (KvShape){0};
}
static void forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    (void)cfg, (void)w, (void)x, (void)kv, (void)s;
    r->ops->zero(r, y);
}
static void backward(Run *r, const void *cfg, const void *w, void *dw, Tensor x, const Kv *kv, Kv *dkv, const void *s,
                     Tensor dy, Tensor dx) {
    (void)r, (void)cfg, (void)w, (void)dw, (void)x, (void)kv, (void)dkv, (void)s, (void)dy, (void)dx;
}
static void extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    (void)slot;
    forward(r, cfg, w, x, kv, NULL, y);
}
static double flops(const void *cfg, double context) {
    (void)cfg, (void)context;
    return 0;
}

const Mixer none_mixer = {
    .name = "none",
    .source = "arXiv:2406.15786",
    .keys = keys,
    .cfg_size = sizeof(Cfg),
    .w_size = 1,
    .s_size = 1,
    .check = check,
    .weights = weights,
    .saved = saved,
    .rows = rows,
    .forward = forward,
    .backward = backward,
    .extend = extend,
    .flops = flops,
};
