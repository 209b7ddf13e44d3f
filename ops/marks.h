/* marks.h: moments on a device's own clock, taken between the things that it is asked for. The profile of ops
 * (shares.h) takes them, so that an op's time is what the device spent on it and nobody waits for it in between. */
#pragma once
#include "ops.h"

typedef struct Marks Marks;
/* NULL: the host's clock will do, because nothing lies on a device. */
Marks *marks_open(Device *);
void marks_close(Marks *);
/* A moment: the device has done all that it was asked for so far. Does not wait. Not while a pass is captured. */
void marks_add(Marks *);
int marks_count(const Marks *);
/* Seconds between each moment and the next, marks_count - 1 of them, and forgets all moments. Waits. */
void marks_read(Marks *, double *seconds);
