/* copy.h: a copy of a training model's weights at one moment. The saver makes one to write checkpoints
 * asynchronously. */
#pragma once
#include "model.h"

/* `view` is the model with its own values of weights; it shares those that are not trained with the model, unless they
 * are on a GPU. It shares the layers, has no gradients and no scratch, and serves functions that read fields:
 * hf_save. */
typedef struct {
    Model view;
    Arena mem; /* exactly the bytes of trained weights */
} ModelCopy;

/* Map the region (or measure it: dry, or a dry model). m must outlive the copy. */
bool model_copy_open(ModelCopy *, const Model *m, bool dry, Err *);
/* Copies the current values. */
void model_copy_take(ModelCopy *, const Model *m);
void model_copy_close(ModelCopy *);
