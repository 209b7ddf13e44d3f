/* bpe.h: byte pair encoding of one piece of text, with a vocabulary and merges in order of rank. The tokenizer cuts
 * text into pieces and calls bpe_encode for each.
 *
 * A piece starts as a list of symbols: its bytes (byte level), or its characters, where those without a token become
 * bytes (byte fallback, as in SentencePiece models). Then the adjacent pair of lowest rank (the leftmost of equals) is
 * replaced by its merged token, until no pair has one. Cost: O(n log n) in the symbols of a piece (a short piece is
 * searched by plain scans). Sources: arXiv:1508.07909; the file format of Hugging Face tokenizers. */
#pragma once
#include "ops/base.h"

typedef struct {
    int *id;
    size_t n, cap;
} Ids;
void ids_push(Ids *, int id);
void ids_free(Ids *);

typedef struct {
    const char *at; /* raw bytes of the token; NULL: the id is not in use */
    uint32_t n;
    int byte;    /* byte fallback: the value of a token <0xNN>; else -1 */
    bool hidden; /* a special token: no piece of text becomes it */
} Token;
typedef struct {
    int a, b, to;
} Merge;
typedef struct Bpe Bpe;

/* Open a vocabulary of n ids and nmerge merges in order of rank. The caller owns the tokens' bytes and must keep them
 * as long as the Bpe. fallback: symbols are characters. NULL (EXIT_INPUT): a merge names an id out of range, a pair
 * occurs twice, a byte has no token; `where` begins the message. */
Bpe *bpe_open(const Token *token, int n, const Merge *, size_t nmerge, bool fallback, const char *where, Err *);
void bpe_close(Bpe *);
int bpe_find(const Bpe *, const char *s, size_t n); /* the id whose bytes are s; -1: none. <0xNN> is never found */

/* The work space of encoding: buffers and a cache of pieces seen. Each thread must have its own. */
typedef struct BpeWork BpeWork;
BpeWork *bpe_work(const Bpe *);
void bpe_work_free(BpeWork *);
/* Append the ids of one piece. whole: a piece that is itself a token becomes that token, even without merges to it. */
void bpe_encode(BpeWork *, const char *s, size_t n, bool whole, Ids *out);
