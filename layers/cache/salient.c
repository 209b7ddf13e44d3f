/* salient.c: what queries of a block say about its rows, for a codec that gives the rows with the most attention more
 * bits (RowCodec.salient_bits). The queries are some of the block's own, its probes (ops/salient.h), which the cache
 * keeps as passes make them; they are the same however a text is cut. Of row j
 *   score_j = sum over probes i >= j and query heads of e^(q_i k_j - lse_i) / probes i >= j
 * so a row that few queries could see yet is not taken for one that nobody looks at. Source: ZipCache
 * (arXiv:2405.14256, section 3.3). */
#include "slot.h"
#include "ops/salient.h"

int salient_queries(const KvShape *s) { return s->codec && s->codec->salient_bits && s->heads ? s->codec->probes : 0; }

size_t salient_state_bytes(const KvShape *s) {
    return (size_t)salient_queries(s) * (size_t)s->heads * ((size_t)s->kdim + 1) * sizeof(real);
}

void salient_score(const Slot *s, int lane, int row, const real *keys, real *score) {
    const RowCodec *c = s->t.s.codec;
    const int lanes = s->t.s.lanes, group = s->t.s.heads / lanes, D = s->t.s.kdim,
              first = s->t.pos[slot_place_of(s, lane, row)];
    int seen[SALIENT_ROWS] = {0};
    memset(score, 0, SALIENT_ROWS * sizeof *score);
    CHECK(first % SALIENT_ROWS == 0, "a block that begins at position %d", first);
    for (int i = 0; i < SALIENT_ROWS && s->queries; i++) {
        const int probe = salient_probe(c, first + i);
        if (probe < 0) continue;
        const size_t place = (size_t)(lane / lanes) * (size_t)s->queries + (size_t)probe;
        for (int g = 0; g < group; g++) {
            const size_t at = place * (size_t)s->t.s.heads + (size_t)(lane % lanes * group + g);
            const real *q = R(s->asked) + at * (size_t)D, lse = R(s->asked_lse)[at];
            for (int j = 0; j <= i; j++) {
                real dot = 0;
                for (int k = 0; k < D; k++) dot += q[k] * keys[j * D + k];
                score[j] += (real)exp((double)(dot - lse));
            }
        }
        for (int j = 0; j <= i; j++) seen[j]++;
    }
    for (int j = 0; j < SALIENT_ROWS; j++)
        if (seen[j]) score[j] /= (real)seen[j];
}
