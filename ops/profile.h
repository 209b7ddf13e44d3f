/* profile.h: how the time of what a device does divides among its ops. */
#pragma once
#include "ops.h"

typedef struct {
    const char *op;
    int64_t calls;
    double seconds; /* without those of ops that it calls */
    double flops;   /* of matrix products, 2 each multiplication; 0: not counted */
} Share;

/* From here to profile_end every op of a Run that is made anew is timed. On the CPU by the host's clock, from asking to
 * having. On a device by its own clock, between the events that surround the op's work: nobody waits, so that ops
 * follow each other as they do otherwise, and what the device did between two ops, or waited for, is a share of its own
 * (PROFILE_BETWEEN). Measuring passes are not counted, nor may passes be captured. One at a time to a device, ops from
 * one thread. */
#define PROFILE_BETWEEN "(between ops)"
typedef struct Profile Profile;
Profile *profile_begin(Device *);
/* Forget what was counted. */
void profile_clear(Profile *);
/* Ops that were called, those that took longest first; their number. Waits. out: room for PROFILE_MAX. */
enum { PROFILE_MAX = sizeof(Ops) / sizeof(void *) };
int profile_read(Profile *, Share *out);
void profile_end(Profile *); /* the device's ops are what they were; frees it */
