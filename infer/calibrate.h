/* calibrate.h: finds the directions that the keys and values of a model use on a text, for the codec palu. The command
 * `calibrate` and tests call it. */
#pragma once
#include "session.h"
#include "layers/cache/basis.h"

/* What the rows of a text were: moments of each layer, of those without rows empty. */
typedef struct {
    int L;
    KvMoments *layer; /* (L) */
    size_t tokens;
} Calibration;
/* A cache of `real`s without a policy. heads: lanes that share directions. EXIT_INPUT: layers merge or evict rows, or
 * store latents; a layer's lanes do not divide into such groups, or a group's rows have more than BASIS_WIDEST
 * elements. */
bool calibration_open(Calibration *, const Session *, int heads, Err *);
void calibration_free(Calibration *);
/* Adds a document of n tokens, at most the session's max_tokens, which sequence 0 reads. */
bool calibration_read(Calibration *, Session *, const int *tok, int n, Err *);
/* The directions of all groups of a layer: rows of `basis` (groups,width,width) and `eigenvalues` (groups,width). */
void calibration_part(const Calibration *, int layer, bool value, double *basis, double *eigenvalues);
/* Writes the file of model/basis.h, whole or not at all. model: the fingerprint of its files. Unless NULL, kept (L,2,3)
 * becomes the share of the mean squares in the first quarter, half and three quarters of the directions, 0 of layers
 * without rows. */
bool calibration_write(const Calibration *, const Model *, uint64_t model, const char *path, double *kept, Err *);
