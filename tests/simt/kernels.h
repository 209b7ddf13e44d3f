/* kernels.h: the kernels of kernels.cu, as the tests call them. a (256) is written, out (256) is not. */
#pragma once
#include <cuda_runtime.h>

extern "C" {
void kernel_sum_blocks(cudaStream_t, const float *a, float *out, int blocks, int threads, int n);
void kernel_sum_warps(cudaStream_t, const float *a, float *out, int threads);
void kernel_count_above(cudaStream_t, const float *a, int *count, int n, float bound);
void kernel_hand_over(cudaStream_t, const float *a, float *out, int tiles, int half);
void kernel_pipeline(cudaStream_t, const float *a, float *out, int tiles, int threads);
void kernel_product(cudaStream_t, const void *A, const void *B, float *C); /* A (16,16), B (8,16) bf16 */
void kernel_product_tf32(cudaStream_t, const float *A, const float *B, float *C);
void kernel_turn(cudaStream_t, const void *A, uint32_t *by_register, uint32_t *by_load);
void kernel_scale_vec(cudaStream_t, float *x, int n);
void kernel_banks(cudaStream_t, const float *a, float *out, int stride);
void kernel_wrong(const char *name, cudaStream_t, float *a, float *out);
}
