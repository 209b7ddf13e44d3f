/* mixers.c: the registries: one line per sequence mixer and per feed-forward part. */
#include "mixer.h"

extern const Mixer gqa_mixer, dmc_mixer, mla_mixer, kda_mixer, gdn_mixer, deltanet_mixer, gla_mixer, retention_mixer,
    gated_retention_mixer, linear_mixer, mamba2_mixer, none_mixer;
extern const Ffn swiglu_ffn, geglu_ffn, gelu_ffn, relu2_ffn, moe_ffn, none_ffn;

const Mixer *const mixers[] = {
    &gqa_mixer, /* MHA, GQA, MQA, sliding window with sinks, NoPE, QK-norm, shared K/V: layers/gqa */
    &dmc_mixer, /* DMC: merged rows; DMS: delayed eviction: layers/dmc */
    &mla_mixer, /* latent keys and values, absorbed decoding: layers/mla */
    &kda_mixer, /* Kimi Delta Attention: layers/kda */
    &gdn_mixer, /* Gated DeltaNet: layers/gdn; this and the next five on layers/linear/line.c */
    &deltanet_mixer,
    &gla_mixer,
    &retention_mixer,
    &gated_retention_mixer,
    &linear_mixer,
    &mamba2_mixer, /* Mamba-2: layers/mamba2 */
    &none_mixer,   /* no attention: layers/none */
    NULL,
};
const Ffn *const ffns[] = {
    &swiglu_ffn, /* layers/ffn */
    &geglu_ffn,  /* the same with gelu: layers/ffn */
    &gelu_ffn,   /* two projections: layers/ffn */
    &relu2_ffn,  /* the same with the squared ReLU: layers/ffn */
    &moe_ffn,    /* mixture of experts: layers/ffn */
    &none_ffn,   /* a block of a mixer alone: layers/ffn */
    NULL,
};

const Mixer *mixer_find(const char *name) {
    for (int i = 0; mixers[i]; i++)
        if (!strcmp(mixers[i]->name, name)) return mixers[i];
    return NULL;
}
const Ffn *ffn_find(const char *name) {
    for (int i = 0; ffns[i]; i++)
        if (!strcmp(ffns[i]->name, name)) return ffns[i];
    return NULL;
}
