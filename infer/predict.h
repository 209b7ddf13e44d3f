/* predict.h: fits the matrices by which a model's rows are predicted from those of the layer below, for the codec aqua.
 * The command `calibrate` and tests call it. Source: AQUA-KV (arXiv:2501.19392). */
#pragma once
#include "session.h"
#include "layers/cache/codec.h"

/* One layer at a time, from the first up: every text is read once for each layer, and what is predicted from are rows
 * as they are read back with this codec, so that a matrix knows the errors of the layer below. Ridge regression with a
 * mean, in double, sums in the order of the tokens. Memory: 4 rows a token, of one layer, as `real`s. */
typedef struct {
    const Session *s;
    RowCodec codec;
    int L, layer, below; /* layer: whose rows are read now; below: that of the rows beneath, or -1 */
    size_t tokens, room, n;
    struct Predictor *fit; /* (L) */
    real *rows[2],
        *beneath[2]; /* (tokens,width) keys and values as computed; of the layer below as they are read back */
} Prediction;

/* For a cache of `real`s, and so many tokens. EXIT_INPUT: the model has rows that the codec refuses. */
bool prediction_open(Prediction *, const Session *, const RowCodec *, size_t tokens, Err *);
void prediction_close(Prediction *);
/* Whether there is a layer whose texts are to be read: all documents by prediction_read, in the same order, then
 * prediction_fit. */
bool prediction_next(Prediction *);
/* A document of n tokens, at most the session's max_tokens, which sequence 0 reads. */
bool prediction_read(Prediction *, Session *, const int *tok, int n, Err *);
/* EXIT_RUNTIME: rows are not finite. */
bool prediction_fit(Prediction *, Err *);
/* Of the rows of layer l, keys or values, the share of the squared distance from their mean that is left when the
 * prediction is subtracted; 0 of layers without rows. */
double prediction_left(const Prediction *, int l, bool value);
/* Writes the file of model/basis.h, whole or not at all. model: the fingerprint of its files. */
bool prediction_write(const Prediction *, uint64_t model, const char *path, Err *);
