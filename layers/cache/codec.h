/* codec.h: how the cache stores the parts of rows: the table that --cache-dtype chooses from (docs/add-a-codec.md).
 *
 * A codec is a RowCodec (ops/run.h). encode stores one part, the key or the value of a row, in bytes(width) bytes, and
 * decode reads it back. What is decoded and encoded again must be the same bytes: a pass sees its own rows as kv_settle
 * leaves them, encoded and decoded, and stores these. Both must give what is not finite back as such. The functions
 * read the settings of the RowCodec that they are given, of which there may be several. A codec with a block stores
 * rows together (blocks.c): its encode and decode are those of rows that wait, its pieces those of the block. */
#pragma once
#include "ops/run.h"

enum { CODEC_NAMES_MAX = 176, CODEC_TEXT_MAX = 120 };
extern const RowCodec codec_f32, codec_bf16, codec_int8, codec_fp8, codec_int4, codec_int3, codec_int2, codec_kivi4,
    codec_kivi3, codec_kivi2, codec_kvquant4, codec_kvquant3, codec_kvquant2, codec_zipcache, codec_palu,
    codec_minicache, codec_aqua;
/* What several codecs share: rows as `real`s, and packed codes of RowCodec.bits and .group. */
size_t codec_f32_bytes(const RowCodec *, int width), codec_packed_bytes(const RowCodec *, int width);
void codec_f32_encode(const RowCodec *, void *part, const real *from, int width);
void codec_f32_decode(const RowCodec *, real *to, const void *part, int width);
void codec_packed_encode(const RowCodec *, void *part, const real *from, int width);
/* The same in RowCodec.bits bits an element: 32, 16, 8, 4, 3 or 2. */
size_t codec_bits_bytes(const RowCodec *, int width);
void codec_bits_encode(const RowCodec *, void *part, const real *from, int width);
void codec_bits_decode(const RowCodec *, real *to, const void *part, int width);
/* Pairs of elements by a grid of 2^(2 bits) points, in 4, 3 or 2 bits an element (pairs.c). */
size_t codec_pairs_bytes(const RowCodec *, int width);
void codec_pairs_encode(const RowCodec *, void *part, const real *from, int width);
void codec_pairs_decode(const RowCodec *, real *to, const void *part, int width);
/* A group of n numbers, of any n (ops/packed.h). */
void codec_packed_group(uint32_t *to, int bits, const float *x, int n);
void codec_packed_put(uint32_t *codes, int bits, int n, int k, int code); /* of words that are 0 */
void codec_packed_decode(const RowCodec *, real *to, const void *part, int width);
/* The bits of the largest magnitude of n numbers as f32: infinity and NaN are above all others. */
uint32_t codec_largest(const real *x, int n);
const RowCodec *codec_at(int i); /* NULL: there are fewer */
/* With its default settings; NULL: none has this name. */
const RowCodec *codec_find(const char *name);
/* "f32, bf16 or int8" */
void codec_names(char out[CODEC_NAMES_MAX]);
/* NAME or NAME:KEY=VALUE,...: group=32|64 of packed codes; rotate=yes|no of every codec but f32, bf16, kvquant, which
 * has apart=yes|no and turned=yes|no; zipcache has bits, salient_bits, share and probes, palu rank, value_rank, bits
 * and basis, minicache from, t, apart (a share) and bits, and aqua bits, pairs=yes|no, recent and basis. The text must
 * outlive the RowCodec: `basis` points into it. */
bool codec_parse(const char *text, RowCodec *, Err *);
/* "group=32,rotate=no": all settings, with `between` between them; "": there are none. */
void codec_settings(const RowCodec *, char between, char out[CODEC_TEXT_MAX]);
/* Bytes of a part of so many elements among many rows. */
size_t codec_part_bytes(const RowCodec *, int width);
bool codec_rotates(const RowCodec *);    /* it can: `rotate` is a setting of it */
bool codec_calibrated(const RowCodec *); /* it needs a file of `kvsmith calibrate`: `basis` is a setting of it */
/* Directions that a codec with a rank stores of a key or value of so many elements; `width`: it has none. */
int codec_rank(const RowCodec *, int width, bool value);
/* A codec that merges rows of two layers, as the lower or the upper layer of a pair has it. */
RowCodec codec_paired(const RowCodec *, RowPair);
