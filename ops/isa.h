/* isa.h: the choice of the instruction set of the CPU's kernels. Commands and training call it before device_open.
 *
 * device_open (ops.h) accepts "cpu:ISA", where ISA is auto (the best that the processor has, as "cpu" alone), baseline,
 * avx2, avx512, avx512bf16, amx; of aarch64 neon, neonbf16. A named ISA also binds the library that multiplies f32,
 * which is possible once in a process: a second device of another ISA is refused (EXIT_WORLD). The C library's own
 * functions (exp, memcpy) are not bound. */
#pragma once
#include "ops.h"

/* False (EXIT_INPUT): ISA is unknown to this build or not on this processor; the message lists what there is. */
bool device_isa_there(const char *isa, Err *);
/* The name for device_open of a device ("cpu", "cuda:1") with an ISA (NULL is auto). False (EXIT_INPUT): an ISA for
 * another device than the CPU. */
enum { DEVICE_NAME_MAX = 48 };
bool device_bind(char out[DEVICE_NAME_MAX], const char *device, const char *isa, Err *);
