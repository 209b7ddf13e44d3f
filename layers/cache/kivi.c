/* kivi.c: blocks of 64 rows in 4, 3 and 2 bits, with a scale and a zero for 32 or 64 rows of each element of the keys,
 * and for 32 or 64 elements of each value: see ops/packed.h. Source: KIVI (arXiv:2402.02750, section 4), whose keys
 * wait as they are until a block of them is full, as here. Its values are stored one row at a time; here with their
 * keys. */
#include "codec.h"

#define KIVI(bits_, means)                                                                                          \
    {                                                                                                               \
        .name = "kivi" #bits_, .meaning = means, .as = ROWS_REAL, .bytes = codec_f32_bytes,                         \
        .encode = codec_f32_encode, .decode = codec_f32_decode, .bits = bits_, .group = 32, .block = 64,            \
        .piece_bytes = codec_packed_bytes, .piece_encode = codec_packed_encode, .piece_decode = codec_packed_decode \
    }
const RowCodec codec_kivi4 = KIVI(4, "64 rows together in 4 bits, with a scale and a zero for each element of keys"),
               codec_kivi3 = KIVI(3, "in 3 bits, otherwise as kivi4"),
               codec_kivi2 = KIVI(2, "in 2 bits, otherwise as kivi4");
