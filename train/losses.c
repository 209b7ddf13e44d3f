/* losses.c: see losses.h. Sums are f64 and in the order of rows, as trainer.c makes them of a pass on the CPU. */
#include "losses.h"
#include "trainer.h"
#include "ops/host.h"

enum { KINDS = 5 };
static const int part_of[KINDS] = {PART_NLL, PART_KL, PART_RKL, PART_ATTENTION, PART_HIDDEN};
/* Where passes leave their rows of each kind; NULL: they have none. */
static void losses_rows_of(const Trainer *t, const real *from[KINDS]) {
    const Teach *h = &t->teacher.teach;
    const bool on = t->teacher.on;
    from[0] = t->work.losses;
    from[1] = on ? h->kl : NULL;
    from[2] = on ? h->rkl : NULL;
    from[3] = on ? h->mixs : NULL;
    from[4] = on ? h->outs : NULL;
}

/* The array for a step with this many losses. */
static size_t step_bytes(size_t losses) { return sizeof(LossesOfStep) + losses * sizeof(real); }

void losses_take(Trainer *t) {
    Losses *l = &t->losses;
    if (!device_apart(t->dev)) return;
    size_t micros = (size_t)t->dist.micros, N = (size_t)t->cfg->train.micro_batch * (size_t)t->cfg->data.seq_len;
    l->room = micros * N * (t->teacher.on ? KINDS : 1);
    l->host = arena_take(&t->rows, step_bytes(l->room), "losses of a step");
    l->rows = arena_take(&t->rows, micros * sizeof *l->rows, "rows of micro-batches");
}
static void losses_place(Trainer *t) {
    Losses *l = &t->losses;
    t->work.losses = arena_take(&l->there, (size_t)t->model.opts.max_rows * sizeof(real), "losses of a pass");
    l->at = arena_take(&l->there, step_bytes(l->room), "losses of a step");
}
bool losses_open(Trainer *t, Err *e) {
    Losses *l = &t->losses;
    if (!l->room) return true;
    l->there.name = "losses of a step";
    losses_place(t);
    if (t->dry) return true;
    if (!arena_open_at(&l->there, device_memory(t->dev, false), l->there.name, l->there.peak, false, e)) return false;
    losses_place(t);
    return true;
}
void losses_close(Losses *l) { arena_close(&l->there); }
void losses_regions(const Losses *l, Regions *r) { regions_add(r, "losses_of_a_step", &l->there, REGION_IF_ANY); }

void losses_begin(Losses *l) { l->n = 0, l->used = 0; }
void losses_aside(Trainer *t) {
    Losses *l = &t->losses;
    const real *from[KINDS];
    const size_t N = (size_t)t->loader.batch.N;
    if (!l->room) return;
    CHECK(l->n < t->dist.micros, "micro-batch %d of %d", l->n, t->dist.micros);
    losses_rows_of(t, from);
    l->rows[l->n++] = (int)N;
    for (int i = 0; i < KINDS; i++) {
        if (!from[i]) continue;
        CHECK(l->used + N <= l->room, "%zu losses, room for %zu", l->used + N, l->room);
        device_copy(t->dev, l->at->row + l->used, from[i], N * sizeof *from[i]);
        l->used += N;
    }
}
void losses_read(Trainer *t, double *square) {
    Losses *l = &t->losses;
    const real *from[KINDS], *row;
    if (!l->used) return;
    row = l->host->row;
    if (square) {
        device_read(t->dev, l->host, l->at, step_bytes(l->used));
        *square = l->host->square;
    } else { /* not written by any pass */
        device_read(t->dev, l->host->row, l->at->row, l->used * sizeof(real));
    }
    losses_rows_of(t, from);
    for (int k = 0; k < l->n; k++)
        for (int i = 0; i < KINDS; i++) {
            double *sum = dist_part(&t->dist, k) + part_of[i];
            if (!from[i]) continue;
            *sum = 0;
            for (int m = 0; m < l->rows[k]; m++) *sum += (double)row[m];
            row += l->rows[k];
        }
}
