/* isa.h: selects the instruction set of the CPU's kernels. Commands and training call it before device_open.
 *
 * device_open (ops.h) accepts "cpu:ISA". ISA is auto (the best that the processor has, the same as "cpu" alone),
 * baseline, avx2, avx512, avx512bf16 or amx; on aarch64 also neon or neonbf16. A named ISA also limits the library
 * that multiplies in f32. That is possible once in a process: a second device with another ISA is refused
 * (EXIT_RUNTIME). The C library's own functions (exp, memcpy) are not limited. */
#pragma once
#include "ops.h"

/* False (EXIT_INPUT): this build does not know ISA, or this processor does not have it; the message
 * lists what it has. */
bool device_isa_there(const char *isa, Err *);
/* The name to give to device_open for a device ("cpu", "cuda:1") and an ISA (NULL is auto). False (EXIT_INPUT): an ISA
 * for a device that is not the CPU. */
enum { DEVICE_NAME_MAX = 48 };
bool device_bind(char out[DEVICE_NAME_MAX], const char *device, const char *isa, Err *);
