/* stock.h: converts latents and merged rows back to grouped queries. The target gqa calls it for such layers. Private
 * to convert/. */
#pragma once
#include "job.h"

/* True if --to gqa means that: kv_heads is not given (0), or some layer has latents. */
bool stock_wanted(const Job *, int kv_heads);
bool stock_plan(Job *, json_t *model, int kv_heads, Err *);
/* EXIT_INPUT: two query heads that are to share a KV head read different ones. */
bool stock_layer(Job *, int l, Err *);
