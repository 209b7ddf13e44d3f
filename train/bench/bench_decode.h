/* bench_decode.h: times prompts and decoding of one model. The commands `bench` and `compare` call it. */
#pragma once
#include "ops/profile.h"
#include "infer/session.h"

/* Of `steps` steps the shares of one; ends them. */
int profile_mean(Profile *, int steps, Share *out);

/* Where the next token is chosen: the host gets all logits, or a GPU samples and the host gets tokens: the most
 * probable ones, or one of the 50 most probable with 0.95 of the probability. */
typedef enum { DRAW_GREEDY, DRAW_TOP_K, DRAW_HOST } DrawBy;
typedef struct {
    int B, prompt, room; /* sequences, each of a prompt and `room` tokens after it */
    int chunk;           /* rows of one pass, 0: the session's own */
    bool fill;           /* decode_fill replaces the prompt */
    DrawBy draw;         /* a device that cannot sample gives logits */
} DecodeOpts;
/* B sequences in a session; decode_open fills tok (B, prompt + room) with random tokens, which may be overwritten. */
typedef struct {
    DecodeOpts o;
    Session s;
    int *tok;
    Feed *feed;
    Tensor logits;
    bool draws; /* tokens are sampled on the device */
    bool plain; /* passes are launched kernel by kernel: see decode_plain */
    struct Graphs *aside;
    SampleRow *rows;
    Sampled *drawn;
} Decode;
/* False: EXIT_RUNTIME, no memory; nothing is left open. The model stays the caller's. */
bool decode_open(Decode *, Model *, DecodeOpts, Err *);
void decode_close(Decode *);
/* Forgets everything, feeds every sequence its prompt and computes the last logits. Returns the seconds of all. */
bool decode_prefill(Decode *, double *seconds, Err *);
/* Puts the cache into the same state, in length and position, without computing the prompt: random rows and states.
 * Each sequence has its own rows. False (EXIT_INPUT): a layer decides which rows to keep. */
bool decode_fill(Decode *, Err *);
/* The next token of every sequence; at most `room` calls after a prefill. */
bool decode_step(Decode *, Err *);
long decode_replayed(const Decode *); /* passes that a GPU replayed */
/* From now on passes are launched kernel by kernel (true) or replayed as graphs (false, the initial setting). */
void decode_plain(Decode *, bool);
/* Profile of a prefill or, with `room`, of the next steps as far as it reaches: the mean of as many as fit into
 * `seconds`, op by op. */
bool decode_profile(Decode *, double seconds, Share *out, int *n, Err *);
