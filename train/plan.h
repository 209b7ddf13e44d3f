/* plan.h: what a run costs, before it runs and after. */
#pragma once
#include "trainer.h"
#include <jansson.h>

/* `train --plan`: parameters, tokens, FLOPs and exact bytes of every region, as text or as one JSON object; of every
 * stage where there are stages, with the largest's memory beside them. The trainer is opened dry, and closed. */
bool plan_print(Trainer *, Config *, bool json, FILE *, Err *);
/* {"region": bytes, ..., "total": bytes} */
json_t *regions_json(const Regions *);
