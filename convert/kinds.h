/* kinds.h: rewrites the kinds of the settings, for targets that replace gqa by another mixer. Private to convert/. */
#pragma once
#include "job.h"

/* The resolved settings of a layer of the kind called `name`; NULL: no layer has it, or its mixer is not gqa. */
const GqaCfg *kind_gqa(const Job *, const char *name);
/* Makes a new kind `name_suffix` for the layers l of kind `name` that convert[l] marks; takes ownership of `settings`.
 * A kind without layers is removed. */
char *kind_name(const json_t *model, const char *name, const char *suffix); /* a name that no kind has; malloc'ed */
void kind_split(json_t *model, const char *name, const char *suffix, const bool *convert, json_t *settings);
/* Chooses the layers to convert: gqa ones without those in `keep`, and without every `every`-th (0: none). False:
 * `keep` names no layer, or no layer is left to convert. */
bool layers_chosen(const Job *, const Ints *keep, int every, bool convert[LAYERS_MAX], Err *);
/* The same with those of mla if `latents`. */
bool layers_chosen_of(const Job *, const Ints *keep, int every, bool latents, bool convert[LAYERS_MAX], Err *);
/* Refuses what a target does not support: QK-norm; rows that other layers read or that are another's (`shared`); a
 * window. */
bool gqa_plain(const Job *, int l, bool norm, bool shared, bool window, Err *);
/* Refuses scores with a scale or a cap of their own, sinks that are scores, and gates: gqa_plain's `norm` does, too. */
bool gqa_unscaled(const Job *, int l, Err *);
/* Refuses a layer whose queries cannot follow the keys of the layer that it reads: through a rotation of their basis
 * (`turned`), else into another order of the rotated elements. */
bool gqa_follows(const Job *, int l, bool turned, const char *what, Err *);
#define KEEP_KEYS(cfg)                                                                                                \
    {"keep", KEY_INTS, offsetof(cfg, keep), "", 0, LAYERS_MAX - 1, "layers, from 0, that are not converted", 0, 0}, { \
        "every", KEY_INT, offsetof(cfg, every), "0", 0, LAYERS_MAX,                                                   \
            "every N-th layer is not converted; 0: convert all", 0, 0                                                 \
    }
