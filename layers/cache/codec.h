/* codec.h: how the cache stores the parts of rows: the table that --cache-dtype chooses from (docs/add-a-codec.md).
 *
 * A codec is a RowCodec (ops/run.h). encode stores one part, the key or the value of a row, in bytes(width) bytes, and
 * decode reads it back. What is decoded and encoded again must be the same bytes: a pass sees its own rows as kv_settle
 * leaves them, encoded and decoded, and stores these. Both must give what is not finite back as such. The functions
 * read the settings of the RowCodec that they are given, of which there may be several. */
#pragma once
#include "ops/run.h"

enum { CODEC_NAMES_MAX = 120 };
extern const RowCodec codec_f32, codec_bf16, codec_int8, codec_fp8, codec_int4, codec_int3, codec_int2;
const RowCodec *codec_at(int i); /* NULL: there are fewer */
/* With its default settings; NULL: none has this name. */
const RowCodec *codec_find(const char *name);
/* "f32, bf16 or int8" */
void codec_names(char out[CODEC_NAMES_MAX]);
/* NAME or NAME:KEY=VALUE,...: group=32|64 of packed codes, rotate=yes|no of every codec but f32 and bf16. */
bool codec_parse(const char *text, RowCodec *, Err *);
bool codec_rotates(const RowCodec *); /* it can: `rotate` is a setting of it */
