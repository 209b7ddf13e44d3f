/* isa_auto.c: the instruction set of a device that is opened without naming one. */
#include "isa_table.h"

const Isa *isa_auto(bool *bound) {
    *bound = false;
    return isa_best();
}
