/* hashevict.c: the rows leave whose keys point away from the newest query, by the Hamming distance of hashes: a bit of
 * a hash is the sign of the product with a drawn direction, the same ones for keys and queries. A row keeps its hash,
 * plus 1, so that 0 is a row without one. Source: Liu et al., "HashEvict: A Pre-Attention KV Cache Eviction Strategy
 * using Locality-Sensitive Hashing", arXiv:2412.16187. */
#include "policy.h"

enum { WAYS = POLICY_SIDE }; /* directions that are taken at a time */
/* Direction r has normal components, by Box and Muller. Past the last one: zeros. */
static real *directions(const Choice *c) {
    const int D = c->kdim;
    real *x = xcalloc((size_t)(c->p->bits + WAYS - 1) * (size_t)D, sizeof *x);
    for (int r = 0; r < c->p->bits; r++)
        for (int d = 0; d < D; d++) {
            const uint64_t key = rng_mix((uint64_t)c->p->seed, (uint64_t)r);
            x[(r / WAYS * D + d) * WAYS + r % WAYS] = (real)(sqrt(-2 * log(rng_uniform(key, 2 * (uint64_t)d))) *
                                                             cos(2 * M_PI * rng_uniform(key, 2 * (uint64_t)d + 1)));
        }
    return x;
}
static uint32_t hash_of(const real *way, int bits, const real *x, int D) {
    uint32_t hash = 0;
    for (int r0 = 0; r0 < bits; r0 += WAYS, way += WAYS * D) {
        real s[WAYS];
        policy_side(s, way, x, D);
        for (int r = 0; r < imin(WAYS, bits - r0); r++) hash |= (uint32_t)(s[r] >= 0) << (r0 + r);
    }
    return hash;
}
static void hashevict_lane(Choice *c, int h, const void *with) {
    const int group = c->heads / c->lanes, bits = c->p->bits, D = c->kdim;
    PolicyLane *l = &c->lane[h];
    const real *way = with;
    uint32_t *asks = xcalloc((size_t)(c->queries * group), sizeof *asks);
    for (int q = 0; q < c->queries * group; q++)
        asks[q] = hash_of(way, bits, policy_query(c, q / group, h * group + q % group), D);
    const real *fresh = l->key;
    for (int i = 0; i < l->n; i++) {
        if (l->kept[i] == 0) l->kept[i] = (real)(hash_of(way, bits, fresh, D) + 1), fresh += D;
        const uint32_t key = (uint32_t)l->kept[i] - 1;
        for (int q = 0; q < c->queries * group; q++) l->score[i] -= (real)__builtin_popcount(key ^ asks[q]);
    }
    free(asks);
}
static void hashevict_select(Choice *c) {
    real *way = directions(c);
    policy_each_lane(c, hashevict_lane, way);
    free(way);
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_WINDOW("10"),
                           POLICY_SINKS("4"),
                           POLICY_EVERY("64", 0),
                           POLICY_QUERIES("1"),
                           POLICY_KEY(bits, KEY_INT, "16", 1, 24, "of a hash"), /* a float holds 2^24 */
                           POLICY_KEY(seed, KEY_INT, "1", 0, 1e9, "of the directions"),
                           {0}};
const Policy policy_hashevict = {.name = "hashevict",
                                 .meaning = "the keys whose hashes are nearest to the newest query's",
                                 .source = "arXiv:2412.16187",
                                 .lacks = "evicts after attention and every 64 tokens, not before it at each token",
                                 .keys = keys,
                                 .ask = {.whom = ASK_QUERIES},
                                 .needs = NEED_KEYS | NEED_QUERIES | NEED_NEW,
                                 .keeps = true,
                                 .select = hashevict_select};
