/* blocks.h: kernels that are launched in blocks of more than 256 threads, with the most of theirs. A multiprocessor has
 * 65,536 registers for a block, which 256 threads never exceed. The emulation refuses such launches of any other
 * kernel, and spills.sh, which reads this file, holds what nvcc says of these to it. */
LARGE_BLOCK(fold_columns, 1024)
LARGE_BLOCK(sort_scan, 1024)
LARGE_BLOCK(short_conv_backward_fold, 1024)
