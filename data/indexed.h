/* indexed.h: reads the token files of other trainers, mapped and never copied. Training, `data inspect` and `eval`
 * open them when a path names one.
 *
 *   Megatron   STEM.bin, the ids back to back, and STEM.idx, which gives their type, the sequences and the documents:
 *              9 bytes "MMIDIDX" 0 0, uint64 1, uint8 type (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16; 6 and
 *              7 are floats), uint64 S, uint64 D, then from byte 34 int32 (S) ids of each sequence, int64 (S) its place
 *              in the .bin in bytes, int64 (D) the sequences at which documents begin, the last one S; optionally then
 *              int8 (S) modes, all 0. Source: NVIDIA/Megatron-LM megatron/core/datasets/indexed_dataset.py.
 *   llm.c      int32 (256): 20240520, 1, n, 0... and n uint16; or 20240801, 7, n, 0... and n uint32. Source:
 *              karpathy/llm.c dev/data/data_common.py, llmc/dataloader.h.
 * All numbers are little-endian. */
#pragma once
#include "ops/file.h"
#include "tokens.h"

typedef enum { SET_TEXT, SET_MEGATRON, SET_LLMC } SetKind;
/* Find the kind of PATH: STEM.idx next to STEM.bin (PATH is either file, or STEM), else by the file's first bytes;
 * anything else is text. EXIT_INPUT: not there, compressed, or a .bin that is neither. */
bool set_kind(const char *path, SetKind *, Err *);
/* The file that holds something while the files of the set PREFIX get their names (set_write.h), and after that was cut
 * off; set_kind then refuses them, as those of two sets could be mixed. malloc'ed. */
char *set_publishing(const char *prefix);
const char *set_kind_name(SetKind);

/* The identity of a file when it was mapped. */
typedef struct {
    char *path;
    int fd;
    uint64_t dev, ino, size;
    int64_t mtime_s, mtime_ns;
} Watch;

typedef struct {
    SetKind kind;
    char *path; /* the file of ids */
    FileMap bin, idx;
    Watch watch[2];
    int nwatch;
    Docs docs;
    Tokens all;
    uint64_t hash; /* of the index and the ids, both sampled if they are large: see set_open */
} Set;

/* Map a set that is not text and check everything that can be checked: header, version, type, sizes against the files'
 * own, lengths, places and documents in order and without gaps. EXIT_INPUT otherwise.
 * - `hash` covers all bytes of a file up to 64 MiB, of a larger one its size and 4096 evenly spaced blocks of 16 KiB.
 *   In practice it tells another set, or another version of it, apart; it does not prove equality.
 * - A file that shrinks while it is mapped ends the process by SIGBUS; set_catch_sigbus turns that into one line. */
bool set_open(Set *, const char *path, SetKind, Err *);
void set_close(Set *);
/* The files are unchanged since they were mapped. EXIT_RUNTIME: one was written to or cut. If a path now names another
 * file, the mapped one is still there, and *replaced is that path (else NULL). */
bool set_unchanged(const Set *, const char **replaced, Err *);
/* From now on a mapped page that cannot be read ends the program with one line and EXIT_RUNTIME. */
void set_catch_sigbus(void);

/* The checks of set_open, on bytes. bin_bytes: size of the .bin. */
bool megatron_check(const unsigned char *idx, size_t n, size_t bin_bytes, const char *where, Docs *, IdType *, Err *);
bool llmc_check(const unsigned char *file, size_t n, const char *where, Tokens *, Err *);
