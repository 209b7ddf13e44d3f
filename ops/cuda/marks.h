/* marks.h: moments of the computing stream (marks.cu), for BackendMarks (ops/backend.h). As cuda.h. */
#pragma once
#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif
typedef struct CudaMarks CudaMarks;
CudaMarks *cuda_marks_new(Cuda *);
void cuda_marks_free(CudaMarks *);
void cuda_marks_add(CudaMarks *);
int cuda_marks_count(const CudaMarks *);
void cuda_marks_read(CudaMarks *, double *seconds);
#ifdef __cplusplus
}
#endif
