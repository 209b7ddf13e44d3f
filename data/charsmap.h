/* charsmap.h: SentencePiece's table of replacements, which tokenizer.json calls Precompiled. normal.c reads it.
 *
 * The table is a trie of byte sequences and a pool of NUL-ended texts. It holds, little-endian: the size of the trie in
 * bytes (u32), the trie, the pool. The trie is a double array of u32 units as Darts-clone writes it: a unit has a label
 * (bits 0-7 and 31), a flag that a value follows (bit 8), and an offset (bits 10-31, shifted left by 8 with bit 9). The
 * step from node p with byte c goes to p ^ c, which must have the label c; p ^ c ^ its offset is the next node, whose
 * unit holds the value. A value is a place in the pool. Any table is safe to search: every index is checked.
 * Source: the source of Darts-clone and of SentencePiece's builder. */
#pragma once
#include "ops/base.h"

typedef struct Charsmap Charsmap;
/* Copies n bytes. NULL (EXIT_INPUT): too short, or a trie of an impossible size; `where` begins the message. */
Charsmap *charsmap_open(const void *, size_t n, const char *where, Err *);
void charsmap_close(Charsmap *);
/* The replacement of the shortest prefix of s that has one, as the tokenizers library chooses; NULL: none has. */
const char *charsmap_find(const Charsmap *, const char *s, size_t n, size_t *len);
