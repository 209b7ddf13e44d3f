/* targets.c: the table of targets. */
#include "job.h"

extern const Target gqa_target, mqa_target, same_target, mla_target, swa_target, dmc_target, dms_target, cla_target,
    yoco_target, kda_target, gdn_target, deltanet_target, gla_target, linear_target, retention_target,
    gated_retention_target, gguf_target;
const Target *const targets[] = {&gqa_target,    &mqa_target,       &mla_target,
                                 &swa_target,    &cla_target,       &yoco_target,
                                 &dmc_target,    &dms_target,       &kda_target,
                                 &gdn_target,    &deltanet_target,  &gla_target,
                                 &linear_target, &retention_target, &gated_retention_target,
                                 &same_target,   &gguf_target,      NULL};

static void targets_cell(FILE *f, const char *text) { fprintf(f, "%s |", text); }
void convert_document(FILE *f) {
    fputs("| --to | result | settings | lossless? | needs |\n|---|---|---|---|---|\n", f);
    for (int i = 0; targets[i]; i++) {
        const Target *t = targets[i];
        fprintf(f, "| `%s` | ", t->name);
        targets_cell(f, t->about);
        for (const Key *k = t->keys; k->name; k++)
            fprintf(f, "%s`%s`%s: %s", k == t->keys ? " " : "; ", k->name, k->dflt ? "" : " (required)", k->meaning);
        fputs(" | ", f);
        targets_cell(f, t->exact);
        fprintf(f, " %s |\n", t->needs);
    }
}
