/* none.c: the mixer none: y = 0, so the block is its feed-forward part alone. It remains of a layer whose attention
 * was dropped (arXiv:2406.15786), and of models whose layers are one part each. It keeps nothing per token, and there
 * is no norm before it. */
#include "ops/ops.h"
#include "layers/mixer.h"

typedef struct {
    LayerCfg base;
} Cfg;
static const Key keys[] = {{0}};

static bool none_check(void *cfg, Err *e) {
    return ((const Cfg *)cfg)->base.owner ||
           err_input(e, "kv_from: a layer without attention cannot read another layer's keys and values");
}
static void none_weights(const void *cfg, void *w, Fields *f) { (void)cfg, (void)w, (void)f; }
static void none_saved(const void *cfg, int N, void *s, Fields *f) { (void)cfg, (void)N, (void)s, (void)f; }
static void none_rows(const void *cfg, KvShape *s) {
    (void)cfg;
    *s = (KvShape){0};
}
static void none_forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    (void)cfg, (void)w, (void)x, (void)kv, (void)s;
    r->ops->zero(r, y);
}
static void none_backward(Run *r, const void *cfg, const void *w, void *dw, Tensor x, const Kv *kv, const KvInto *dkv,
                          const void *s, Tensor dy, Into dx) {
    (void)r, (void)cfg, (void)w, (void)dw, (void)x, (void)kv, (void)dkv, (void)s, (void)dy, (void)dx;
}
static void none_extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    (void)slot;
    none_forward(r, cfg, w, x, kv, NULL, y);
}
static double none_flops(const void *cfg, double context) {
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
    .check = none_check,
    .weights = none_weights,
    .saved = none_saved,
    .rows = none_rows,
    .forward = none_forward,
    .backward = none_backward,
    .extend = none_extend,
    .flops = none_flops,
    .reads_nothing = true,
};
