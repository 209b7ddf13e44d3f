/* text.h: what a run reads: plain text and sets of token ids as two streams of tokens, one to train on, one to validate
 * on.
 *
 * A text file is cut into documents at every place where the separator stands, a file named .jsonl is one document a
 * line (source.h); a document of no bytes is dropped. A
 * stream of text is EOT doc EOT doc ... EOT doc EOT with end-of-text before every document and one at the very end, so
 * that predicting EOT means "the document ended". Ids take 16 bits where the vocabulary allows it, else 32.
 *
 * Parts. Text files that stand side by side follow each other in one part; every set of ids (indexed.h) is one, and
 * with weights every file is one. Without weights an epoch reads all windows of all parts; with weights blend.h says
 * which part a sample is of, and each part has epochs of its own.
 *
 * Validation is the file `val` where there is one. Else it is the tail of every part: of text, with T the number of its
 * tokens that are not EOT, training keeps the first floor(T (1 - val_fraction)) of them and the EOTs between; one file
 * of n bytes is so cut, by the byte tokenizer, at byte int(n (1 - val_fraction)), and validation's first document may
 * begin in its middle. Of a set of n ids training keeps the first floor(n (1 - val_fraction)). The two share no token.
 *
 * Memory: of text 2 or 4 bytes for each id, in one region whose size is known from the files' sizes alone (`mem.peak`;
 * `--plan` counts it; what merges leave unused of it is never touched). Sets are mapped files. */
#pragma once
#include "../ops/arena.h"
#include "blend.h"
#include "indexed.h"
#include "paths.h"
#include "tokenizer.h"

/* What is wanted; all of data.* that matters here. */
typedef struct {
    int ntrain;               /* words, >= 1 */
    const char *const *train; /* each a file, a pattern or a folder (paths.h) */
    const double *weight;     /* (ntrain), of words that name one file each; NULL: none */
    const char *val;          /* path; "" or NULL: by val_fraction */
    const char *key;          /* where the words stand, for messages; NULL: "data.train" */
    const char *lift;         /* see text_check.h; NULL: any bytes are text */
    double val_fraction;      /* 0 (no validation) to 1, 1 excluded */
    const char *separator; /* text between two documents; "" or NULL: a file is one document. \n \r \t \f \\ stand for
                              the characters that they stand for in C */
    int seq_len;           /* the shortest training part has seq_len + 1 tokens */
    int threads;           /* of tokenising; 0: 1 */
    int vocab;             /* ids of sets lie below; 0: the tokenizer's */
    void (*progress)(void *ctx, size_t bytes, size_t of); /* of text tokenised; may be NULL */
    void *progress_ctx;
} StreamSpec;

typedef struct {
    Mix train, val;   /* no part of val has fewer than 2 tokens; val.n 0: nothing to validate on */
    size_t tokens;    /* to train on */
    size_t documents; /* that begin in either part, of text */
    size_t bytes;     /* of text in both */
    uint64_t hash;    /* of the training ids: another text gives another number; of sets see indexed.h */
    Arena mem;
    Tokens part[PARTS_MAX], tail[PARTS_MAX];
    Paths file; /* that were read */
    Set *set;   /* (nset) */
    int nset;
    Blend blend;
} Stream;

/* Read all files. EXIT_INPUT: a missing, empty or unreadable file, one that is not regular (a pipe) or not text, a
 * pattern or folder without files, a file without a document, a damaged set, a bad escape in the separator, too few tokens, no end-of-text id, weights that
 * blend.h refuses. EXIT_WORLD: no memory, a read error. Nothing is left open on failure. The Stream must stay where it
 * is. */
bool stream_open(Stream *, const StreamSpec *, const Tokenizer *, Err *);
/* What stream_open would take, from the files' sizes; nothing is read but headers. EXIT_INPUT: a file is missing,
 * empty, not regular; a bad escape in the separator. */
bool stream_bytes(const StreamSpec *, const Tokenizer *, size_t *bytes, Err *);
void stream_close(Stream *);
/* Of training: how many tokens stream_open would find, from the first MiB of text and the sizes of all files, and the
 * bytes of text on disk; 0 bytes: sets of ids alone, whose tokens are counted. With weights the tokens are those of the
 * part that comes to its end first, as if it had all samples. EXIT_INPUT: as stream_open. */
bool stream_estimate(const StreamSpec *, const Tokenizer *, double *tokens, size_t *bytes, Err *);
/* The same, exactly, of what is open. */
double stream_epoch(const Stream *);
/* See set_unchanged: of all sets. */
bool stream_unchanged(const Stream *, const char **replaced, Err *);

/* What a separator's escapes stand for; malloc'ed, *n bytes. `key` begins the message. */
bool text_unescape(const char *s, const char *key, char **out, size_t *n, Err *);
