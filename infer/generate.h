/* generate.h: generates tokens with a session: sampling, stopping, text. The commands `generate` and the samples of
 * training call it. Any number of prompts shares the session's sequences: a sequence that ends makes room for the next
 * prompt, so a batch stays full. */
#pragma once
#include "data/tokenizer.h"
#include "sampler.h"
#include "session.h"
#include "text.h"

typedef enum { FINISH_LENGTH, FINISH_EOS, FINISH_STOP, FINISH_CONTEXT } Finish;
const char *finish_name(Finish); /* "length", "eos", "stop", "context" */

typedef struct {
    Sampler sampler;
    int max_new;
    int neos;
    const int *eos; /* tokens that end a text and are not part of it; neos 0: none */
    int nstop;
    const char *const *stop; /* strings that end a text and are not part of it */
    /* Receives new text of prompt `which` that can no longer change, as soon as it is known; NULL: not wanted. False:
     * stop everything (the receiver has set the Err). */
    bool (*show)(void *ctx, int which, const char *text, size_t n, Err *);
    void *ctx;
    /* Called when prompt `which` has ended, whose sequence is `seq`, before that is emptied; NULL: not wanted. False:
     * as show. */
    bool (*done)(void *ctx, Session *, int which, int seq, Err *);
    /* For a single prompt: `held` tokens of it, not the last, are in sequence 0 of the session already, and `drawn`
     * draws were made before. resumes: its prompt has ended already, and it is generated on. */
    int held;
    uint64_t drawn;
    bool resumes;
    bool apart; /* prompts that begin alike share nothing; the same bits (prefix.h) */
} GenOpts;

typedef struct {
    const int *prompt; /* in: at least 1 token */
    int nprompt;
    int *tok; /* out: the new tokens, also those of a stop string or an eos that ended it */
    int n;
    Text text;
    Finish finish;
    int cached;                 /* tokens of the prompt that were computed for another one */
    double prefill_s, decode_s; /* wall time of its passes, sampling included; the first token counts as prefill */
    size_t cache_bytes;         /* resident at its end */
} Generation;

/* Draw i of prompt k is a function of (seed, k, i) alone, so results do not depend on how prompts share the session
 * (except for the last bits of the logits). False: EXIT_INPUT, a prompt does not fit; EXIT_RUNTIME, damaged weights.
 * Call generation_free after a failure, too. */
/* Prompts that begin alike share what they have in common, as far as the session has spare sequences. */
bool generate(Session *, const Tokenizer *, const GenOpts *, int n, Generation *, Err *);
/* Spare sequences (SessionOpts.spare) with which n prompts share all that they can. */
int generate_spare(int n, const Generation *);
void generation_free(Generation *);
