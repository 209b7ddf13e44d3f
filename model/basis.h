/* basis.h: the file of a model's bases of rows (layers/cache/basis.h): model_open reads it for the codec palu,
 * infer/calibrate.c writes it. Safetensors, all tensors F64; of each layer that owns rows, with i = keys, values:
 *
 *   layers.L.i.basis          lanes,width,width   orthonormal directions, by descending eigenvalues
 *   layers.L.i.eigenvalues    lanes,width         mean square of the calibration rows along them
 *
 * Metadata: kind; checksum of all tensors (basis_checksum, in the order of their names); model: fingerprint of the
 * model's files (engine_fingerprint), or 0; tokens: how many were read. */
#pragma once
#include "layers/cache/basis.h"
#include "model.h"

enum { BASIS_NAME = 48, BASIS_TENSORS = 4 };
#define BASIS_FORMAT "kvsmith-basis-1"
void basis_name(char out[BASIS_NAME], int layer, bool value, const char *what);
/* Whether a layer has tensors in the file. */
bool basis_layer(const Model *, int l);
/* The checksum with one tensor more. */
uint64_t basis_checksum(uint64_t, const char *name, const void *p, size_t n);
