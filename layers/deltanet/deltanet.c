/* deltanet.c: DeltaNet: the delta rule without decay. See README.md. */
#include "../linear/line.h"

static const LineKind kind = {
    .delta = true, .map = MAP_UNIT, .decay = DECAY_NONE, .norm = "o_norm.weight", .out = "o_proj.weight"};
static const Key keys[] = {
    LINE_KEY_HEADS(1024),
    LINE_KEY_HEAD_DIM("d_model / heads"),
    LINE_KEY_V_DIM("head_dim"),
    LINE_KEY_CONV,
    LINE_KEY_GATE("false"),
    LINE_KEY_BETA_MAX,
    {0},
};
static bool check(void *cfg, Err *e) { return line_check(cfg, &kind, 1, e); }
const Mixer deltanet_mixer = {
    .name = "deltanet", .source = "arXiv:2406.06484", .keys = keys, .check = check, LINE_MIXER};
