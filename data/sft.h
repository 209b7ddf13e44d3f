/* sft.h: reads files of conversations (chat.h) as windows to train and to validate on. Training opens it
 * instead of text when data.sft.template is not none.
 *
 * - A conversation of n ids is n - 1 rows: each id but the last is an input, and the next id is its target if it is
 *   learned.
 * - A conversation of more than seq_len + 1 ids is cut there, or dropped. It is also dropped if nothing learned is
 *   left.
 * - pack.h fills windows of seq_len rows with whole conversations; a window is not always full. No row sees another
 *   conversation, and positions count from the beginning of each.
 * - Of n conversations, training gets the first floor(n (1 - val_fraction)) and validation the rest, unless validation
 *   has its own file. Each is packed separately.
 * - Sample s of a run reads in epoch s / W, with W windows, window rng_permute(key(seed, epoch), s mod W, W), as in
 *   loader.h: a pure function.
 * - Memory: 4 bytes per id, 12 per conversation and 4 per window (`bytes`), and up to twice that while reading. It is
 *   known only after everything has been read. */
#pragma once
#include "chat.h"
#include "pack.h"

typedef struct {
    int template; /* CHAT_NONE: the files are not conversations */
    int learn;    /* SFT_ANSWERS, SFT_ALL */
    int too_long; /* SFT_CUT, SFT_DROP */
} SftCfg;
enum { SFT_ANSWERS, SFT_ALL };
enum { SFT_CUT, SFT_DROP };
extern const char *const sft_learns[], *const sft_too_longs[]; /* names in that order, NULL-ended */

typedef struct {
    int ntrain; /* words, >= 1 */
    /* files, patterns, folders (paths.h); val: a file, or "" or NULL for val_fraction */
    const char *const *train, *val;
    double val_fraction;
    int seq_len;
    SftCfg cfg;
} SftSpec;

/* Conversations first .. first + n - 1. */
typedef struct {
    int first, n;
    Pack pack;
    size_t rows, targets;
} SftPart;
typedef struct {
    int *id;    /* ids of all conversations, CHAT_LEARN set where they are targets */
    size_t *at; /* (n+1) where each begins */
    int n;
    SftPart train, val;
    int64_t cut, dropped;
    char plain[64]; /* the first marker of the template that is not a token; "": all are */
    uint64_t hash;  /* of the training ids: other conversations give another hash */
    size_t bytes;
} Sft;

/* Read, encode and pack everything. EXIT_INPUT: a missing file, a line that is not a conversation, nothing to train
 * on. Nothing stays open on failure. */
bool sft_open(Sft *, const SftSpec *, const Tokenizer *, Err *);
void sft_close(Sft *);
/* The ids of conversation `piece` of a part. */
const int *sft_piece(const Sft *, const SftPart *, int piece, int *n);
