/* plan.h: computes and prints what a run costs: parameters, FLOPs, memory and traffic. `train --plan` calls it before a
 * run, the loop's final report after it. */
#pragma once
#include "train/trainer.h"
#include <jansson.h>

/* `train --plan`: parameters, tokens, FLOPs and exact bytes of every region, as text or as one JSON object; for every
 * stage if there are stages, with the largest's memory. The trainer is opened dry, and closed. */
bool plan_print(Trainer *, Config *, bool json, FILE *, Err *);
/* "trained 41,943,040 of 8,030,261,248, 0.5 %", or "" if all is trained; returns buf. */
const char *plan_trained(const Trainer *, char buf[96]);
/* {"region": bytes, ..., "total": bytes} */
json_t *regions_json(const Regions *);
