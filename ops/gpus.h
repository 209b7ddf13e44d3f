/* gpus.h: whether this machine has GPUs that the program can use; asked by whatever has `auto` as its device. */
#pragma once

/* GPUs that device "cuda" can use; `auto` is "cuda" where there is one. 0: `why` says what is missing; "" in a program
 * without CUDA and where the device is emulated, which is used by name alone. */
int device_gpus(char why[200]);
