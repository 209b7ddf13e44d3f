/* compress.h: shortens a text of several passages for a prompt, by what a model finds predictable in it. The command
 * `compress` calls it. Two stages, with T the tokens of all passages and a budget of rate * T:
 *
 * 1. Passages by rank, until they hold coarse * budget tokens; the others are left out. Without a question a passage
 *    ranks by its own mean -log p, the highest first; with one by the mean -log p of the question after the passage,
 *    the lowest first.
 * 2. Of the passages that are left, T' tokens, a share of tokens stays: r = budget / T', with a question
 *    r + slope (1 - 2 rank / passages), within 0 and 1. They are scored by segments, each after what stays of the text
 *    before it: by -log p(x); with a question by -log p(x) + log p(x | question before the text). The highest stay.
 *
 * The passages that are left come in their own order, with a question in that of their ranks.
 * Sources: Jiang et al., "LLMLingua: Compressing Prompts for Accelerated Inference of Large Language Models",
 * arXiv:2310.05736; the same, "LongLLMLingua: Accelerating and Enhancing LLMs in Long Context Scenarios via Prompt
 * Compression", arXiv:2310.06839. */
#pragma once
#include "session.h"

typedef struct {
    double rate;   /* share of tokens that stay, above 0 to 1 */
    double coarse; /* at least 1 */
    double slope;  /* 0 to 1 */
    int segment;   /* tokens that are scored at a time */
    bool in_order; /* passages keep their order with a question, too */
    int start;     /* id that begins a text; -1: none, and the first token of a text stays */
    int nquestion, nasked;
    const int *question; /* nquestion tokens; 0: there is none. The first stage scores nasked of them, at least as */
} CompressOpts;          /* many: the question with a sentence about it */

typedef struct {
    const int *tok; /* in: n >= 1 tokens */
    int n;
    bool *keep;   /* out: (n) the tokens that stay */
    int kept;     /* how many */
    double score; /* mean -log p of the first stage; NaN: it was not needed */
    int rank;     /* 0: the first */
} Passage;

/* `order`: the passages that are left, as they are to come, and *nleft their number. The session is opened for
 * compress_session's options. False (EXIT_INPUT): question and segment do not fit its tokens; EXIT_RUNTIME: the model's
 * weights are damaged. */
SessionOpts compress_session(const CompressOpts *, int max_tokens, int chunk);
bool compress(Session *, const CompressOpts *, int n, Passage *, int *order, int *nleft, Err *);
