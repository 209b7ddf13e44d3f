/* tokens.h: a read-only view of token ids, in memory or in a mapped file, of any width, and of the documents among
 * them. The loader reads all data through it. */
#pragma once
#include "ops/base.h"

typedef enum { ID_16, ID_32, ID_8, ID_S8, ID_S16, ID_S32, ID_S64 } IdType; /* S: signed */
enum { ID_TYPES = 7 };
size_t id_bytes(IdType);
const char *id_name(IdType); /* "uint16" */

/* The places where documents begin, as the index of a Megatron set gives them: `ndoc` sequence numbers, and each
 * sequence's place in bytes. The arrays are little-endian and need not be aligned; indexed.h has checked them. */
typedef struct {
    const unsigned char *doc, *offset; /* int64 (ndoc), int64 (nseq) */
    size_t ndoc, nseq, width, tokens;  /* width: bytes of an id */
} Docs;
size_t docs_start(const Docs *, size_t d); /* the token at which document d begins; d = ndoc: the number of tokens */

/* A set, or part of one. */
typedef struct {
    const void *id; /* aligned to its width */
    size_t n;
    IdType type;
    const Docs *docs; /* NULL: end-of-text alone separates documents */
    size_t from;      /* the token number, in the set, of id 0 of this view */
    const char *name; /* for messages: the file */
} Tokens;
/* The first document that begins at token `at` of the view or later; SIZE_MAX: none is known. */
size_t tokens_next_doc(const Tokens *, size_t at);
Tokens tokens_slice(Tokens, size_t from, size_t n);

static inline int64_t token_at(const Tokens *t, size_t i) {
    switch (t->type) {
    case ID_16: return ((const uint16_t *)t->id)[i];
    case ID_32: return ((const uint32_t *)t->id)[i];
    case ID_8: return ((const uint8_t *)t->id)[i];
    case ID_S8: return ((const int8_t *)t->id)[i];
    case ID_S16: return ((const int16_t *)t->id)[i];
    case ID_S32: return ((const int32_t *)t->id)[i];
    case ID_S64: return ((const int64_t *)t->id)[i];
    }
    return -1;
}

/* Sets that one run reads together. */
enum { PARTS_MAX = 256 };
typedef struct {
    int n;
    const Tokens *part;
    const struct Blend *blend; /* NULL: every window of every part once an epoch; else see blend.h */
    int vocab;                 /* ids must be below it; 0: not checked */
} Mix;
