/* shapes.h: shapes of attention that test_cuda_bf16.c draws for cuDNN, and that plans.c asks for plans without a
 * device. */
#pragma once
#include "ops/base.h"
#include "ops/cuda/sdpa.h"

/* B sequences of T rows; `documents`: some begin inside of them. Uses the first three words of the draw's stream. */
enum { EVEN_WORDS = 3 };
static inline uint64_t even_key(int draw) { return rng_mix(0xD44, (uint64_t)draw); }
static inline SdpaShape even_shape(int draw, int Dk, int Dv) {
    static const int lengths[] = {16, 33, 64, 65, 100}, windows[] = {0, 5, 0, 70, 1},
                     heads[][2] = {{2, 2}, {4, 2}, {4, 1}, {6, 2}, {3, 1}};
    uint64_t key = even_key(draw);
    const int *h = heads[rng_mix(key, 2) % 5];
    return (SdpaShape){.B = 1 + (int)(rng_mix(key, 0) % 3),
                       .T = lengths[rng_mix(key, 1) % 5],
                       .heads = h[0],
                       .lanes = h[1],
                       .Dk = Dk,
                       .Dv = Dv,
                       .window = windows[draw % 5],
                       .documents = draw % 3};
}
/* Those that are held to long double. */
enum { FUSED_DRAWS = 15 };
static inline SdpaShape fused_shape(int draw) {
    static const int widths[][2] = {{64, 64}, {16, 16}, {192, 128}, {24, 40}, {128, 128}, {8, 8}, {96, 64}};
    const int *w = widths[draw * 2 % (int)(sizeof widths / sizeof *widths)];
    return even_shape(draw, w[0], w[1]);
}
