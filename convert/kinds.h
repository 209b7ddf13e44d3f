/* kinds.h: kinds of the settings rewritten by targets that put another mixer in the place of gqa. Private to convert/.
 */
#pragma once
#include "job.h"

/* The settings of a layer of the kind called `name`, resolved; NULL: no layer is of it, or its mixer is not gqa. */
const GqaCfg *kind_gqa(const Job *, const char *name);
/* A new kind `name_suffix` for the layers l of kind `name` that convert[l]: `settings` is taken. The kind that no layer
 * is left of goes. */
char *kind_name(const json_t *model, const char *name, const char *suffix); /* one that no kind has; malloc'ed */
void kind_split(json_t *model, const char *name, const char *suffix, const bool *convert, json_t *settings);
/* Which layers are converted: gqa ones but those in `keep`, and but every `every`-th (0: none). False: a number in
 * `keep` is no layer, or nothing is left to convert. */
bool layers_chosen(const Job *, const Ints *keep, int every, bool convert[LAYERS_MAX], Err *);
/* Refuse what a target cannot hold: QK-norm; rows that other layers read or that are another's (`shared`); a window. */
bool gqa_plain(const Job *, int l, bool norm, bool shared, bool window, Err *);
/* Refuse a layer whose queries cannot follow the keys of the layer that it reads: through a turn of their basis
 * (`turned`), else into another order of the rotated numbers. */
bool gqa_follows(const Job *, int l, bool turned, const char *what, Err *);
#define KEEP_KEYS(cfg)                                                                                                \
    {"keep", KEY_INTS, offsetof(cfg, keep), "", 0, LAYERS_MAX - 1, "layers, from 0, that stay as they are", 0, 0}, {  \
        "every", KEY_INT, offsetof(cfg, every), "0", 0, LAYERS_MAX, "every so-many-th layer stays as it is; 0: none", \
            0, 0                                                                                                      \
    }
