/* gated_retention.c: YOCO's gated retention: retention whose decay each token decides. See README.md. */
#include "../linear/line.h"

static const LineKind kind = {.map = MAP_ROTATE, .decay = DECAY_HEAD, .fixed_gate = true, .out = "out_proj.weight"};
static const Key keys[] = {
    LINE_KEY_HEADS(1024),
    LINE_KEY_HEAD_DIM("d_model / heads"),
    LINE_KEY_V_DIM("head_dim"),
    {"gate_divisor", KEY_FLOAT, offsetof(LineCfg, gate_divisor), "16", 1e-3, 1e6,
     "log decay = log sigmoid(.) / this: the larger, the longer the memory at the start", 0, 0},
    LINE_KEY_ROPE,
    {0},
};
static bool check(void *cfg, Err *e) { return line_check(cfg, &kind, 1, e); }
const Mixer gated_retention_mixer = {
    .name = "gated_retention", .source = "arXiv:2405.05254", .keys = keys, .check = check, LINE_MIXER};
