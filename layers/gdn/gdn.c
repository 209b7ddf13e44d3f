/* gdn.c: the mixer gdn (Gated DeltaNet): the delta rule with a decay per head. See README.md. */
#include "layers/linear/line.h"
#include "layers/parts.h"

static const LineKind kind = {
    .delta = true, .map = MAP_UNIT, .decay = DECAY_RATE, .norm = "o_norm.weight", .out = "o_proj.weight"};
static const Key keys[] = {
    LINE_KEY_HEADS(1024),
    LINE_KEY_KV_HEADS,
    {"v_heads", KEY_INT, offsetof(LineCfg, v_heads), "0", 0, 1024,
     "value heads, a multiple of heads: several share q and k; 0: as many as heads", 0, 0},
    LINE_KEY_HEAD_DIM("d_model / heads"),
    LINE_KEY_V_DIM("2 head_dim"),
    LINE_KEY_CONV("4", ", only SiLU"),
    LINE_KEY_GATE("silu"),
    LINE_KEY_BETA_MAX,
    LINE_KEY_HOUSEHOLDERS,
    LINE_KEY_LEVELS,
    {"inner_decay", KEY_BOOL, offsetof(LineCfg, inner_decay), "false", 0, 0,
     "erase by sigmoid(decay) k, a factor of each head (Comba)", 0, 0},
    {"output_correction", KEY_BOOL, offsetof(LineCfg, output_correction), "false", 0, 0,
     "read by q - D p, where p is the key, or with inner_decay what erases (Comba)", 0, 0},
    {"rates", KEY_CHOICE, offsetof(LineCfg, rates), "spread", 0, 0, RATES_MEANING, rates_names, 0},
    {0},
};
static bool gdn_check(void *cfg, Err *e) { return line_check(cfg, &kind, 2, e); }
const Mixer gdn_mixer = {.name = "gdn", .source = "arXiv:2412.06464", .keys = keys, .check = gdn_check, LINE_MIXER};
