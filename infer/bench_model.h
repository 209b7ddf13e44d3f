/* bench_model.h: the speed of one model, for `bench` and `compare`: training steps, prefill, decoding. */
#pragma once
#include "../model/cost.h"
#include "../ops/shares.h"
#include "bench.h"
#include "session.h"

/* Training steps on made-up tokens: gradients of one micro-batch of cfg, the norm for clipping, an AdamW step. vocab is
 * resolved. `cost` is of documents of data.seq_len tokens. False: EXIT_WORLD, no memory. */
bool bench_step(Device *, const Config *, double seconds, Timing *, Cost *, Err *);
/* How such a step divides among its ops, means of as many steps as fit into `seconds`, at least one, op by op in turn
 * (shares.h): calls, seconds and FLOPs of one step. out: room for SHARES_MAX. */
bool bench_shares(Device *, const Config *, double seconds, Share *out, int *n, Err *);
/* The same step with a teacher of the model's own shape and other weights: lm and kl (Ops.linear_distill). */
bool bench_distill(Device *, const Config *, double seconds, Timing *, Err *);

/* Of `steps` steps the shares of one; ends them. */
int shares_mean(Shares *, int steps, Share *out);

/* Who takes the next token: the host gets all logits; or, of a device, it gets tokens that were drawn there: the most
 * probable ones, or one of the 50 most probable with 0.95 of their probability. */
typedef enum { DRAW_GREEDY, DRAW_TOP_K, DRAW_HOST } DrawBy;
typedef struct {
    int B, prompt, room; /* sequences, each of a prompt and `room` tokens after it */
    int chunk;           /* rows of one pass, 0: the session's own */
    bool fill;           /* decode_fill takes the place of the prompt */
    DrawBy draw;         /* what cannot draw gives logits */
} DecodeOpts;
/* B sequences through a session; tok (B, prompt + room) is made up by decode_open and may be written over. */
typedef struct {
    DecodeOpts o;
    Session s;
    int *tok;
    Feed *feed;
    Tensor logits;
    bool draws; /* tokens are drawn on the device */
    bool plain; /* passes are launched kernel by kernel: see decode_plain */
    struct Graphs *aside;
    SampleRow *rows;
    Sampled *drawn;
} Decode;
/* False: EXIT_WORLD, no memory; nothing is left open. The model stays the caller's. */
bool decode_open(Decode *, Model *, DecodeOpts, Err *);
void decode_close(Decode *);
/* Forget everything, feed every sequence its prompt and take the last logits: seconds of all. */
bool decode_prefill(Decode *, double *seconds, Err *);
/* The same state of the cache in length and place without the prompt's computation: drawn rows and states. Each
 * sequence has rows of its own. False (EXIT_INPUT): a layer decides which rows stay. */
bool decode_fill(Decode *, Err *);
/* The next token of every sequence; at most `room` calls after a prefill. */
bool decode_step(Decode *, Err *);
long decode_replayed(const Decode *); /* passes that a device replayed */
/* From here on passes are launched kernel by kernel (true) or replayed as graphs (false, at first). */
void decode_plain(Decode *, bool);
/* How a prefill, or with `room` the next steps, as far as that goes, divides among its ops, as bench_shares has it. */
bool decode_shares(Decode *, double seconds, Share *out, int *n, Err *);
