/* text.h: the data of a run: plain text and sets of token ids as two streams of tokens, one to train on and one to
 * validate on. Training opens it once and gives its parts to the loader.
 *
 * Text. A file is cut into documents at every separator; a file named .jsonl has one document per line (source.h).
 * Empty documents are dropped. A stream of text is EOT doc EOT doc ... EOT doc EOT, so predicting EOT means "the
 * document ended". Ids have 16 bits if the vocabulary allows it, else 32.
 *
 * Parts. Consecutive text files form one part; every set of ids (indexed.h) is one part; with weights every file is
 * one. Without weights an epoch reads all windows of all parts. With weights blend.h says which part a sample comes
 * from, and each part has its own epochs.
 *
 * Validation is the file `val` if there is one. Otherwise it is the tail of every part:
 * - Text: with T the number of its tokens that are not EOT, training keeps the first floor(T (1 - val_fraction)) of
 *   them and the EOTs between. With the byte tokenizer, one file of n bytes is therefore cut at byte int(n (1 -
 *   val_fraction)). Validation's first document may begin in its middle.
 * - A set of n ids: training keeps the first floor(n (1 - val_fraction)).
 *
 * Training and validation share no token.
 *
 * Memory: 2 or 4 bytes per id of text, in one region whose size follows from the files' sizes alone (`mem.peak`;
 * `--plan` counts it; the part that merges leave unused is never touched). Sets are mapped files. */
#pragma once
#include "ops/arena.h"
#include "blend.h"
#include "indexed.h"
#include "paths.h"
#include "tokenizer.h"

/* The specification: all members of data.* that matter here. */
typedef struct {
    int ntrain;               /* words, >= 1 */
    const char *const *train; /* each a file, a pattern or a folder (paths.h) */
    const double *weight;     /* (ntrain), for words that name one file each; NULL: none */
    const char *val;          /* path; "" or NULL: by val_fraction */
    const char *key;          /* the setting that holds the words, for messages; NULL: "data.train" */
    const char *lift;         /* see text_check.h; NULL: any bytes are text */
    double val_fraction;      /* 0 (no validation) to 1, 1 excluded */
    /* text between two documents; "" or NULL: a file is one document. \n \r \t \f \\ have their meaning from C */
    const char *separator;
    int seq_len;                                          /* the shortest training part has seq_len + 1 tokens */
    int threads;                                          /* threads that tokenize; 0: 1 */
    int vocab;                                            /* ids of sets must be below it; 0: the tokenizer's */
    void (*progress)(void *ctx, size_t bytes, size_t of); /* bytes of text tokenized; may be NULL */
    void *progress_ctx;
} StreamSpec;

typedef struct {
    Mix train, val;   /* every part of val has at least 2 tokens; val.n 0: no validation */
    size_t tokens;    /* training tokens */
    size_t documents; /* documents of text that begin in either part */
    size_t bytes;     /* bytes of text in both */
    uint64_t hash;    /* of the training ids: other text gives another hash; for sets see indexed.h */
    Arena mem;
    Tokens part[PARTS_MAX], tail[PARTS_MAX];
    Paths file; /* the files that were read */
    Set *set;   /* (nset) */
    int nset;
    Blend blend;
} Stream;

/* Read all files. Nothing stays open on failure. The Stream must not move.
 * - EXIT_INPUT: a missing, empty or unreadable file, one that is not regular (a pipe) or not text; a pattern or folder
 *   without files; a file without a document; a damaged set; a bad escape in the separator; too few tokens; no
 *   end-of-text id; weights that blend.h refuses.
 * - EXIT_RUNTIME: out of memory, a read error. */
bool stream_open(Stream *, const StreamSpec *, const Tokenizer *, Err *);
/* The memory that stream_open would take, from the files' sizes; only headers are read. EXIT_INPUT: a file is missing,
 * empty or not regular; a bad escape in the separator. */
bool stream_bytes(const StreamSpec *, const Tokenizer *, size_t *bytes, Err *);
void stream_close(Stream *);
/* Estimate how many training tokens stream_open would find, from the first MiB of text and the sizes of all files, and
 * the bytes of text on disk. 0 bytes: there are only sets of ids, whose tokens are counted exactly. With weights the
 * tokens are those of the part that ends first, as if it had all samples. EXIT_INPUT: as stream_open. */
bool stream_estimate(const StreamSpec *, const Tokenizer *, double *tokens, size_t *bytes, Err *);
/* The same value for an open Stream, exactly. */
double stream_epoch(const Stream *);
/* As set_unchanged, for all sets. */
bool stream_unchanged(const Stream *, const char **replaced, Err *);

/* Replace a separator's escapes; the result is malloc'ed and has *n bytes. `key` begins the message. */
bool text_unescape(const char *s, const char *key, char **out, size_t *n, Err *);
