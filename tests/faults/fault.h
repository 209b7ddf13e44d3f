/* fault.h: what tests/faults/driver.c asks of a program under tests/faults/inject.c. */
#pragma once

typedef enum {
    FAULT_OPEN,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_PREAD,
    FAULT_PWRITE,
    FAULT_FSYNC,
    FAULT_RENAME,
    FAULT_STAT,
    FAULT_READDIR,
    FAULT_MMAP,
    FAULT_FTRUNCATE,
    FAULT_MKDIR,
    FAULT_LINK,
    FAULT_UNLINK,
    FAULT_FLOCK,
    FAULT_ALLOC,
    FAULT_FORK,
    FAULT_KINDS
} FaultKind;

/* Descriptors of a program that serves: it reads a FaultSpec, and writes the process of the case, then its status. */
enum { FAULT_REQUESTS = 198, FAULT_REPLIES = 199 };
typedef struct {
    int who;              /* 0: the command's own process; k: the k-th that it starts; of ranks, rank k - 1 */
    int kind;             /* -1: nothing fails, calls are counted */
    int n, error, sticky; /* the n-th call of the kind, and with sticky all after it */
    char cwd[400];
} FaultSpec;
