/* lora_ops.h: tables of ops that lora.c puts around the device's for the pass over one layer with adapters, so that no
 * mixer knows of them. An adapted matrix is W = W_0 + s B A.
 * - Backward, products that would add to its gradient dW add to those of A and B instead, by 6 rank FLOPs per element
 *   of x and of dy, and dW is never formed:   dB += dy^T (s x A^T)      dA += (s dy B)^T x
 *   An op that the table does not know adds to dW, which is zeroed first; lora.c projects it (LoraPart.formed).
 * - To read W in a pass of few rows, products with W_0 are followed by y += (s x A^T) B^T. For an op that the table
 *   does not know W is formed. */
#pragma once
#include "lora.h"

Tensor lora_scaled(const Lora *, Run *, const LoraPart *); /* s B, in scratch */
void lora_sum(const Lora *, Run *r, const LoraPart *);     /* makes LoraPart.sum */

/* Ops of r add to adapters' gradients from here to lora_ops_end; parts from..to-1 are the layer's. */
void lora_ops_begin(Lora *, Run *r, int from, int to);
/* Ops of r read W where they are given W_0. */
void lora_ops_read(Lora *, Run *r, int from, int to);
void lora_ops_end(Lora *, Run *r);
