/* gated_retention.c: the mixer gated_retention of YOCO: retention with a decay that each token decides. See
 * README.md. */
#include "layers/linear/line.h"

static const LineKind kind = {.map = MAP_ROTATE, .decay = DECAY_HEAD, .out = "out_proj.weight"};
static const Key keys[] = {
    LINE_KEY_HEADS(1024),
    LINE_KEY_KV_HEADS,
    LINE_KEY_HEAD_DIM("d_model / heads"),
    LINE_KEY_V_DIM("head_dim"),
    LINE_KEY_CONV("0", ""),
    LINE_KEY_GATE("silu"),
    LINE_KEY_LEVELS,
    {"gate_divisor", KEY_FLOAT, offsetof(LineCfg, gate_divisor), "16", 1e-3, 1e6,
     "log decay = log sigmoid(.) / this: the larger, the longer the memory at the start", 0, 0},
    LINE_KEY_RATES("the heads, by gt_proj.bias", "all of log(1/2) / gate_divisor, no bias"),
    LINE_KEY_ROPE,
    {0},
};
static bool gated_retention_check(void *cfg, Err *e) { return line_check(cfg, &kind, 1, e); }
const Mixer gated_retention_mixer = {
    .name = "gated_retention", .source = "arXiv:2405.05254", .keys = keys, .check = gated_retention_check, LINE_MIXER};
