/* gla.c: the mixer gla: gated linear attention, with a decay per key channel and no delta rule. See README.md. */
#include "layers/linear/line.h"

static const LineKind kind = {.decay = DECAY_CHANNEL,
                              .norm = "g_norm_swish_gate.weight",
                              .other_norm = "g_norm.weight",
                              .out = "o_proj.weight"};
static const Key keys[] = {
    LINE_KEY_HEADS(1024),
    LINE_KEY_KV_HEADS,
    LINE_KEY_HEAD_DIM("d_model / heads / 2"),
    LINE_KEY_V_DIM("2 head_dim"),
    LINE_KEY_CONV("0", ""),
    LINE_KEY_GATE("silu"),
    LINE_KEY_LEVELS,
    {"gate_rank", KEY_INT, offsetof(LineCfg, gate_rank), "16", 1, 4096, "width between the decay's two projections", 0,
     0},
    {"gate_divisor", KEY_FLOAT, offsetof(LineCfg, gate_divisor), "16", 1e-3, 1e6,
     "log decay = log sigmoid(.) / this: the larger, the longer the memory at the start", 0, 0},
    LINE_KEY_RATES("the channels of each head", "all of log(1/2) / gate_divisor"),
    {0},
};
static bool gla_check(void *cfg, Err *e) {
    LineCfg *c = cfg;
    if (c->head_dim == 0) {
        if (c->base.d_model % (2 * c->heads))
            return err_input(e, "heads: 2 x %d does not divide d_model %d; give head_dim or other heads", c->heads,
                             c->base.d_model);
        c->head_dim = c->base.d_model / c->heads / 2;
    }
    return line_check(cfg, &kind, 2, e);
}
const Mixer gla_mixer = {.name = "gla", .source = "arXiv:2312.06635", .keys = keys, .check = gla_check, LINE_MIXER};
