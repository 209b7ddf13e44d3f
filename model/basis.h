/* basis.h: the files of a model's bases of rows (layers/cache/basis.h), which model_open reads and `kvsmith calibrate`
 * writes. Safetensors; of each layer that owns rows, with i = keys, values, K and V the elements of all heads' keys and
 * values:
 *
 *   palu, kvsmith-basis-1, all tensors F64
 *   layers.L.i.basis          groups,width,width  orthonormal directions, by descending eigenvalues
 *   layers.L.i.eigenvalues    groups,width        mean square of the calibration rows along them
 *
 *   A group is one or more heads (RowBasis.heads), as many in keys as in values; width: the elements of their keys or
 *   values, at most BASIS_WIDEST where a group has more than one. The shape says how many heads a group has.
 *
 *   aqua, kvsmith-aqua-1, all tensors F32 (layers/cache/aqua.h): p = predictor x + mean
 *   layers.L.keys.predictor   K,K                 from the keys of the layer below; absent in the first layer
 *   layers.L.values.predictor V,K+V               from the layer's keys and the values below; V,K in the first layer
 *   layers.L.i.mean           K or V
 *
 * Metadata: kind; checksum of all tensors (basis_checksum, in the order of their names); model: fingerprint of the
 * model's files (engine_fingerprint), or 0; tokens: how many were read; of aqua the settings of the codec, too, by
 * which rows below were stored when the matrices were fitted: another may be used. */
#pragma once
#include "layers/cache/basis.h"
#include "model.h"
#include "model/files/safetensors.h"

enum { BASIS_NAME = 48, BASIS_TENSORS = 4, PREDICTOR_TENSORS = 4, PATH_SHOWN = 120 };
#define BASIS_FORMAT     "kvsmith-basis-1"
#define PREDICTOR_FORMAT "kvsmith-aqua-1"
void basis_name(char out[BASIS_NAME], int layer, bool value, const char *what);
/* Whether a layer has tensors in the file. */
bool basis_layer(const Model *, int l);
/* The checksum with one tensor more. */
uint64_t basis_checksum(uint64_t, const char *name, const void *p, size_t n);

/* What model_basis_open is made of. The layers that have rows have ones that such a codec can store; the file is of
 * this kind, undamaged, and has so many tensors; the text of a key of its metadata, or ""; the leading directions go to
 * m->basis. */
bool basis_suits(const Model *, const char *codec, Err *);
/* The same of rows that are predicted from those of the layer below. */
bool predictor_suits(const Model *, const char *codec, Err *);
bool basis_sound(const St *, const char *kind, int tensors, int layers, Err *);
const char *basis_meta(const St *, const char *key);
bool basis_leading(Model *, const St *, Err *);
