/* tuning.h: the file of measured choices for a device's matrix products.
 *
 *   kvsmith tuning 2
 *   device NAME                       as the device calls itself
 *   processors N
 *   library N                         version of cuBLASLt, whose algorithms the words below are
 *   product M N K LDA LDB LDC FLAGS ALIGN_A ALIGN_B ALIGN_C W0 .. W7 FIRST BEST
 *                                     8 words in hexadecimal, 2 times in seconds; any number of these
 *   end N                             of products
 *
 * FLAGS: 1 A is transposed, 2 B is, 4 C is added to, 8 operands are bf16, 16 C is, too. ALIGN: bytes that the operand
 * is aligned to. FIRST: the time of the library's first choice, BEST: that of the one kept. Of another device, number
 * of processors or version of the library a file says nothing. Version 1 had one ALIGN for all three. */
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

#ifndef __cplusplus /* the kernels' side knows the numbers alone */
    #include "base.h"
/* False (EXIT_INPUT), nothing held: not such a file, cut short, or with something in it that cannot be. `where` begins
 * the message. */
bool tuning_parse(Tuning *, const void *bytes, size_t n, const char *where, Err *);
char *tuning_text(const Tuning *); /* malloc'ed */
void tuning_free(Tuning *);
#endif
