/* saved.h: a sequence of a session in a file, so that a later process continues it without computing it again.
 * `generate --save-session` and `--session` call it.
 *
 * The file is a safetensors file. Its tensors are "tokens" (I32), the parts of layers/cache/saved.h, and "mark.N", the
 * states after N tokens (marks.h), each of one axis; wide dtypes come first, then it is by name. __metadata__:
 *
 *   format    kvsmith-session-1
 *   model     16 hexadecimal digits: the fingerprint of the model (engine_fingerprint)
 *   dtype     of matrices: f32 (whatever a build computes in) or bf16
 *   codec     of rows, with its settings
 *   policy    of rows, with its settings, or none
 *   length    tokens that the cache has, the first of `tokens`; the others have not been fed yet
 *   draws     tokens that were drawn at random: the next draw has this index
 *   seed      of the draws
 *   checksum  16 hexadecimal digits, see below
 *
 * checksum: h = XXH64 of the header's text with zeros in place of these digits; then for each tensor in the order of
 * the file h = rng_mix(h, XXH64 of its bytes). It finds damage, not forgery; so whatever a file says is also checked
 * against what the session can hold. */
#pragma once
#include "layers/cache/saved.h"
#include "model/files/safetensors.h"
#include "session.h"

typedef struct {
    int n, length;  /* tokens; how many of them the cache has */
    const int *tok; /* (n) */
    uint64_t draws, seed;
} SavedText;
typedef struct {
    St st;
    KvParts parts;
    SavedText text;
    int *tok;
} Saved;

/* Write sequence seq, which is not empty; `text` says which tokens it has. All or nothing (file.h): EXIT_INPUT, there
 * is no such folder; EXIT_RUNTIME, the disk is full. */
bool saved_write(const Session *, int seq, const char *path, const SavedText *, uint64_t model, Err *);
/* Map a file and check it as far as that needs no model. EXIT_INPUT: it is no such file, or damaged. */
bool saved_open(Saved *, const char *path, Err *);
void saved_close(Saved *);
/* Sequence seq becomes what the file says. EXIT_INPUT: it was saved for another model, dtype, codec or policy, or does
 * not fit the session; then nothing has changed. */
bool saved_restore(const Saved *, Session *, int seq, uint64_t model, Err *);
