/* regex.h: rewrites a pattern that was written for another regex library so that PCRE2 matches the same. Cutters
 * (pretoken.h) call it for the patterns of tokenizer files.
 *
 * Most syntax is common to all. What differs is translated: \s \d \w, names of properties (a script means Script, not
 * Script_Extensions), classes in classes, intersections [a&&b], ^ and $, and {n,m}+, which repeats in Oniguruma. What
 * has no translation is refused: \b, POSIX classes, inline flags other than i, octal and byte escapes. Under UTF and
 * UCP options, with LF as the newline. Sources: Oniguruma's doc/RE, the syntax pages of Rust's regex and fancy-regex,
 * pcre2pattern(3). */
#pragma once
#include "ops/base.h"
#include "pretoken.h"

/* Append the translation and a NUL to out. EXIT_INPUT: a construct without translation; `where` begins the message. */
bool regex_translate(const char *pattern, PatternKind, const char *where, Buf *out, Err *);
