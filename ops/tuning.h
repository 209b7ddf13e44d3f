/* tuning.h: reads and writes the file of measured algorithm choices for a GPU's matrix products. device_tuning reads
 * it and device_tune writes it.
 *
 *   kvsmith tuning 2
 *   device NAME                       the device's own name for itself
 *   processors N
 *   library N                         version of cuBLASLt; the words below are its algorithms
 *   product M N K LDA LDB LDC FLAGS ALIGN_A ALIGN_B ALIGN_C W0 .. W7 FIRST BEST
 *                                     8 words in hexadecimal, 2 times in seconds; any number of these
 *   end N                             number of products
 *
 * FLAGS: 1 A is transposed, 2 B is transposed, 4 adds to C, 8 operands are bf16, 16 C is bf16. ALIGN: alignment of the
 * operand in bytes. FIRST: time of the library's first choice; BEST: time of the one that is kept. A file counts only
 * for its own device, number of processors and library version. Version 1 had one ALIGN for all three operands. */
#pragma once
#include <stdint.h>

enum { TUNING_WORDS = 8, TUNING_MAX = 4096 };
typedef struct TunedProduct {
    int shape[6];             /* M, N, K, leading dimensions of A, B, C */
    unsigned flags, align[3]; /* of A, B, C */
    uint64_t word[TUNING_WORDS];
    double first, best;
} TunedProduct;
typedef struct Tuning {
    char device[64];
    int processors, n;
    long long library;
    TunedProduct *product; /* malloc'ed */
} Tuning;

#ifndef __cplusplus /* kernels see the values alone */
    #include "base.h"
/* Parse a file. False (EXIT_INPUT), nothing allocated: not such a file, cut short, or an impossible entry. `where`
 * begins the message. */
bool tuning_parse(Tuning *, const void *bytes, size_t n, const char *where, Err *);
char *tuning_text(const Tuning *); /* malloc'ed */
void tuning_free(Tuning *);
#endif
