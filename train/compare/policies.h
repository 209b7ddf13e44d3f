/* policies.h: compares cache policies on one model: what each keeps of a dense cache's quality, at which bytes. The
 * command `compare --policies` calls it. */
#pragma once
#include <jansson.h>
#include "infer/engine.h"

typedef struct {
    const char *model;
    const char *policies; /* POLICY or POLICY@CODEC, as --policy and --cache-dtype take them, blanks between; a budget
                             is added to each */
    const char *tasks;    /* NAME or NAME:key=value,... with blanks between; NULL: the task that the model has */
    const char *budgets;  /* shares of the prompt's rows, commas between; NULL: 0.5,0.25,0.125 */
    const char *out;      /* folder for policies.md, policies.json, policies.svg; NULL: none */
    int64_t seeds, batch, chunk;
    int nword;
    char **word; /* key=value: samples and settings of every task */
} ComparePolicies;
/* Runs dense, window, random and the policies at every budget, asked before and after the question, and prints a
 * Markdown table or JSON. EXIT_INPUT: an unknown policy or task, a model without tasks or without rows to evict. */
bool compare_policies(const ComparePolicies *, const Cli *, Err *);

/* Of its results (policies.c): the table, and a plot of accuracy over resident bytes. */
void policies_table(FILE *, const json_t *results);
void policies_plot(FILE *, const json_t *results);
