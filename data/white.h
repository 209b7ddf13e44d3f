/* white.h: finds white space at the ends of UTF-8 text, by the rule of Python's str.strip: Unicode's White_Space and
 * U+001C..1F. Chat templates strip texts with it. */
#pragma once
#include "ops/base.h"

size_t white_begin(const char *s, size_t n); /* bytes of white space that s begins with */
size_t white_end(const char *s, size_t n);   /* bytes of s that are left without the white space at its end */
