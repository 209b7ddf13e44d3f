/* isa_table.h: the instruction sets that the CPU backend has, from the least to the most, and which of them a device uses.
 * device_open asks here. Private to ops/ and its tests. */
#pragma once
#include "gemm_bf16.h"
#include "isa.h"

/* The most that the library for products in f32 may use. It can be set once in a process, before the library's first
 * use: gemm_bind (gemm.c) is false (EXIT_WORLD) when the library is already in use with another. */
typedef enum {
    LIBRARY_ANY, /* its own choice, or what was set before */
    LIBRARY_SSE41,
    LIBRARY_AVX2,
    LIBRARY_AVX512,
    LIBRARY_AVX512BF16,
    LIBRARY_AMX
} LibraryIsa;
bool gemm_bind(LibraryIsa, Err *);

typedef struct {
    const char *name;  /* as --isa takes it */
    const char *label; /* as device_isa prints it */
    const Ops *ops;
    GemmBf16 *gemm_bf16;     /* NULL in the double build */
    LibraryIsa library;      /* the most that the library may use when this one is asked for by name */
    bool (*there)(Err *why); /* NULL: always. The processor has it, and it works */
} Isa;

/* The table; `n` receives its length. Entries may be of instruction sets that this processor lacks. */
const Isa *isa_table(int *n);
/* The best that this processor has. Says on stderr, in one line, if its tiles (AMX) had to be left out. */
const Isa *isa_best(void);
/* By name; "auto" is isa_auto. False (EXIT_INPUT): unknown, or not on this processor or in this build. */
bool isa_find(const char *name, const Isa **, Err *);
/* What "auto" stands for, and whether the library is bound to it. A program's is isa_best, unbound (isa_auto.c). The
 * tests' program has its own (tests/isa.c): as with none.c of the CUDA backend, the linker decides which. */
const Isa *isa_auto(bool *bound);
