/* lt_so.h: whether cuBLASLt can be had: opened at run time (lt_so.c), or the emulation's (tests/simt/blas.cpp). */
#pragma once
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Opens the library the first time. False: `why` says what is missing. where: the file, constant. */
bool lt_found(const char **where, char why[200]);
#ifdef __cplusplus
}
#endif
