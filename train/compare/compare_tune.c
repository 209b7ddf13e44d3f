/* compare_tune.c: which learning rates a row tries, one after the other: those of its grid, then, while the best is at
 * an edge, the next one beyond that edge. */
#include "compare.h"

enum { RATE_DIGITS = 3 }; /* of a rate beyond the grid: folders are named after it */

bool compare_tunes(const Compare *c, const CompareRow *row) {
    return !row->marks.n && (row->lrs.n > 1 || c->widen > 0);
}

/* The smallest rate of the grid, or the largest, and its ratio to the one next to it; 2 if it is the only one. */
static double grid_edge(const Numbers *grid, bool high, double *ratio) {
    double edge = high ? -INFINITY : INFINITY, next = edge;
    for (int i = 0; i < grid->n; i++) {
        double v = grid->v[i];
        bool beyond = high ? v > edge : v < edge, near = high ? v > next : v < next;
        if (beyond)
            next = edge, edge = v;
        else if (near)
            next = v;
    }
    *ratio = grid->n < 2 ? 2 : high ? edge / next : next / edge;
    return edge;
}

/* The rate beyond `from`, short if it can be; 0 if it is outside the range of `lrs`. */
static double rate_beyond(double from, bool high, double ratio) {
    double v = high ? from * ratio : from / ratio;
    char text[32];
    snprintf(text, sizeof text, "%.*g", RATE_DIGITS, v);
    double few = strtod(text, NULL);
    if (high ? few > from : few < from) v = few;
    return v >= LR_MIN && v <= LR_MAX ? v : 0;
}

double compare_widen(const Numbers *grid, int widen, int n, const double *lr, const double *loss, bool *edge) {
    double low, high, least = INFINITY, v = 0;
    int best = 0, below = 0, above = 0;
    CHECK(n >= grid->n, "%d of %d rates", n, grid->n);
    double low_ratio, high_ratio;
    low = grid_edge(grid, false, &low_ratio), high = grid_edge(grid, true, &high_ratio);
    for (int i = 0; i < n; i++) {
        below += lr[i]<low, above += lr[i]> high;
        if (loss[i] < least) least = loss[i], best = i; /* false for NaN */
    }
    if (best == 0 && below < widen) v = rate_beyond(lr[0], false, low_ratio);
    if (!(v > 0) && best == n - 1 && above < widen) v = rate_beyond(lr[n - 1], true, high_ratio);
    *edge = !(v > 0) && (best == 0 || best == n - 1);
    return v;
}

/* Keeps r->tune in the order of the rates. */
static void tune_insert(RowResult *r, const RunRecord *x) {
    int at = r->ntuned++;
    for (; at > 0 && r->tune[at - 1].lr > x->lr; at--) r->tune[at] = r->tune[at - 1];
    r->tune[at] = *x;
}

bool compare_tuning(const Compare *c, const CompareRow *row, TuneLook *look, void *ctx, RowResult *r, Err *e) {
    double lr[RATES_MAX], loss[RATES_MAX], least = INFINITY;
    r->ntuned = 0, r->next = r->lr = 0, r->edge = false;
    for (int k = 0; k < row->lrs.n; k++) {
        RunRecord x;
        if (!look(ctx, row->lrs.v[k], &x, e)) return false;
        if (x.state < RUN_FINISHED && !(r->next > 0)) r->next = row->lrs.v[k];
        tune_insert(r, &x);
    }
    while (!(r->next > 0)) {
        RunRecord x;
        for (int k = 0; k < r->ntuned; k++)
            lr[k] = r->tune[k].lr, loss[k] = r->tune[k].state == RUN_FINISHED ? r->tune[k].val_loss : NAN;
        double beyond = compare_widen(&row->lrs, c->widen, r->ntuned, lr, loss, &r->edge);
        if (!(beyond > 0)) break;
        if (!look(ctx, beyond, &x, e)) return false;
        if (x.state < RUN_FINISHED) r->next = beyond;
        tune_insert(r, &x);
    }
    r->tuned = !(r->next > 0);
    for (int k = 0; r->tuned && k < r->ntuned; k++)
        if (r->tune[k].state == RUN_FINISHED && r->tune[k].val_loss < least)
            least = r->tune[k].val_loss, r->lr = r->tune[k].lr;
    return true;
}

int compare_tuning_left(const Compare *c, const CompareRow *row, const RowResult *r) {
    if (!compare_tunes(c, row) || r->tuned) return 0;
    int left = row->lrs.n;
    for (int k = 0; k < row->lrs.n; k++)
        for (int i = 0; i < r->ntuned; i++) left -= r->tune[i].lr == row->lrs.v[k] && r->tune[i].state >= RUN_FINISHED;
    if (!left) return 1;
    double ratio, low = grid_edge(&row->lrs, false, &ratio), high;
    const bool lower = c->widen && rate_beyond(low, false, ratio) > 0;
    high = grid_edge(&row->lrs, true, &ratio);
    const bool higher = c->widen && rate_beyond(high, true, ratio) > 0;
    /* one rate has both edges; of two the better one is at an edge */
    return left + (row->lrs.n == 1 ? lower + higher : row->lrs.n == 2 && lower && higher);
}
