/* act.h: what the files of the model share among themselves. */
#pragma once
#include "model.h"

/* Of one layer and one pass. xn1, xn2: (N,d) normed inputs; mid: (N,d) the stream between mixer and feed-forward. */
typedef struct Act {
    Tensor xn1, rstd1, mid, xn2, rstd2;
    Kv kv;           /* unless other layers read it: then Model.kv */
    void *mix, *ffn; /* the mixer's and the ffn's saved structs */
} Act;

void model_unmap(Model *);
void weights_new(const Model *, Weights *); /* structs without numbers */
void weights_free(const Model *, Weights *);
