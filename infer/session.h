/* session.h: one mutable timeline (cache, lengths, positions) over a model that stays constant.
 *
 * A session has `nseq` numbered sequences. session_extend feeds new tokens to any of them, as many to each as wanted:
 * prefill, a chunk of it, and a decoding step of a ragged batch are the same call. Work is cut into passes of at most
 * `chunk` rows over all sequences, so memory does not grow with the prompt.
 * The first token of a fresh sequence starts a document: it sees nothing before it and has position 0. With `document`
 * so does every token of that id, as in training on text, where end-of-text precedes each document: for scoring a text
 * of several documents (`eval ppl`). A prompt is one sequence, whatever tokens it has: -1. */
#pragma once
#include "../model/model.h"
#include "../ops/sample.h"

enum { CHUNK_ROWS = 512 };
typedef struct {
    int nseq;       /* sequences, >= 1 */
    int max_tokens; /* longest document of a sequence */
    int chunk;      /* rows of one pass over all sequences, >= 1; 0: CHUNK_ROWS */
    int page_rows;  /* 0: the cache's default */
    int document;   /* id of the token that starts a document; -1: none, only a fresh sequence does */
    bool want_all;  /* logits of every row may be asked for, not only those of last rows */
    bool plain;     /* a device launches every kernel by itself: nothing is recorded and replayed */
} SessionOpts;

typedef struct {
    Model *model;
    SessionOpts opts;
    Cache cache;
    int *next; /* (nseq) position that the next token would have in its document: 0 = fresh */
    int *rows; /* the arrays of a pass, in one block; see session.c */
    uint64_t *id;
    Arena draw;          /* of a device, for session_draw: */
    void *drawing;       /* scratch */
    unsigned char *seen; /* (nseq,V) tokens that penalties are for */
    SampleRow *draws;    /* (nseq) of the host: of a pass, those that fill it up included */
    Sampled *drawn;      /* (nseq) */
} Session;

/* New tokens of one sequence. A call names a sequence at most once. */
typedef struct {
    int seq, n;
    const int *tok;
} Feed;
typedef enum { WANT_LAST, WANT_ALL } Want;

/* The model (weights only, or one in training) stays the caller's. False: EXIT_WORLD, no memory. */
bool session_open(Session *, Model *, SessionOpts, Err *);
void session_close(Session *);
/* logits: WANT_LAST (B,V), row b after the last token of feed b; WANT_ALL (sum of n, V) in the order of the feeds;
 * ABSENT: none. False (EXIT_INPUT): a document would grow past max_tokens or a token is outside the vocabulary, found
 * before anything changes. */
bool session_extend(Session *, int B, const Feed *, Want, Tensor logits, Err *);
/* The same for last rows, with a token drawn from each where the logits lie, so that no more than tokens comes to the
 * host (ops/sample.h; slots are filled in here: a sequence's own). Of a device alone (session_draws), after
 * session_draw_open, which takes the memory for it (EXIT_WORLD: there is none). session_seen: what penalties of a
 * sequence are for from now on; tokens that are drawn are added. Of a fresh sequence to be said before its first draw.
 *
 * A step of decoding (a token for each of B sequences) is filled up to 1, 2, 4, 8, 16, 24, ... or nseq sequences with
 * fresh ones that nobody has a use for, if there are as many, so that a device records few passes while a batch gets
 * smaller; they have a row of their own and no history, and are fresh again afterwards. */
bool session_draws(const Session *);
bool session_draw_open(Session *, Err *);
void session_seen(Session *, int seq, const unsigned char *seen);
bool session_draw(Session *, int B, const Feed *, SampleRow *rows, Sampled *, Err *);
void session_reset(Session *, int seq);         /* forget everything: fresh again */
void session_fork(Session *, int from, int to); /* `to`, another one, becomes a copy of `from`; its rows are shared */
int session_length(const Session *, int seq);   /* tokens of the current document so far */
size_t session_bytes(const Session *, int seq); /* resident rows and states of the cache */
