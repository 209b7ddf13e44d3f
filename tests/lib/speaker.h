/* speaker.h: a model with a tokenizer for tests of inference, and the reference they are compared with: the forward
 * pass of training, which shares no code with the cache. */
#pragma once
#include "data/tokenizer.h"
#include "layers/cache/codec.h"
#include "zoo.h"

typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Workspace work;
    Tokenizer tk;
    int V, document; /* the id that starts a document: the last */
} Speaker;
extern const Animal speaker_bytes; /* 257 ids; the animals of the zoo have fewer than text needs */

/* How a cache keeps rows: a policy, a codec (NULL: none), and whether matrices and rows are bf16. */
typedef struct {
    const char *policy, *codec;
    bool bf16;
    PolicyCfg own_policy;
    RowCodec own_codec;
} Keeping;
/* The model for inference alone, with a cache of that kind, on a device of so many threads; `how` stays as long. False:
 * this model's rows are not kept so (the model says so), and nothing is open. */
bool speaker_keeping(Speaker *, const Animal *, Keeping *how, int threads);
/* rows: of the longest reference pass; 0: none will be run. */
void speaker_open(Speaker *, const Animal *, int rows);
void speaker_close(Speaker *);
/* Ids with documents among them, by seed. */
void speaker_tokens(const Speaker *, int *tok, int n, uint64_t seed);
/* nll of tgt after each of the n tokens of B texts; each text begins a document, as does every id `document`. */
void speaker_nll(Speaker *, int B, int n, const int *tok, const int *tgt, int document, real *nll);
double log_softmax(const real *logits, int V, int target);
