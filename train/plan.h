/* plan.h: what a run costs, before it runs and after. */
#pragma once
#include "trainer.h"
#include <jansson.h>

/* `train --plan`: parameters, tokens, FLOPs and exact bytes of every region, as text or as one JSON object. The trainer
 * is opened dry. */
void plan_print(const Trainer *, bool json, FILE *);
/* {"region": bytes, ..., "total": bytes} */
json_t *regions_json(const Regions *);
