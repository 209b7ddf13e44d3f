/* attend.c: what a pass reads of the cache. */
#include "aqua.h"
#include "slot.h"

/* All rows of the sequences whose queries have a history are read once. */
static void attend_counts(const Run *r, const Slot *s) {
    const Batch *b = r->batch;
    const RowList out = s->ranks && r->share && !measuring(r) ? r->share->out : r->out;
    for (int m = 0, last = -1; m < out.n && !measuring(r); m++) {
        const int q = b->of[out.idx[m]];
        if (q == last || b->first[out.idx[m]] >= 0) continue;
        last = q;
        for (int h = 0; h < s->t.s.lanes; h++) {
            const int lane = b->seq[q] * s->t.s.lanes + h;
            *s->read += slot_lane_bytes(s, lane) + blocks_below_bytes(s, lane);
        }
    }
}
void kv_attend(Run *r, const Slot *s, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec spec, bool merge) {
    CHECK(!s->mirror || measuring(r) || !dirty_copy_behind(s->mirror), "tables that the device has not seen");
    if (select_attend(r, s, pass, o, lse, q, spec, merge)) return;
    if (s->tier && r->out.n && !measuring(r)) tier_stage(s);
    CHECK(!s->ranks || !merge, "a partial of this rank alone");
    if (s->ranks)
        row_ranks_attend(r, s->ranks, kv_lanes_there(s), pass, o, lse, q, spec);
    else
        r->ops->attend_lanes(r, o, lse, q, s->chain ? chain_lanes(r, s) : kv_lanes_there(s), pass, spec, merge);
    attend_counts(r, s);
}
void kv_probe(Run *r, Tensor q, Tensor lse, AttnSpec spec) {
    const Probe *p = &r->probe;
    if (!present(p->q)) return;
    CHECK(p->q.n[1] == spec.heads && !spec.window, "%d heads of %d, window %d", p->q.n[1], spec.heads, spec.window);
    r->ops->gather(r, p->q, q, r->out, p->rows);
    r->ops->gather(r, p->lse, lse, r->out, p->rows);
    r->ops->axpby(r, p->q, (double)spec.scale, p->q, 0);
}
Tensor kv_state(const Slot *s) { return s->state; }
Tensor kv_carry(const Slot *s) { return s->carry; }
Tensor kv_last(const Slot *s) { return s->last; }
const Lanes *kv_lanes(const Slot *s) { return &s->t; }
const Lanes *kv_lanes_of(const Slot *s, int seq) {
    if (s->tier) tier_stage_sequence(s, seq);
    return &s->t;
}
const Lanes *kv_lanes_there(const Slot *s) { return s->mirror ? &s->there : &s->t; }
