/* attend_backward.c: the gradients of attention over the rows of a pass, in the blocks of attend.c. cpu.c includes it
 * after attend.c. */
/* One lane of one sequence. One thread works on it and is the only writer of its dk, dv and of its heads' dq. */
typedef struct {
    Into dq;
    Tensor dout, q, o, lse;
    const Kv *kv;
    Kv *dkv;
    const real *kt, *vt;
    real *g, *dqb, *ds;           /* (QB,Dv) (QB,Dk) (QB,KB) */
    const Pair *kp, *vp, *kb;     /* panels: keys and values as pairs along D (turned), keys as pairs of rows */
    Pair *gp, *gb, *qb, *pb, *db; /* pairs along the row: g; pairs of rows: g, q, p = exp(s - lse), ds */
} Back;
static size_t back_pairs(int Dk, int Dv) { return (size_t)QB * (size_t)(Dv + Dv + Dk + KB + KB) / 2; }
static void back_place_pairs(Back *a, Pair *mem, int Dk, int Dv) {
    a->gp = mem;
    a->gb = a->gp + (size_t)QB * (size_t)Dv / 2;
    a->qb = a->gb + (size_t)QB * (size_t)Dv / 2;
    a->pb = a->qb + (size_t)QB * (size_t)Dk / 2;
    a->db = a->pb + (size_t)QB * KB / 2;
}

static void backward_keys(Block *k, const Back *a, const Batch *b, int h, int j, int n, int panel, const real *lse,
                          const real *delta) {
    int lanes = a->kv->s.lanes, Dk = k->Dk, Dv = k->Dv;
    size_t ldk = (size_t)lanes * (size_t)Dk, ldv = (size_t)lanes * (size_t)Dv, rows = (size_t)j;
    size_t pk = ((size_t)panel * (size_t)lanes + (size_t)h) * KB, kat = rows * ldk + (size_t)h * (size_t)Dk,
           vat = rows * ldv + (size_t)h * (size_t)Dv;
    real bias_mem[KB], dbias[KB] = {0};
    const real *bias = bias_of(bias_mem, a->kv, h, j, n);
    int wide = in_vectors(n);
    if (k->qp) {
        pairs_mm(k->tiles, k->s, KB, k->qp, (size_t)Dk / 2, 1, a->kp + pk * (size_t)Dk / 2, KB, k->n, Dk / 2, wide,
                 false);
        pairs_mm(k->tiles, a->ds, KB, a->gp, (size_t)Dv / 2, 1, a->vp + pk * (size_t)Dv / 2, KB, k->n, Dv / 2, wide,
                 false);
    } else {
        memset(k->s, 0, (size_t)k->n * KB * sizeof(real));
        memset(a->ds, 0, (size_t)k->n * KB * sizeof(real));
        tile_mm(k->s, KB, k->q, (size_t)Dk, 1, a->kt + pk * (size_t)Dk, KB, k->n, Dk, wide);
        tile_mm(a->ds, KB, a->g, (size_t)Dv, 1, a->vt + pk * (size_t)Dv, KB, k->n, Dv, wide);
    }
    if (k->qp)
        soften_back(k, a->ds, a->pb, a->db, b->pos + j, bias, dbias, j, n, lse, delta);
    else
        rows_back(k, a->ds, b->pos + j, bias, dbias, j, n, lse, delta);
    for (int t = 0; bias && t < n; t++) R(a->dkv->bias)[(size_t)(j + t) * (size_t)lanes + (size_t)h] += dbias[t];
    if (k->qp) { /* both are 0 past n */
        int half = (k->n + 1) / 2, keys = (n + 1) / 2;
        pairs_mm(k->tiles, R(a->dkv->v) + vat, ldv, a->pb, 1, KB, a->gb, (size_t)Dv, n, half, Dv, true);
        pairs_mm(k->tiles, R(a->dkv->k) + kat, ldk, a->db, 1, KB, a->qb, (size_t)Dk, n, half, Dk, true);
        pairs_mm(k->tiles, a->dqb, (size_t)Dk, k->sp, KB / 2, 1, a->kb + pk * (size_t)Dk / 2, (size_t)Dk, k->n, keys,
                 Dk, true);
        return;
    }
    tile_mm(R(a->dkv->v) + vat, ldv, k->s, 1, KB, a->g, (size_t)Dv, n, k->n, Dv);
    tile_mm(R(a->dkv->k) + kat, ldk, a->ds, 1, KB, k->q, (size_t)Dk, n, k->n, Dk); /* q already has the scale */
    tile_mm(a->dqb, (size_t)Dk, a->ds, KB, 1, R(a->kv->k) + kat, ldk, k->n, n, Dk);
}

static void backward_lane(Block *k, const Back *a, const Batch *b, const int *idx, int s, int h) {
    int group = k->spec.heads / a->kv->s.lanes, m0 = b->off[s], entries = (b->off[s + 1] - m0) * group, Dk = k->Dk,
        Dv = k->Dv;
    real lse[QB], delta[QB];
    for (int e0 = 0; e0 < entries; e0 += QB) {
        block_load(k, imin(QB, entries - e0), e0, m0, h, group, a->q, a->o, a->lse, false);
        Span span = block_rows(k, b, s, idx, e0, group, m0);
        memset(a->dqb, 0, (size_t)k->n * (size_t)Dk * sizeof(real));
        for (int i = 0; i < k->n; i++) {
            size_t at = entry_at(m0, h, group, k->spec.heads, e0 + i);
            get_row(a->g + i * Dv, a->dout, at * (size_t)Dv, Dv);
            get_row(k->o + i * Dv, a->o, at * (size_t)Dv, Dv);
            delta[i] = dot(a->g + i * Dv, k->o + i * Dv, Dv);
            lse[i] = R(a->lse)[at];
        }
        if (k->qp) {
            pairs_along(a->gp, a->g, k->n, Dv);
            pairs_below(a->gb, rows_wide(a->g, (size_t)Dv), k->n, Dv);
            pairs_below(a->qb, rows_wide(k->q, (size_t)Dk), k->n, Dk);
        }
        for (int j = m0, p = panels_of(b, s); j < span.high; j += KB, p++) {
            int n = keys_seen(span, j);
            if (span_meets(span, j, j + n)) backward_keys(k, a, b, h, j, n, p, lse, delta);
        }
        for (int i = 0; i < k->n; i++) {
            size_t at = entry_at(m0, h, group, k->spec.heads, e0 + i) * (size_t)Dk;
            real *dq = a->dqb + i * Dk, *old = k->q + i * Dk; /* the keys are done, so q's memory is free */
            for (int c = 0; c < Dk; c++) dq[c] *= k->spec.scale;
            if (!a->dq.overwrite) {
                get_row(old, a->dq.t, at, Dk);
                for (int c = 0; c < Dk; c++) dq[c] += old[c];
            }
            put_row(a->dq.t, at, dq, Dk);
        }
    }
}

/* A gradient to add to in f32; it begins with the values of the BF16 tensor. */
static Tensor sum_in_reals(Run *r, const char *name, Into d) {
    if (d.t.dtype == BF16) d.t = d.overwrite ? scratch_tensor(r, name, REAL, d.t.rank, d.t.n) : in_reals(r, name, d.t);
    begin_sum(r, d);
    return d.t;
}
static void attend_backward(Run *r, Into dq, const KvInto *drows, Tensor dout, Tensor q, const Kv *rows, AttnSpec spec,
                            Tensor o, Tensor lse) {
    const Batch *b = r->batch;
    int lanes = rows->s.lanes, Dk = rows->s.kdim, Dv = rows->s.vdim;
    check_attend_backward(r, &rows->s, spec, q, o);
    Mark mark = arena_mark(r->scratch);
    const Kv wide = kv_in_reals(r, rows), *kv = &wide;
    Kv sums = drows->kv, *dkv = &sums;
    sums.k = sum_in_reals(r, "keys' gradient in f32", keys_into(drows));
    sums.v = sum_in_reals(r, "values' gradient in f32", values_into(drows));
    bool pairs = by_pairs(r, spec, Dk, Dv);
    size_t extra = (size_t)QB * (size_t)(Dk + Dv + KB), numbers = block_numbers(Dk, Dv) + extra;
    Tensor keys = rows_of(r, lanes, Dk), values = rows_of(r, lanes, Dv), kt = ABSENT, vt = ABSENT;
    Pair *kp = NULL, *vp = NULL, *kb = NULL;
    if (pairs) {
        kp = pair_panels(r, "attend keys", keys), vp = pair_panels(r, "attend values", values);
        kb = pair_panels(r, "attend keys", keys);
    } else {
        kt = panels(r, "attend keys", keys), vt = panels(r, "attend values", values);
    }
    Tensor mem =
        SCRATCH(r, "attend block", r->dev->threads, (int)(numbers + pairs * (block_pairs(Dk) + back_pairs(Dk, Dv))));
    if (!measuring(r)) {
        if (pairs) {
            pack_pairs(r, kp, kb, kv->k, NULL, 0), pack_pairs(r, vp, NULL, kv->v, NULL, 0);
        } else {
            pack_all(r, R(kt), kv->k, NULL, 0);
            pack_all(r, R(vt), kv->v, NULL, 0);
        }
#pragma omp parallel for collapse(2) schedule(dynamic) \
    num_threads(r->dev->threads) if ((long)b->N * spec.heads * Dk * 16 > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < lanes; h++) {
                Block k;
                real *m = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1];
                Back a = {.dq = dq, .dout = dout, .q = q, .o = o, .lse = lse, .kv = kv, .dkv = dkv};
                a.kt = kt.p, a.vt = vt.p, a.kp = kp, a.vp = vp, a.kb = kb;
                a.g = m + block_numbers(Dk, Dv);
                a.dqb = a.g + (size_t)QB * (size_t)Dv;
                a.ds = a.dqb + (size_t)QB * (size_t)Dk;
                block_place(&k, m, Dk, Dv, spec);
                if (pairs) {
                    block_place_pairs(&k, r->dev->pair_product, m + numbers);
                    back_place_pairs(&a, (Pair *)(m + numbers + block_pairs(Dk)), Dk, Dv);
                }
                k.delay = kv->s.delay;
                backward_lane(&k, &a, b, r->out.idx, s, h);
            }
    }
    if (sums.k.dtype != drows->kv.k.dtype) out_of_reals(r, drows->kv.k, sums.k);
    if (sums.v.dtype != drows->kv.v.dtype) out_of_reals(r, drows->kv.v, sums.v);
    arena_release(r->scratch, mark);
}
