/* isa_auto.c: the instruction set of a device that was opened without the name of one. */
#include "isa_table.h"

const Isa *isa_auto(bool *bound) {
    *bound = false;
    return isa_best();
}
