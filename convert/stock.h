/* stock.h: the target gqa of layers that are not: latents and merged rows back to grouped queries. Private to convert/.
 */
#pragma once
#include "job.h"

/* Whether --to gqa means that: kv_heads is not given (0), or some layer has latents. */
bool stock_wanted(const Job *, int kv_heads);
bool stock_plan(Job *, json_t *model, int kv_heads, Err *);
/* EXIT_INPUT: of the query heads that are to share a head of keys and values two read others. */
bool stock_layer(Job *, int l, Err *);
