/* basis_file.h: writes a file of model/basis.h: tensors, their checksum and what they were made of. calibrate.c and
 * predict.c use it. */
#pragma once
#include "model/basis.h"

typedef struct {
    StList list;
    int n, most;
    void **own;
} BasisFile;
BasisFile basis_file(int most); /* of so many tensors at most */
void basis_file_free(BasisFile *);
/* Memory of a tensor, zero, which the file owns. */
void *basis_file_add(BasisFile *, const char *name, Dtype, int rank, const int shape[]);
/* Whole or not at all. settings: of the codec; NULL: none are written. */
bool basis_file_write(BasisFile *, const char *path, const char *kind, uint64_t model, size_t tokens,
                      const char *settings, Err *);
