/* plan.h: what a run costs, before it runs and after. */
#pragma once
#include "trainer.h"
#include <jansson.h>

/* `train --plan`: parameters, tokens, FLOPs and exact bytes of every region, as text or as one JSON object; of every
 * stage where there are stages, with the largest's memory beside them. The trainer is opened dry, and closed. */
bool plan_print(Trainer *, Config *, bool json, FILE *, Err *);
/* "trained 41,943,040 of 8,030,261,248, 0.5 %", or "" where all is trained; returns buf. */
const char *plan_trained(const Trainer *, char buf[96]);
/* {"region": bytes, ..., "total": bytes} */
json_t *regions_json(const Regions *);
