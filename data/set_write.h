/* set_write.h: writes token ids as a set (indexed.h), document by document, in bounded memory. The command `data
 * tokenize` calls it.
 *
 * - Megatron: PREFIX.bin and PREFIX.idx, one sequence per document; uint16 if the vocabulary is below 65,500, else
 *   int32, as Megatron's own writer chooses.
 * - llm.c: PREFIX.bin, or with shards PREFIX_000000.bin, PREFIX_000001.bin, ... of `shard` tokens each (the last one
 *   shorter), and no more files of that name; uint16 (20240520) for up to 65,536 ids, else uint32 (20240801). */
#pragma once
#include "indexed.h"

enum { SET_SHARDS_MAX = 512, SHARD_TOKENS_MAX = INT32_MAX };
typedef struct {
    SetKind kind; /* SET_MEGATRON or SET_LLMC */
    int vocab;
    int64_t shard; /* tokens per shard; 0: one file */
} SetWriteCfg;
typedef struct {
    int64_t documents, tokens;
    int shards;
    IdType type;
} SetWritten;

/* All files have temporary names until set_write_commit, and a failure of any call removes them. Once all are whole and
 * on disk, the set is published: its files get their names, one by one. Where that is cut off, by a kill or an error,
 * readers refuse the set (set_kind), and the next set_write_open of this name does the rest. EXIT_INPUT: a folder that
 * is not there, more than 2^31 - 1 tokens in one file of llm.c or one document of Megatron, more than SET_SHARDS_MAX
 * shards, nothing written at all. EXIT_RUNTIME: disk full and the like. */
typedef struct SetWriter SetWriter;
SetWriter *set_write_open(const SetWriteCfg *, const char *prefix, Err *);
bool set_write_ids(SetWriter *, const int *id, size_t n, Err *);
bool set_write_document(SetWriter *, Err *); /* the document ends */
bool set_write_commit(SetWriter *, SetWritten *, Err *);
void set_write_close(SetWriter *); /* must always be called last; without commit no file stays */
