/* text.h: plain text files as two streams of tokens, one to train on, one to validate on.
 *
 * A file is cut into documents at every place where the separator stands; a document of no bytes is dropped. A stream
 * is EOT doc EOT doc ... EOT doc EOT with end-of-text before every document and one at the very end, so that predicting
 * EOT means "the document ended". The files of `train` follow each other in the order given.
 *
 * Validation is the file `val` where there is one. Else it is the tail of the training files: with T the number of
 * their tokens that are not EOT, training keeps the first floor(T (1 - val_fraction)) of them and the EOTs between; one
 * file of n bytes is so cut at byte int(n (1 - val_fraction)), and validation's first document may begin in its middle.
 * The two parts share no token.
 *
 * Memory: 2 bytes per byte of all files, in one region whose size is known from the files' sizes alone (`mem.peak`;
 * `--plan` counts it). */
#pragma once
#include "../ops/arena.h"
#include "tokenizer.h"

/* What is wanted; all of data.* that matters here. */
typedef struct {
    int ntrain;               /* files, >= 1 */
    const char *const *train; /* their paths */
    const char *val;          /* path; "" or NULL: by val_fraction */
    double val_fraction;      /* 0 (no validation) to 1, 1 excluded */
    const char *separator; /* text between two documents; "" or NULL: a file is one document. \n \r \t \f \\ stand for
                              the characters that they stand for in C */
    int seq_len;           /* the shortest training part has seq_len + 1 tokens */
} StreamSpec;

typedef struct {
    const uint16_t *id;
    size_t n;
} Tokens;

typedef struct {
    Tokens train, val; /* val.n is 0 or >= 2 */
    size_t documents;  /* that begin in either part */
    size_t bytes;      /* of text in both: tokens without EOT */
    uint64_t hash;     /* of the training ids: another text gives another number */
    Arena mem;
} Stream;

/* Read all files. EXIT_INPUT: a missing, empty or unreadable file, one that is not regular (a directory, a pipe), one
 * without a document, a bad escape in the separator, too few tokens, a tokenizer that is not the byte
 * tokenizer. EXIT_WORLD: no memory, a read error. Nothing is
 * left open on failure. */
bool stream_open(Stream *, const StreamSpec *, const Tokenizer *, Err *);
/* What stream_open would take, from the files' sizes; nothing is read. EXIT_INPUT: a file is missing, empty, not
 * regular; a bad escape in the separator. */
bool stream_bytes(const StreamSpec *, size_t *bytes, Err *);
void stream_close(Stream *);
