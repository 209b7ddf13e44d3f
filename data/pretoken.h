/* pretoken.h: prepares text for byte pair encoding: normalisation, and the cut into pieces. The tokenizer and the BPE
 * trainer call it.
 *
 * Patterns are those of tokenizer.json, written for other regex libraries. Where PCRE2 would differ they are
 * rewritten: \s is the Unicode property White_Space (PCRE2's own \s also matches U+180E). Bytes that are not UTF-8
 * match nothing and become pieces of their own. */
#pragma once
#include "ops/base.h"

typedef struct {
    char *at;
    size_t n, cap;
} Buf;
void buf_put(Buf *, const char *s, size_t n);
void buf_free(Buf *);

/* Append the canonical composition (Unicode NFC) of s to out; bytes that are not UTF-8 pass unchanged. */
void buf_nfc(Buf *out, const char *s, size_t n);

typedef struct Cutter Cutter;
/* A cutter makes a piece of every match of a pattern, and of every stretch between (`Isolated`). NULL (EXIT_INPUT):
 * the pattern is not understood; `where` begins the message. */
Cutter *cutter_open(const char *pattern, const char *where, Err *);
void cutter_close(Cutter *);

/* cut_next: the end of the first piece of s+from.. (from < n); calls with increasing `from` walk through all pieces.
 * Each thread must have its own state. */
typedef struct CutState CutState;
CutState *cut_state(const Cutter *);
void cut_state_free(CutState *);
size_t cut_next(CutState *, const char *s, size_t n, size_t from);
/* A match needed more steps or memory than any sensible pattern does. The result of cut_next is then meaningless. */
bool cut_failed(const CutState *);

extern const char PATTERN_GPT2[], PATTERN_LLAMA3[], PATTERN_QWEN2[];
