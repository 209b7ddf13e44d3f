/* linear.c: the mixer linear: linear attention with the feature map elu + 1 and its normaliser. See README.md. */
#include "line.h"

static const LineKind kind = {.map = MAP_ELU, .divide_by_last = true, .out = "o_proj.weight"};
static const Key keys[] = {
    LINE_KEY_HEADS(1024),
    LINE_KEY_KV_HEADS,
    LINE_KEY_HEAD_DIM("d_model / heads"),
    LINE_KEY_V_DIM("head_dim"),
    LINE_KEY_CONV("0", ""),
    {"eps", KEY_FLOAT, offsetof(LineCfg, eps), "1e-6", 0, 1, "added to the normaliser", 0, 0},
    {0},
};
static bool linear_check(void *cfg, Err *e) { return line_check(cfg, &kind, 1, e); }
const Mixer linear_mixer = {
    .name = "linear", .source = "arXiv:2006.16236", .keys = keys, .check = linear_check, LINE_MIXER};
