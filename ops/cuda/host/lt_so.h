/* lt_so.h: checks whether cuBLASLt is available. The device calls it when it opens. The library is opened at run time
 * (lt_so.c), or replaced by the emulation (tests/simt/blas.cpp). */
#pragma once
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Open the library at the first call. False: `why` says what is missing. where: the file's name, a constant. */
bool lt_found(const char **where, char why[200]);
#ifdef __cplusplus
}
#endif
