/* lacks.h: in place of what the table has not. */
#pragma once
#include "../ops.h"

/* Entries that are NULL become functions that say device_lacks (host.h), so that a pass over them can be measured. */
void cuda_lacks(Ops *);
