/* indexed.h: files of token ids as other trainers leave them, mapped and never copied.
 *
 *   Megatron   STEM.bin, the ids back to back, and STEM.idx, which tells their type, the sequences and the documents:
 *              9 bytes "MMIDIDX" 0 0, uint64 1, uint8 type (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16; 6 and
 *              7 are floats), uint64 S, uint64 D, then from byte 34 int32 (S) ids of each sequence, int64 (S) its place
 *              in the .bin in bytes, int64 (D) the sequences at which documents begin, the last one S; behind them,
 *              maybe, int8 (S) modes, all 0. Source: NVIDIA/Megatron-LM megatron/core/datasets/indexed_dataset.py.
 *   llm.c      int32 (256): 20240520, 1, n, 0... and n uint16; or 20240801, 7, n, 0... and n uint32. Source:
 *              karpathy/llm.c dev/data/data_common.py, llmc/dataloader.h.
 * All numbers are little-endian. */
#pragma once
#include "../ops/file.h"
#include "tokens.h"

typedef enum { SET_TEXT, SET_MEGATRON, SET_LLMC } SetKind;
/* What PATH is: by STEM.idx beside STEM.bin (PATH is either of them or STEM), or by the first bytes; anything else is
 * text. EXIT_INPUT: not there, compressed, or a .bin that is neither. */
bool set_kind(const char *path, SetKind *, Err *);
const char *set_kind_name(SetKind);

/* What a file was when it was mapped. */
typedef struct {
    char *path;
    int fd;
    uint64_t dev, ino, size;
    int64_t mtime_s, mtime_ns;
} Watch;

typedef struct {
    SetKind kind;
    char *path; /* of the ids */
    FileMap bin, idx;
    Watch watch[2];
    int nwatch;
    Docs docs;
    Tokens all;
    uint64_t hash; /* of the index and of the ids, both sampled where they are large: see set_open */
} Set;

/* Map a set that is not text and check all that can be: header, version, type, sizes against the files' own, lengths,
 * places and documents in order and without gaps. EXIT_INPUT otherwise. `hash` is of all bytes up to 64 MiB a file, of
 * a larger one of its size and 4096 blocks of 16 KiB at even distances: another set, or another version of it, is told
 * apart in practice, not proven the same. A file that shrinks while it is mapped ends the process by SIGBUS;
 * set_catch_sigbus makes that one line. */
bool set_open(Set *, const char *path, SetKind, Err *);
void set_close(Set *);
/* The files are what they were when they were mapped. EXIT_WORLD: one was written to or cut. Where a path names another
 * file by now, the mapped one still stands, and *replaced is set to that path (else to NULL). */
bool set_unchanged(const Set *, const char **replaced, Err *);
/* From now on a page that cannot be read is one line and EXIT_WORLD. */
void set_catch_sigbus(void);

/* The checks alone, on bytes. bin_bytes: size of the .bin. */
bool megatron_check(const unsigned char *idx, size_t n, size_t bin_bytes, const char *where, Docs *, IdType *, Err *);
bool llmc_check(const unsigned char *file, size_t n, const char *where, Tokens *, Err *);
