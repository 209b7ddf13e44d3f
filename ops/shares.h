/* shares.h: how the time of what a device does divides among its ops. */
#pragma once
#include "ops.h"

typedef struct {
    const char *op;
    int64_t calls;
    double seconds; /* from asking to having; without those of ops that it calls */
    double flops;   /* of matrix products, 2 each multiplication; 0: not counted */
} Share;

/* From here to shares_end every op of a Run that is made anew is timed, one after the other: a device apart is waited
 * for behind each, so that the sum is more than the same work takes otherwise. Measuring passes are not counted. One
 * at a time to a device, ops from one thread. */
typedef struct Shares Shares;
Shares *shares_begin(Device *);
/* Forget what was counted. */
void shares_clear(Shares *);
/* Ops that were called, those that took longest first; their number. out: room for SHARES_MAX. */
enum { SHARES_MAX = sizeof(Ops) / sizeof(void *) };
int shares_read(const Shares *, Share *out);
void shares_end(Shares *); /* the device's ops are what they were; frees it */
