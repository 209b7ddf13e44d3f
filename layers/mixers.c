/* mixers.c: the registries. One line per sequence mixer, one per feed-forward part. */
#include "mixer.h"

extern const Mixer gqa_mixer, dmc_mixer;
extern const Ffn swiglu_ffn;

const Mixer *const mixers[] = {
    &gqa_mixer, /* MHA, GQA, MQA, sliding window with sinks, NoPE, QK-norm, shared K/V: layers/gqa */
    &dmc_mixer, /* DMC: merged rows; DMS: delayed eviction: layers/dmc */
    NULL,
};
const Ffn *const ffns[] = {
    &swiglu_ffn, /* layers/ffn */
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
