/* workspace.c: what passes over a model write: its regions, measured by the passes themselves. */
#include "inside.h"
#include "ops/host.h"

bool workspace_scratch(const Model *m, Workspace *ws, size_t bytes, size_t host, Err *e) {
    const Memory *home = device_memory(ws->dev, false);
    if (!arena_open_at(&ws->scratch, home, "scratch", bytes, m->opts.poison, e)) return false;
    return !device_apart(ws->dev) || arena_open(&ws->host, "scratch of the host", host, m->opts.poison, e);
}

/* The sizes of `keep` and `scratch` are those of the passes themselves, run without memory. */
static void measure_passes(const Model *m, Workspace *ws) {
    int N = m->opts.max_rows, B = imin(m->opts.max_samples, N);
    if (!N) return;
    int *all = xcalloc((size_t)N, sizeof *all);
    Batch b = {.B = B, .N = N, .off = all, .seq = all, .of = all, .pos = all, .first = all};
    Run r = workspace_run(ws);
    if (m->opts.measure) m->opts.measure(&r, m->opts.measure_ctx);
    if (m->opts.train) model_train_with(m, ws, &b, all, all, NULL, NULL, m->opts.loss);
    if (m->opts.states)
        model_states(m, ws, &b, all, TENSOR(NULL, REAL, N, m->cfg.d_model), NULL, NULL);
    else
        model_loss(m, ws, &b, all, all, NULL);
    free(all);
}

bool workspace_able(const Model *m, Workspace *ws, Err *e) {
    int l;
    const char *what = device_lack(ws->dev, &l);
    if (!what) return true;
    const Layer *y = l >= 0 && l < m->L ? &m->layer[l] : NULL;
    const char *on = device_ops(ws->dev)->name;
    if (!y) return err_input(e, "device %s does not have %s yet, which this model needs; use --device cpu", on, what);
    return err_input(
        e, "device %s does not have %s yet, which layer %d needs (model.kinds.%s: mixer %s, ffn %s); use --device cpu",
        on, what, l, y->kind->name, y->kind->mixer->name, y->ffn->ffn->name);
}

static void workspace_begin(Workspace *ws, const Model *m, Device *dev, int rows) {
    const size_t L = (size_t)m->L;
    *ws = (Workspace){.dev = dev,
                      .L = m->L,
                      .keep.name = "saved activations",
                      .scratch.name = "scratch",
                      .host.name = "scratch of the host"};
    ws->act = xcalloc(L, sizeof *ws->act);
    ws->kv = xcalloc(L, sizeof *ws->kv);
    ws->dkv = xcalloc(L, sizeof *ws->dkv);
    ws->inputs = xcalloc(L, sizeof *ws->inputs);
    ws->probe = xcalloc(L, sizeof *ws->probe);
    ws->idx = xcalloc((size_t)imax(1, rows), sizeof *ws->idx);
    for (int i = 0; i < rows; i++) ws->idx[i] = i;
    for (int l = 0; l < m->L; l++) {
        ws->act[l].mix = xcalloc(1, m->layer[l].kind->mixer->s_size);
        ws->act[l].ffn = xcalloc(1, m->layer[l].ffn->ffn->s_size);
    }
}
bool workspace_open(Workspace *ws, const Model *m, Err *e) {
    workspace_begin(ws, m, m->dev, m->opts.max_rows);
    measure_passes(m, ws);
    if (!workspace_able(m, ws, e)) goto fail;
    if (m->opts.dry) return true;
    if (arena_open_at(&ws->keep, device_memory(m->dev, false), "saved activations", ws->keep.peak, m->opts.poison, e) &&
        workspace_scratch(m, ws, ws->scratch.peak, ws->host.peak, e))
        return true;
fail:
    workspace_close(ws);
    return false;
}
void workspace_empty(Workspace *ws, const Model *m, Device *dev) {
    CHECK(dev == m->dev || !(device_apart(dev) || device_apart(m->dev)), "workspaces of a GPU share its device");
    workspace_begin(ws, m, dev, 0);
}
void workspace_close(Workspace *ws) {
    arena_close(&ws->keep);
    arena_close(&ws->scratch);
    arena_close(&ws->host);
    for (int l = 0; l < ws->L; l++) {
        free(ws->act[l].mix);
        free(ws->act[l].ffn);
    }
    free(ws->act);
    free(ws->kv);
    free(ws->dkv);
    free(ws->inputs);
    free(ws->probe);
    free(ws->asked);
    free(ws->looked);
    free(ws->target);
    free(ws->idx);
    *ws = (Workspace){0};
}
