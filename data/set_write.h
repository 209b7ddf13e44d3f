/* set_write.h: token ids into a set (indexed.h), document by document, in memory that does not grow with it.
 *
 * Megatron: PREFIX.bin and PREFIX.idx, one sequence for each document, uint16 where the vocabulary is below 65,500,
 * else int32, as Megatron's own writer chooses. llm.c: PREFIX.bin, or with shards PREFIX_000000.bin, PREFIX_000001.bin,
 * ... of `shard` tokens each, the last one shorter, and no more files of that name; uint16 (20240520) for up to 65,536
 * ids, else uint32 (20240801). */
#pragma once
#include "indexed.h"

enum { SET_SHARDS_MAX = 512, SHARD_TOKENS_MAX = INT32_MAX };
typedef struct {
    SetKind kind; /* SET_MEGATRON or SET_LLMC */
    int vocab;
    int64_t shard; /* tokens of a shard; 0: one file */
} SetWriteCfg;
typedef struct {
    int64_t documents, tokens;
    int shards;
    IdType type;
} SetWritten;

/* All files have temporary names until set_write_commit; a failure of any call removes them. EXIT_INPUT: a folder that
 * is not there, more than 2^31 - 1 tokens in one file of llm.c or one document of Megatron, more than SET_SHARDS_MAX
 * shards, nothing written at all. EXIT_WORLD: disk full and the like. */
typedef struct SetWriter SetWriter;
SetWriter *set_write_open(const SetWriteCfg *, const char *prefix, Err *);
bool set_write_ids(SetWriter *, const int *id, size_t n, Err *);
bool set_write_document(SetWriter *, Err *); /* the document ends */
bool set_write_commit(SetWriter *, SetWritten *, Err *);
void set_write_close(SetWriter *); /* in any case at last; without commit nothing stays */
