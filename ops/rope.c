/* rope.c: the settings of rotations, and their frequencies for every scaling. */
#include "rope.h"

static const char *const rope_types[] = {"default", "none", "linear", "dynamic", "llama3", "yarn", "longrope", NULL};

#define AT(member) offsetof(RopeCfg, member)
const Key rope_keys[] = {
    {"type", KEY_CHOICE, AT(type), "default", 0, 0, "scaling of the frequencies; none: no rotation", rope_types, NULL},
    {"theta", KEY_FLOAT, AT(theta), "10000", 1, 1e15, "base of the frequencies theta^(-2i/n)", NULL, NULL},
    {"factor", KEY_FLOAT, AT(factor), "0", 0, 1e6, "scaling factor, >= 1; 0: not given", NULL, NULL},
    {"low_freq_factor", KEY_FLOAT, AT(low_freq_factor), "1", 1e-6, 1e6,
     "llama3: wavelengths above L/this are scaled by factor", NULL, NULL},
    {"high_freq_factor", KEY_FLOAT, AT(high_freq_factor), "4", 1e-6, 1e6, "llama3: wavelengths below L/this are kept",
     NULL, NULL},
    {"beta_fast", KEY_FLOAT, AT(beta_fast), "32", 1e-6, 1e6, "yarn: pairs of more turns than this in L are kept", NULL,
     NULL},
    {"beta_slow", KEY_FLOAT, AT(beta_slow), "1", 1e-6, 1e6, "yarn: pairs of fewer turns than this in L are scaled",
     NULL, NULL},
    {"mscale", KEY_FLOAT, AT(mscale), "0", 0, 1e3, "yarn: numerator of the attention factor; 0: not given", NULL, NULL},
    {"mscale_all_dim", KEY_FLOAT, AT(mscale_all_dim), "0", 0, 1e3,
     "yarn: denominator of the attention factor; 0: not given", NULL, NULL},
    {"attention_factor", KEY_FLOAT, AT(attention_factor), "0", 0, 1e3,
     "yarn, longrope: multiplies cos and sin; 0: by the scaling's own rule", NULL, NULL},
    {"original_max_positions", KEY_INT, AT(original_max_positions), "0", 0, 1 << 30,
     "L, the context before scaling; 0: model.max_positions", NULL, NULL},
    {"length", KEY_INT, AT(length), "0", 0, 1 << 30,
     "dynamic, longrope: the length that decides; 0: that of the input (training: data.seq_len, generate: prompt and "
     "output, eval: the context)",
     NULL, NULL},
    {"truncate", KEY_BOOL, AT(truncate), "true", 0, 0, "yarn: bounds of the ramp are whole numbers", NULL, NULL},
    {"interleaved", KEY_BOOL, AT(interleaved), "false", 0, 0, "pairs are neighbours, not half a head apart", NULL,
     NULL},
    {"inclusive", KEY_BOOL, AT(inclusive), "false", 0, 0,
     "frequencies reach from 1 to 1/theta itself, theta^(-i/(n/2-1)), as YOCO has them; type default alone", NULL,
     NULL},
    {"short_factor", KEY_NUMBERS, AT(short_factor), "", 1e-6, 1e6,
     "longrope: a divisor for each pair, used up to length L", NULL, NULL},
    {"long_factor", KEY_NUMBERS, AT(long_factor), "", 1e-6, 1e6, "longrope: the same, used beyond length L", NULL,
     NULL},
    {0}};
#undef AT

static void make_llama3(Rope *out, const RopeCfg *c, double L) {
    for (int i = 0; i < out->n / 2; i++) {
        double f = out->f[i], w = 2 * M_PI / f;
        if (w < L / c->high_freq_factor) continue;
        double t = (L / w - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor);
        out->f[i] = w > L / c->low_freq_factor ? f / c->factor : (1 - t) * f / c->factor + t * f;
    }
}

/* The pair that turns `turns` times in L positions, as a real number. */
static double yarn_pair(int n, double theta, double L, double turns) {
    return n * log(L / (turns * 2 * M_PI)) / (2 * log(theta));
}
static double yarn_scale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1; }

static void make_yarn(Rope *out, const RopeCfg *c, double L) {
    double lo = yarn_pair(out->n, c->theta, L, c->beta_fast), hi = yarn_pair(out->n, c->theta, L, c->beta_slow);
    if (c->truncate) lo = floor(lo), hi = ceil(hi);
    lo = fmax(lo, 0), hi = fmin(hi, out->n - 1);
    if (lo == hi) hi += 0.001;
    for (int i = 0; i < out->n / 2; i++) {
        double ramp = fmin(fmax((i - lo) / (hi - lo), 0), 1);
        out->f[i] = out->f[i] / c->factor * ramp + out->f[i] * (1 - ramp);
    }
    out->factor = yarn_scale(c->factor, 1);
    if (c->mscale > 0 && c->mscale_all_dim > 0)
        out->factor = yarn_scale(c->factor, c->mscale) / yarn_scale(c->factor, c->mscale_all_dim);
    if (c->attention_factor > 0) out->factor = c->attention_factor;
}

static bool make_longrope(Rope *out, const RopeCfg *c, double L, double length, double max_positions, Err *e) {
    const Numbers *div = length > L ? &c->long_factor : &c->short_factor;
    for (int k = 0; k < 2; k++) {
        const Numbers *given = k ? &c->long_factor : &c->short_factor;
        if (given->n != out->n / 2)
            return err_input(e, "rope.%s: expected %d numbers, one for each pair, got %d",
                             k ? "long_factor" : "short_factor", out->n / 2, given->n);
        for (int i = 0; i < given->n; i++)
            if (!(given->v[i] > 0 && isfinite(given->v[i])))
                return err_input(e, "rope.%s: number %d is %g; expected more than 0",
                                 k ? "long_factor" : "short_factor", i, given->v[i]);
    }
    for (int i = 0; i < out->n / 2; i++) out->f[i] /= div->v[i];
    double grown = c->factor > 0 ? c->factor : max_positions / L;
    if (c->attention_factor > 0)
        out->factor = c->attention_factor;
    else if (grown > 1)
        out->factor = sqrt(1 + log(grown) / log(L));
    return true;
}

bool rope_make(Rope *out, const RopeCfg *c, int n, int max_positions, Err *e) {
    CHECK(c->type >= ROPE_DEFAULT && c->type <= ROPE_LONGROPE, "rope type %d", c->type);
    bool scaled = c->type == ROPE_LINEAR || c->type == ROPE_DYNAMIC || c->type == ROPE_LLAMA3 || c->type == ROPE_YARN;
    const char *type = rope_types[c->type];
    *out = (Rope){.n = c->type == ROPE_NONE ? 0 : n, .interleaved = c->interleaved, .factor = 1};
    if (n < 0 || n % 2 || n > 2 * ROPE_PAIRS)
        return err_input(e, "rope: %d rotated elements per head; expected an even number up to %d", n, 2 * ROPE_PAIRS);
    if (max_positions < 1) return err_input(e, "rope: max_positions is %d; expected at least 1", max_positions);
    if (!(c->theta >= 1 && isfinite(c->theta)))
        return err_input(e, "rope.theta: expected a number of at least 1, got %g", c->theta);
    if (scaled && !(c->factor >= 1 && isfinite(c->factor)))
        return err_input(e, "rope.factor: type %s needs a factor of at least 1, got %g", type, c->factor);
    if ((c->type == ROPE_DEFAULT || c->type == ROPE_NONE) && c->factor != 0 && c->factor != 1)
        return err_input(e, "rope.factor: %g is given but type %s does not scale; set rope.type or drop it", c->factor,
                         type);
    if (c->inclusive && c->type != ROPE_DEFAULT && c->type != ROPE_NONE)
        return err_input(e, "rope.inclusive: type %s scales the usual frequencies; set rope.type to default", type);
    if (c->type == ROPE_LLAMA3 && !(c->low_freq_factor > 0 && c->high_freq_factor > c->low_freq_factor))
        return err_input(e, "rope.high_freq_factor: %g; expected more than low_freq_factor, which is %g",
                         c->high_freq_factor, c->low_freq_factor);
    if (c->type == ROPE_YARN && !(c->beta_slow > 0 && c->beta_fast > c->beta_slow))
        return err_input(e, "rope.beta_fast: %g; expected more than beta_slow, which is %g", c->beta_fast,
                         c->beta_slow);
    if (c->type == ROPE_YARN && !(c->theta > 1)) return err_input(e, "rope.theta: type yarn needs more than 1");
    if (c->type == ROPE_DYNAMIC && n == 2) return err_input(e, "rope.type: dynamic needs more than one pair");
    if (c->original_max_positions < 0 || c->length < 0)
        return err_input(e, "rope.%s: expected 0 or more, got %d", c->length < 0 ? "length" : "original_max_positions",
                         c->length < 0 ? c->length : c->original_max_positions);
    if (!out->n) return true;

    double L = c->original_max_positions ? c->original_max_positions : max_positions;
    double length = c->length ? c->length : max_positions, theta = c->theta;
    if (c->type == ROPE_LONGROPE && !(L > 1))
        return err_input(e, "rope.original_max_positions: longrope needs more than 1");
    if (c->type == ROPE_DYNAMIC) theta *= pow(c->factor * fmax(length, L) / L - (c->factor - 1), (double)n / (n - 2));
    for (int i = 0; c->inclusive && i < n / 2; i++) out->f[i] = n == 2 ? 1 : pow(theta, -i / (n / 2 - 1.0));
    for (int i = 0; !c->inclusive && i < n / 2; i++)
        out->f[i] = pow(theta, -2.0 * i / n) / (c->type == ROPE_LINEAR ? c->factor : 1);
    if (c->type == ROPE_LLAMA3) make_llama3(out, c, L);
    if (c->type == ROPE_YARN) make_yarn(out, c, L);
    return c->type == ROPE_LONGROPE ? make_longrope(out, c, L, length, max_positions, e) : true;
}
