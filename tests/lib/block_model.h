/* block_model.h: models of the zoo whose cache stores rows together, and sessions over them; for tests of such
 * codecs. */
#pragma once
#include "infer/session.h"
#include "layers/cache/codec.h"
#include "zoo.h"

enum { BLOCK_TOKENS = 150, BLOCK_CHUNK = 40 };
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    RowCodec codec;
    PolicyCfg policy;
} BlockCase;
RowCodec block_codec(const char *text);
/* The text is refused as a codec, with this message. */
void block_parse_fails(const char *text, const char *says);
void block_close(BlockCase *);
/* Experts are chosen by a comparison, which a rounding may turn over. */
bool block_decides(int animal);
/* A layer has a state or carries rows. */
bool block_has_state(const BlockCase *);
void block_session(Session *, BlockCase *, int nseq);
/* n tokens of a sequence; logits (n,V), or NULL. */
void block_feed(Session *, int seq, int n, const int *tok, real *logits);
/* Tokens of a drawn text. */
void block_text(int tok[BLOCK_TOKENS], int vocab, uint64_t seed);
/* Logits of every row of the text: `first` tokens, then the rest in pieces of so many. */
void block_logits(BlockCase *, const int *tok, int first, int piece, real *logits);
/* Sequence 0 of an open session of three is fed 140 of tok's tokens, 1 forks from it, goes back to `to` and on with
 * other tokens; 2 is fed what 1 then has. Checks where 1 went back to, which it returns, and that both have the same
 * logits. other becomes those tokens; back and fresh (BLOCK_TOKENS,V) the logits of 1, from where it went back to, and
 * of 2. */
int block_back(BlockCase *, Session *, int animal, int to, const int *tok, int *other, real *back, real *fresh);
/* |a - b| over |b|. */
double block_distance(const real *a, const real *b, size_t n);
/* Opening the animal with the codec and the policy is refused, and the message has these words. */
void block_refused(int animal, const char *codec, const char *policy, const char *says);
