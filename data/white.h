/* white.h: white space at the ends of UTF-8 text, as Python's str.strip has it: Unicode's White_Space and U+001C..1F.
 */
#pragma once
#include "../ops/base.h"

size_t white_begin(const char *s, size_t n); /* bytes of white space that s begins with */
size_t white_end(const char *s, size_t n);   /* bytes of s that are left without that at its end */
