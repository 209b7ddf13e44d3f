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

/* B sequences of a prompt and `room` tokens behind it through a session; tok (B, prompt + room) is made up
 * by decode_open and may be written over. */
typedef struct {
    Session s;
    int B, prompt, room, *tok;
    Feed *feed;
    Tensor logits;
} Decode;
/* chunk: rows of one pass, 0: the session's own; plain: as SessionOpts has it. False: EXIT_WORLD, no memory; nothing is
 * left open. The model stays the caller's. */
bool decode_open(Decode *, Model *, int B, int prompt, int room, int chunk, bool plain, Err *);
void decode_close(Decode *);
/* Forget everything, feed every sequence its prompt and take the last logits: seconds of all. */
bool decode_prefill(Decode *, double *seconds, Err *);
/* The next token of every sequence; at most `room` calls after a prefill. */
bool decode_step(Decode *, Err *);
/* How a prefill, or with `room` the first steps behind one, divides among its ops, as bench_shares has it. Opened
 * plain. */
bool decode_shares(Decode *, double seconds, Share *out, int *n, Err *);
