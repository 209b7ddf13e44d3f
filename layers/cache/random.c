/* random.c: rows drawn with equal chances: what other policies have to beat. A draw is a function of seed, slot, lane
 * and position; a row that loses one draw loses the later ones, too. */
#include "policy.h"

static void random_select(Choice *c) {
    for (int h = 0; h < c->lanes; h++)
        for (int i = 0; i < c->lane[h].n; i++) {
            const uint64_t key = rng_mix(rng_mix((uint64_t)c->p->seed, (uint64_t)c->slot), (uint64_t)h);
            c->lane[h].score[i] = (real)rng_uniform(key, (uint64_t)c->lane[h].pos[i]);
        }
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_WINDOW("16"),
                           POLICY_SINKS("4"),
                           POLICY_EVERY("64", 0),
                           POLICY_KEY(seed, KEY_INT, "1", 0, 1e9, "of the draw"),
                           {0}};
const Policy policy_random = {.name = "random",
                              .meaning = "rows drawn with equal chances",
                              .source = "a control",
                              .keys = keys,
                              .select = random_select};
