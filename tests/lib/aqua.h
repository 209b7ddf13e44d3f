/* aqua.h: models of the zoo with the codec aqua, calibrated on drawn text; for its tests. What it does not have, such
 * as sessions and logits, palu.h has. */
#pragma once
#include "palu.h"

/* Calibrates an animal for "aqua:SETTINGS" on so many texts into the file; left (L,2): shares of the variance that are
 * left of keys and values, or NULL. False: its rows are none for the codec, as the message must say. */
bool aqua_calibrate(int animal, int texts, const char *settings, const char *path, double *left);
/* The animal with these settings, calibrated on three texts; false as above, and model_open says so, too. */
bool aqua_open(PaluCase *, int animal, const char *settings, ModelOpts);
/* The same with a file that is there. */
void aqua_open_file(PaluCase *, int animal, const char *settings, const char *path, ModelOpts);
/* Writes a file whose checksum is right with the tensors of another, as `change` leaves element i of tensor `name`. */
void aqua_change(const char *from, const char *to, float (*change)(const char *name, size_t i, float x));
