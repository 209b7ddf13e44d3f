/* copy.h: the numbers of a model that trains, weights and moments, put aside at one moment. */
#pragma once
#include "model.h"

/* `view` is the model with values of its own for weights and moments (of a model that has none, ModelOpts.without,
 * for weights alone); weights that are not trained it shares with the model, unless they lie on a device. It shares the
 * layers, has no gradients and no scratch, and serves what reads fields: hf_save, the writers of moments. */
typedef struct {
    Model view;
    Arena mem;      /* exactly the bytes of trained weights, and of the regions of moments */
    size_t weights; /* of them the former */
} ModelCopy;

/* Map the region (or measure it: dry, or a dry model). m must outlive the copy. */
bool model_copy_open(ModelCopy *, const Model *m, bool dry, Err *);
/* The numbers as they are now. */
void model_copy_take(ModelCopy *, const Model *m);
void model_copy_close(ModelCopy *);
