#include "skip.h"

static double skip_score(const double *v, int n, double x) {
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += v[i] / n;
    for (int i = 0; i < n; i++) square += (v[i] - mean) * (v[i] - mean) / n;
    return x == mean ? 0 : (x - mean) / sqrt(square);
}

void skip_scores(const Skips *s, int window, double loss, double norm, double *loss_z, double *norm_z) {
    int from = s->n - window;
    *loss_z = *norm_z = 0;
    if (from < 0) return;
    *loss_z = skip_score(s->loss + from, window, loss);
    *norm_z = skip_score(s->norm + from, window, norm);
}

void skip_accepted(Skips *s, int window, double loss, double norm) {
    int keep = imin(s->n, window - 1), from = s->n - keep;
    memmove(s->loss, s->loss + from, (size_t)keep * sizeof *s->loss);
    memmove(s->norm, s->norm + from, (size_t)keep * sizeof *s->norm);
    s->loss[keep] = loss;
    s->norm[keep] = norm;
    s->n = keep + 1;
    s->row = 0;
}

void skip_left_out(Skips *s) {
    s->skipped++;
    s->row++;
}

void skip_forget(Skips *s) { s->n = s->row = 0; }
