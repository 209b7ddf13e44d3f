/* none.c: no feed-forward part. The block is its mixer alone, as in models whose layers are one part each. */
#include "ffn.h"

static const Key keys[] = {{0}};
static bool ffn_none_check(void *cfg, Err *e) {
    (void)cfg, (void)e;
    return true;
}
static void ffn_none_weights(const void *cfg, void *w, Fields *f) { (void)cfg, (void)w, (void)f; }
static void ffn_none_saved(const void *cfg, int N, void *s, Fields *f) { (void)cfg, (void)N, (void)s, (void)f; }

const Ffn none_ffn = {
    .name = "none",
    .source = "",
    .keys = keys,
    .cfg_size = sizeof(NoneCfg),
    .check = ffn_none_check,
    .weights = ffn_none_weights,
    .saved = ffn_none_saved,
    .takes_bf16 = true,
};
