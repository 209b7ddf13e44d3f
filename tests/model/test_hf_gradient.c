/* test_hf_gradient.c: gradients of a loss on models of transformers against those of PyTorch's autograd in float64,
 * which the goldens' gradients.safetensors holds under the names of the files (make_nemotron.py). */
#include "model/files/safetensors.h"
#include "tests/lib/dirs.h"

#ifdef KV_DOUBLE
enum { ROWS = 64 };
typedef struct {
    HfFiles files;
    const St *want;
    const char *dir;
    double worst;
    char where[300];
    int checked;
} Grads;
static void see_grad(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Grads *x = f->ctx;
    char name[192];
    Err e = {0};
    hf_files_name(&x->files, path, *t, name);
    if (flags & FIELD_BALANCE) return; /* chooses alone */
    const StEntry *s = st_find(x->want, name);
    cr_assert(s, "%s: no gradient of %s", x->dir, name);
    const size_t n = tensor_count(*t);
    real *want = xcalloc(n, sizeof *want);
    Tensor to = *t;
    to.p = want, to.dtype = REAL;
    cr_assert(st_read(x->want, s, to, &e), "%s", e.msg);
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    if (largest == 0) { /* an expert that nobody chose */
        cr_assert(strstr(name, ".experts."), "%s: nothing depends on %s", x->dir, name);
        for (size_t i = 0; i < n; i++) cr_assert(R(*t)[i] == 0, "%s: %s[%zu]: %g", x->dir, name, i, R(*t)[i]);
    }
    for (size_t i = 0; largest > 0 && i < n; i++) {
        const double off = fabs(R(*t)[i] - want[i]) / largest;
        if (off <= x->worst) continue;
        x->worst = off;
        snprintf(x->where, sizeof x->where, "%s: %s[%zu]: %.9g, autograd %.9g, largest %.3g", x->dir, name, i, R(*t)[i],
                 want[i], largest);
    }
    free(want);
    x->checked++;
}
/* The mean over all rows of -log p of the next token of each of B documents of T tokens. */
static void train_once(Model *m, const int *ids, int B, int T, Err *e) {
    int tok[ROWS], tgt[ROWS], of[ROWS], pos[ROWS], first[ROWS], off[ROWS], seq[ROWS];
    uint64_t id[ROWS];
    real g[ROWS], nll[ROWS];
    const int L = T - 1, N = B * L;
    Workspace work;
    for (int i = 0; i < N; i++) {
        of[i] = i / L, pos[i] = i % L, first[i] = i / L * L, g[i] = 1 / (real)N;
        tok[i] = ids[i / L * T + i % L], tgt[i] = ids[i / L * T + i % L + 1];
    }
    for (int b = 0; b <= B; b++) off[b] = b * L, seq[b] = b, id[b] = (uint64_t)b;
    Batch batch = {.B = B, .N = N, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .id = id};
    cr_assert(workspace_open(&work, m, e), "%s", e->msg);
    model_zero_grad(m);
    model_train(m, &work, &batch, tok, tgt, g, nll);
    workspace_close(&work);
}
static void check_grads(const char *name) {
    char *dir = xformat("tests/golden/families/%s", name), *golden = xformat("%s/golden.safetensors", dir),
         *path = xformat("%s/gradients.safetensors", dir);
    St ids, want;
    Device *dev;
    ModelCfg c;
    Model m;
    Err e = {0};
    int tok[ROWS];
    cr_assert(st_open(&ids, golden, &e) && st_open(&want, path, &e), "%s", e.msg);
    const StEntry *s = st_find(&ids, "input_ids");
    const int B = (int)s->shape[0], T = (int)s->shape[1];
    cr_assert(B * T <= ROWS);
    for (int i = 0; i < B * T; i++) tok[i] = s->p[8 * i];
    cr_assert(device_open(&dev, "cpu", 2, &e) && hf_config_read(dir, &c, &e), "%s", e.msg);
    cr_assert(model_open(&m, dev, &c, (ModelOpts){.train = true, .max_rows = ROWS, .max_samples = B, .poison = true},
                         &e),
              "%s", e.msg);
    cr_assert(hf_load(dir, &m, &e), "%s", e.msg);
    train_once(&m, tok, B, T, &e);
    Grads x = {.want = &want, .dir = name};
    hf_files_plan(&x.files, &c);
    Fields f = {.see = see_grad, .ctx = &x};
    model_fields(&m, &m.g, &f);
    printf("# %s: %d tensors, worst %.3g of the largest entry; %s\n", name, x.checked, x.worst, x.where);
    cr_expect(x.worst <= 1e-6, "%.3g: %s", x.worst, x.where);
    cr_assert(x.checked == want.n, "%d of %d", x.checked, want.n);
    hf_files_close(&x.files);
    model_close(&m);
    model_cfg_free(&c);
    device_close(dev);
    st_close(&ids), st_close(&want);
    free(dir), free(golden), free(path);
}
Test(hf_gradient, is_that_of_autograd) {
    check_grads("nemotron_h");
    check_grads("nemotron_h-experts");
}
#endif
