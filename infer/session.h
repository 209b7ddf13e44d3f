/* session.h: a session is one mutable timeline (cache, lengths, positions) over a constant model. Decoding, scoring and
 * everything else that feeds tokens step by step opens one.
 *
 * Any number of sessions may share a model, as long as nobody changes it (loading, training, model_plan). A session
 * writes nothing but its own cache and workspace. One thread at a time may use a session, and one thread at a time a
 * device. To run sessions in parallel on the CPU, each thread opens its own device, with the name, threads and
 * precision of the model's, and gives it in SessionOpts; each session then computes the same bits as alone. Sessions on
 * a GPU share the model's device and take turns.
 *
 * A session has `nseq` numbered sequences. session_extend feeds any number of new tokens to any of them: prefill, a
 * chunk of it, and a decoding step of a ragged batch are the same call. Work is cut into passes of at most `chunk` rows
 * over all sequences, so memory does not grow with the prompt. The first token of an empty sequence starts a document:
 * it sees nothing before it and has position 0. With `document` so does every token of that id, as in training on text,
 * where end-of-text precedes each document: for scoring a text of several documents (`eval ppl`). A prompt is one
 * sequence, whatever tokens it has: -1. */
#pragma once
#include "marks.h"
#include "model/workspace.h"
#include "ops/sample.h"

enum { CHUNK_ROWS = 512 };
typedef struct {
    int nseq;        /* sequences, >= 1 */
    int spare;       /* more of them, numbered from nseq on, that hold what others fork: prefixes (prefix.h) */
    int max_tokens;  /* longest document of a sequence */
    int chunk;       /* rows of one pass over all sequences, >= 1; 0: CHUNK_ROWS */
    int page_rows;   /* 0: the cache's default */
    int marks;       /* states that are kept of earlier lengths, of all sequences, where no `document` starts anew */
    int document;    /* id of the token that starts a document; -1: none, only an empty sequence does */
    bool want_all;   /* logits of every row may be requested, not only those of last rows */
    bool plain;      /* a GPU launches kernel by kernel: nothing is captured and replayed */
    Device *dev;     /* the device that computes; NULL: the model's, or the workspace's */
    Workspace *work; /* of the model's owner, used by one of them at a time, so that they share scratch; NULL: own */
} SessionOpts;

typedef struct {
    const Model *model;
    SessionOpts opts;
    Workspace own; /* unless SessionOpts.work is another's */
    Cache cache;
    int *next; /* (nseq+spare) position of the next token in its document: 0 = empty */
    int *rows; /* the arrays of a pass, in one block; see session.c */
    int *fed;  /* (nseq,max_tokens) tokens of the documents, if a policy feeds them again; else NULL */
    uint64_t *id;
    Marks marks;         /* to which session_rewind goes back */
    size_t read;         /* bytes of rows that the passes of the last call read */
    Arena draw;          /* on a GPU, for session_draw: */
    void *drawing;       /* scratch */
    unsigned char *seen; /* (nseq,V) tokens with penalties */
    SampleRow *draws;    /* (nseq) in host memory: of a pass, with those that fill it up */
    Sampled *drawn;      /* (nseq) */
} Session;

/* New tokens of one sequence. A call names a sequence at most once. */
typedef struct {
    int seq, n;
    const int *tok;
} Feed;
typedef enum { WANT_LAST, WANT_ALL } Want;

/* The caller keeps the model (weights only, or one in training). False: EXIT_RUNTIME, no memory; or as kv_open_tier. */
bool session_open(Session *, const Model *, SessionOpts, Err *);
void session_close(Session *);
/* logits: WANT_LAST (B,V), row b after the last token of feed b; WANT_ALL (sum of n, V) in the order of the feeds;
 * ABSENT: none. False (EXIT_INPUT): a document would grow past max_tokens or a token is outside the vocabulary; both
 * are found before anything changes. EXIT_RUNTIME: the disk that rows are on failed; the sequences are empty. */
bool session_extend(Session *, int B, const Feed *, Want, Tensor logits, Err *);
/* The same for last rows, with a token sampled from each on the GPU, so that only tokens are copied to the host
 * (ops/sample.h; fills in slots: a sequence's own). For a GPU only (session_draws), after session_draw_open, which
 * allocates the memory (EXIT_RUNTIME: there is none). session_seen: the tokens with penalties of a sequence from now
 * on; sampled tokens are added. Call it for an empty sequence before its first draw.
 *
 * A decoding step (a token for each of B sequences) is filled up to 1, 2, 4, 8, 16, 24, ... or nseq sequences with
 * unused empty ones, if there are as many, so that a GPU captures few passes while a batch gets smaller. They have one
 * row each and no history, and are empty again afterwards. Steps that are not captured (a mixture of experts, a policy
 * that selects what they read) are not filled up. */
bool session_draws(const Session *);
bool session_draw_open(Session *, Err *);
void session_seen(Session *, int seq, const unsigned char *seen);
bool session_draw(Session *, int B, const Feed *, SampleRow *rows, Sampled *, Err *);
/* The tokens that were fed to a sequence are a whole prompt: policies of the cache that wait for it evict rows now.
 * False: a policy that feeds the prompt again first (replay.h) could not; the sequence is empty then. */
bool session_prompt_ends(Session *, int seq, Err *);
void session_reset(Session *, int seq);         /* forget everything: empty again */
void session_fork(Session *, int from, int to); /* `to`, another one, becomes a copy of `from`; its rows are shared */
/* A sequence goes back to its first `to` tokens, at most as many as it has. Layers that keep every row cut them; states
 * go back to the last mark before; if a layer cannot, the sequence starts anew. Returns how many tokens it now has:
 * `to`, less, or 0. */
int session_rewind(Session *, int seq, int to);
/* The sequence as it is can be gone back to. Passes mark sequences by themselves: each of several rows where it ends,
 * and every `chunk` tokens. */
void session_mark(Session *, int seq);
int session_length(const Session *, int seq);   /* tokens of the current document so far */
size_t session_bytes(const Session *, int seq); /* resident rows and states of the cache */
/* The same of all sequences that are not empty, rows that several share counted once. */
size_t session_resident(const Session *);
/* The cache's tier, on disk or with the host; zeros but for `memory` where no limit was given. */
KvDisk session_disk(const Session *);
