/* gpus.h: asks whether this machine has GPUs that the program can use. Commands and training call device_gpus when the
 * device is `auto`. device_logits is a setting that only a GPU has. */
#pragma once
#include <stdint.h>

/* GPUs that device "cuda" can use; `auto` means "cuda" if there is one. 0: `why` says what is missing. `why` is "" in
 * a program without CUDA, and with an emulated device, which is used only when it is named. */
int device_gpus(char why[200]);

/* Set the size of the slices in which the head computes its logits, in elements (default 2^26). Larger slices read and
 * write the gradient of the head's weights less often and need more scratch. Must be called before a model is opened.
 * Does nothing on the CPU. */
struct Device;
void device_logits(struct Device *, int64_t elements);
