/* retention.c: the mixer retention (RetNet's multi-scale retention): rotated q and k, a constant decay per head. See
 * README.md. */
#include "layers/linear/line.h"

static const LineKind kind = {.map = MAP_ROTATE,
                              .decay = DECAY_CONSTANT,
                              .norm = "g_norm_swish_gate.weight",
                              .other_norm = "g_norm.weight",
                              .out = "o_proj.weight"};
static const Key keys[] = {
    /* beyond 48 heads 1 - 2^(-5-h) is 1 */
    LINE_KEY_HEADS(48),
    LINE_KEY_HEAD_DIM("d_model / heads"),
    LINE_KEY_V_DIM("2 head_dim"),
    LINE_KEY_CONV("0", ""),
    LINE_KEY_GATE("silu"),
    LINE_KEY_LEVELS,
    LINE_KEY_ROPE,
    {0},
};
static bool retention_check(void *cfg, Err *e) {
    LineCfg *c = cfg;
    for (int h = 0; h < c->heads; h++) c->constant[h] = log1p(-exp2(-5 - h));
    return line_check(cfg, &kind, 2, e);
}
const Mixer retention_mixer = {
    .name = "retention", .source = "arXiv:2307.08621", .keys = keys, .check = retention_check, LINE_MIXER};
