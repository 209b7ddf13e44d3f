/* pretoken.h: cuts text into pieces at the matches of a pattern. The tokenizer, its normalizers and the BPE trainer
 * call it.
 *
 * Patterns are those of tokenizer files, written for other regex libraries; regex.h rewrites them for PCRE2. Bytes that
 * are not UTF-8 match nothing and become pieces of their own. */
#pragma once
#include "buf.h"

/* The number of leading bytes of s that are well-formed UTF-8. */
size_t utf8_bytes(const char *s, size_t n);

/* The library that a pattern was written for: Oniguruma in tokenizer.json; Rust's regex and fancy-regex elsewhere. */
typedef enum { PATTERN_ONIGURUMA, PATTERN_RUST } PatternKind;
typedef struct Cutter Cutter;
/* A cutter makes a piece of every match of a pattern, and of every stretch between (`Isolated`). NULL (EXIT_INPUT):
 * the pattern is not understood; `where` begins the message. */
Cutter *cutter_open(const char *pattern, PatternKind, const char *where, Err *);
void cutter_close(Cutter *);
bool cutter_empty(const Cutter *); /* the pattern matches the empty text */

/* cut_next: the end of the first piece of s+from.. (from < n); calls with increasing `from` walk through all pieces.
 * Each thread must have its own state. */
typedef struct CutState CutState;
CutState *cut_state(const Cutter *);
void cut_state_free(CutState *);
size_t cut_next(CutState *, const char *s, size_t n, size_t from);
bool cut_matched(const CutState *); /* the piece of the last cut_next is a match, not a stretch between */
/* A match needed more steps or memory than any sensible pattern does. The result of cut_next is then meaningless. */
bool cut_failed(const CutState *);

extern const char PATTERN_GPT2[], PATTERN_LLAMA3[], PATTERN_QWEN2[];
