/* pretoken.h: what happens to text before byte pair encoding sees it: normalisation, and the cut into pieces.
 *
 * Patterns are those of tokenizer.json, which other regex libraries read; where PCRE2 would differ they are rewritten:
 * \s is the Unicode property White_Space (PCRE2's own \s also matches U+180E). Bytes that are no UTF-8 match nothing
 * and stand in pieces of their own. */
#pragma once
#include "../ops/base.h"

typedef struct {
    char *at;
    size_t n, cap;
} Buf;
void buf_put(Buf *, const char *s, size_t n);
void buf_free(Buf *);

/* Canonical composition (Unicode NFC) of s appended to out; bytes that are no UTF-8 go through unchanged. */
void buf_nfc(Buf *out, const char *s, size_t n);

typedef struct Cutter Cutter;
/* One cut: every match of a pattern is a piece, and so is every stretch between (`Isolated`). NULL: EXIT_INPUT, the
 * pattern is not understood; `where` begins the message. */
Cutter *cutter_open(const char *pattern, const char *where, Err *);
void cutter_close(Cutter *);

/* The end of the first piece of s+from.. (from < n); calls with rising `from` walk all pieces. A state for each thread.
 */
typedef struct CutState CutState;
CutState *cut_state(const Cutter *);
void cut_state_free(CutState *);
size_t cut_next(CutState *, const char *s, size_t n, size_t from);
/* A match took more steps or memory than any sensible pattern does; what cut_next then returned means nothing. */
bool cut_failed(const CutState *);

extern const char PATTERN_GPT2[], PATTERN_LLAMA3[], PATTERN_QWEN2[];
