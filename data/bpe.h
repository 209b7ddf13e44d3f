/* bpe.h: byte pair encoding: a vocabulary, merges in order of rank, and the merging of one piece of text.
 *
 * A piece starts as a list of symbols: its bytes (byte level), or its characters, those without a token as their bytes
 * (byte fallback, as SentencePiece models have it). The adjacent pair of lowest rank, the leftmost of equals, is
 * replaced by its merged token until no pair has one. Sources: arXiv:1508.07909; the file format of Hugging Face
 * tokenizers. Cost: O(n log n) in the symbols of a piece (a short piece by plain scans). */
#pragma once
#include "../ops/base.h"

typedef struct {
    int *id;
    size_t n, cap;
} Ids;
void ids_push(Ids *, int id);
void ids_free(Ids *);

typedef struct {
    const char *at; /* raw bytes that the token stands for; NULL: the id is not in use */
    uint32_t n;
    int byte; /* byte fallback: the value of a token <0xNN>; else -1 */
} Token;
typedef struct {
    int a, b, to;
} Merge;
typedef struct Bpe Bpe;

/* token: n ids, their bytes owned by the caller as long as the Bpe stands; merges by rank. fallback: symbols are
 * characters. EXIT_INPUT: a merge that names ids outside, a pair twice, a byte without a token; `where` begins the
 * message. NULL on failure. */
Bpe *bpe_open(const Token *token, int n, const Merge *, size_t nmerge, bool fallback, const char *where, Err *);
void bpe_close(Bpe *);
int bpe_find(const Bpe *, const char *s, size_t n); /* the id whose bytes are s; -1: none. <0xNN> is never found */

/* What encoding needs besides: buffers and a cache of pieces seen; one for each thread. */
typedef struct BpeWork BpeWork;
BpeWork *bpe_work(const Bpe *);
void bpe_work_free(BpeWork *);
/* Append the ids of one piece. whole: a piece that is itself a token is that token, merges or not. */
void bpe_encode(BpeWork *, const char *s, size_t n, bool whole, Ids *out);
