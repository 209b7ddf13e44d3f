/* deltanet.c: the mixer deltanet: the delta rule without decay. See README.md. */
#include "layers/linear/line.h"

static const LineKind kind = {
    .delta = true, .map = MAP_UNIT, .decay = DECAY_NONE, .norm = "o_norm.weight", .out = "o_proj.weight"};
static const Key keys[] = {
    LINE_KEY_HEADS(1024),
    LINE_KEY_KV_HEADS,
    LINE_KEY_HEAD_DIM("d_model / heads"),
    LINE_KEY_V_DIM("head_dim"),
    LINE_KEY_CONV("4", ", only SiLU"),
    LINE_KEY_GATE("none"),
    LINE_KEY_BETA_MAX,
    LINE_KEY_HOUSEHOLDERS,
    LINE_KEY_LEVELS,
    {0},
};
static bool deltanet_check(void *cfg, Err *e) { return line_check(cfg, &kind, 1, e); }
const Mixer deltanet_mixer = {
    .name = "deltanet", .source = "arXiv:2406.06484", .keys = keys, .check = deltanet_check, LINE_MIXER};
