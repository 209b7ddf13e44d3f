/* gpus.h: whether this machine has GPUs that the program can use; asked by whatever has `auto` as its device. And what
 * only a GPU can be told. */
#pragma once
#include <stdint.h>

/* GPUs that device "cuda" can use; `auto` is "cuda" where there is one. 0: `why` says what is missing; "" in a program
 * without CUDA and where the device is emulated, which is used by name alone. */
int device_gpus(char why[200]);

/* The head's logits exist in slices of about so many elements (default 2^26): more of them read and write the gradient
 * of its weights less often and take more scratch. Before a model is opened. Nothing on the CPU. */
struct Device;
void device_logits(struct Device *, int64_t elements);
