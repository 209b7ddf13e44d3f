/* sft.h: files of conversations (chat.h) as windows to train on, and to validate on.
 *
 * A conversation of n ids is n - 1 rows: each id but the last is an input, the id behind it its target where it is
 * learned. One of more than seq_len + 1 ids loses those behind, or is dropped; so is one of which nothing is learned
 * then. Windows of seq_len rows are filled with whole conversations by pack.h; a window is not always full. No row sees
 * another conversation, and positions count from the beginning of each.
 *
 * Of n conversations training keeps the first floor(n (1 - val_fraction)) and validation has the others, unless it has
 * a file of its own; each is packed for itself. Sample number s of a run reads in epoch s / W, with W windows, window
 * rng_permute(key(seed, epoch), s mod W, W), as in loader.h: a pure function.
 *
 * Memory: 4 bytes for each id, 12 for each conversation and 4 for each window (`bytes`), and while it is read up to the
 * same again; known only when all has been read. */
#pragma once
#include "chat.h"
#include "pack.h"

typedef struct {
    int template; /* CHAT_NONE: the files are no conversations */
    int learn;    /* SFT_ANSWERS, SFT_ALL */
    int too_long; /* SFT_CUT, SFT_DROP */
} SftCfg;
enum { SFT_ANSWERS, SFT_ALL };
enum { SFT_CUT, SFT_DROP };
extern const char *const sft_learns[], *const sft_too_longs[]; /* names in that order, NULL-ended */

typedef struct {
    int ntrain;                     /* words, >= 1 */
    const char *const *train, *val; /* files, patterns, folders (paths.h); val: a file, "" or NULL: by val_fraction */
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
    size_t *at; /* (n+1) where they begin */
    int n;
    SftPart train, val;
    int64_t cut, dropped;
    char plain[64]; /* the first marker of the template that is no token, "": all are */
    uint64_t hash;  /* of the training ids: other conversations give another number */
    size_t bytes;
} Sft;

/* Read, encode and pack all. EXIT_INPUT: a missing file, a line that is no conversation, nothing to train on. Nothing
 * is left open on failure. */
bool sft_open(Sft *, const SftSpec *, const Tokenizer *, Err *);
void sft_close(Sft *);
/* The ids of conversation `piece` of a part. */
const int *sft_piece(const Sft *, const SftPart *, int piece, int *n);
