#include "compression.h"

void compression_begin(Compression *c, const CompressionCfg *cfg, double progress, int B) {
    *c = (Compression){0};
    if (!cfg) return;
    double target = cfg->ramp ? 1 + (cfg->target - 1) * progress : cfg->target;
    c->wanted = 1 - 1 / target;
    c->weight = cfg->weight / B;
    c->both = cfg->exact && cfg->target > 1;
}

void compression_stat(void *ctx, Tensor stat, Tensor dstat) {
    Compression *c = ctx;
    for (int b = 0; b < stat.n[0]; b++) {
        const real *s = R(stat) + ((size_t)b * STATS + STAT_MERGED) * 2;
        double sum = (double)s[0], count = (double)s[1];
        if (!(count > 0)) continue;
        c->sum += sum;
        c->count += count;
        double lacks = c->wanted - sum / count, x = fabs(lacks), near = c->both ? COMPRESSION_NEAR : 0;
        if (!present(dstat) || (!c->both && lacks <= 0)) continue;
        c->loss += c->weight * (x < near ? x * x / (2 * near) : x - near / 2);
        double force = x < near ? lacks / near : copysign(1, lacks);
        R(dstat)[(size_t)b * STATS + STAT_MERGED] = (real)(-c->weight * force / count);
    }
}

bool compression_achieved(const Compression *c, double *cr) {
    if (!(c->count > 0)) return false;
    *cr = c->count > c->sum ? c->count / (c->count - c->sum) : INFINITY;
    return true;
}

bool compression_check(const Model *m, const CompressionCfg *cfg, Err *e) {
    if (cfg->target <= 1) return true;
    for (int l = 0; l < m->L; l++) {
        const Mixer *x = m->layer[l].kind->mixer;
        if (x->reports && x->reports(m->layer[l].cfg)) return true;
    }
    return err_input(
        e, "train.compression.target: %g, but no layer of this model merges rows (%s); use a mixer that does, or set 1",
        cfg->target, m->layer[0].kind->mixer->name);
}
