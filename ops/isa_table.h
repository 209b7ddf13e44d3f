/* isa_table.h: the table of instruction sets of the CPU backend, from the least to the most. device_open reads it to
 * choose one. Private to ops/ and its tests. */
#pragma once
#include "gemm_bf16.h"
#include "isa.h"

/* The highest instruction set that the f32 product library may use. It can be set once in a process, before the
 * library's first use. gemm_bind (gemm.c) is false (EXIT_RUNTIME) if the library already runs with another one. */
typedef enum {
    LIBRARY_ANY, /* its own choice, or an earlier setting */
    LIBRARY_SSE41,
    LIBRARY_AVX2,
    LIBRARY_AVX512,
    LIBRARY_AVX512BF16,
    LIBRARY_AMX
} LibraryIsa;
bool gemm_bind(LibraryIsa, Err *);

typedef struct {
    const char *name;  /* as --isa spells it */
    const char *label; /* as device_isa prints it */
    const Ops *ops;
    GemmBf16 *gemm_bf16;     /* NULL in the double build */
    PairProduct *pairs;      /* in tiles; NULL: in the vectors of `ops` */
    LibraryIsa library;      /* the limit for the library when this one is asked for by name */
    bool (*there)(Err *why); /* the processor has it and it works; NULL: always */
} Isa;

/* The table; `n` receives its length. It may list instruction sets that this processor lacks. */
const Isa *isa_table(int *n);
/* The best that this processor has. Prints one line on stderr if it had to leave out AMX. */
const Isa *isa_best(void);
/* Find by name, which is not "auto". False (EXIT_INPUT): unknown, or not on this processor or in this build. */
bool isa_find(const char *name, const Isa **, Err *);
/* What "auto" stands for, and whether the library is bound to it. A program's is isa_best, unbound (isa_auto.c). The
 * tests' program has its own (tests/lib/isa.c): the linker decides which. */
const Isa *isa_auto(bool *bound);
