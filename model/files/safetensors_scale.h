/* safetensors_scale.h: what an entry of quantised codes refers to. safetensors_scale.c fills it where a file is opened,
 * safetensors_codes.c computes values from it; nobody else looks inside. */
#pragma once
#include "safetensors.h"

struct StScale {
    const unsigned char *code, *factor; /* those of element 0 */
    bool is_mxfp4;                      /* else fp8 */
    Dtype as;                           /* of the factors of fp8 */
    size_t width, rows, cols, across;   /* of a row of the entry; of a block; blocks in a row */
};
