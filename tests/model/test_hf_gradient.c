/* test_hf_gradient.c: gradients of a loss on the golden models of tests/golden/families against those of PyTorch's
 * autograd in float64, which lie beside each as its weights do (make_gradients.py). */
#include "model/files/safetensors.h"
#include "tests/lib/dirs.h"
#include <dirent.h>

#define FAMILIES "tests/golden/families/"
enum { ROWS = 64 };
typedef struct {
    const HfFiles *files; /* of the gradients */
    const char *dir;
    double worst, off, most; /* worst: of its tensor's largest entry; off, most: of all entries */
    char where[300];
    int checked;
    bool *seen; /* (st.n) */
} Grads;
static void see_grad(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Grads *x = f->ctx;
    StPlace place;
    Err e = {0};
    if (flags & FIELD_BALANCE) return; /* chooses alone */
    const StEntry *s = hf_files_find(x->files, path, *t, &place);
    cr_assert(s, "%s: no gradient of %s", x->dir, path);
    const size_t n = tensor_count(*t);
    real *want = xcalloc(n, sizeof *want);
    Tensor to = *t;
    to.p = want, to.dtype = REAL;
    cr_assert(st_read_part(&x->files->st, s, to, place, &e), "%s", e.msg);
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    if (largest == 0) { /* an expert that nobody chose */
        cr_assert(strstr(s->name, ".experts."), "%s: nothing depends on %s", x->dir, s->name);
        for (size_t i = 0; i < n; i++) cr_assert(R(*t)[i] == 0, "%s: %s[%zu]: %g", x->dir, path, i, R(*t)[i]);
    }
    for (size_t i = 0; largest > 0 && i < n; i++) {
        /* Scores with a bias of keys alone are all moved alike: its gradient is what rounding leaves of 0. */
        const double apart = fabs((double)R(*t)[i] - (double)want[i]), off = apart / fmax(largest, 1e-9);
        x->off = fmax(x->off, apart), x->most = fmax(x->most, largest);
        if (off <= x->worst) continue;
        x->worst = off;
        snprintf(x->where, sizeof x->where, "%s: %s[%zu]: %.9g, autograd %.9g, largest %.3g", x->dir, s->name, i,
                 R(*t)[i], want[i], largest);
    }
    free(want);
    x->seen[s - x->files->st.entry] = true;
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
static double check_grads(const char *name) {
    char *dir = xformat(FAMILIES "%s", name), *golden = xformat("%s/golden.safetensors", dir),
         *path = xformat("%s/gradients.safetensors", dir);
    St ids, want, own;
    Device *dev;
    ModelCfg c;
    Model m;
    HfFiles files;
    Err e = {0};
    int tok[ROWS];
    cr_assert(st_open(&ids, golden, &e) && st_open(&want, path, &e), "%s", e.msg);
    const StEntry *s = st_find(&ids, "input_ids");
    const int B = (int)s->shape[0], T = (int)s->shape[1];
    cr_assert(B * T <= ROWS);
    for (int i = 0; i < B * T; i++) tok[i] = s->p[8 * i];
    cr_assert(device_open(&dev, "cpu", 2, &e) && hf_config_read(dir, &c, &e), "%s", e.msg);
    const ModelOpts opts = {.train = true, .max_rows = ROWS, .max_samples = B, .poison = true};
    cr_assert(model_open(&m, dev, &c, opts, &e) && hf_load(dir, &m, &e), "%s", e.msg);
    cr_assert(hf_files_open(&files, dir, &c, &e), "%s", e.msg);
    train_once(&m, tok, B, T, &e);
    own = files.st, files.st = want; /* under the names of the model's files */
    Grads x = {.files = &files, .dir = name, .seen = xcalloc((size_t)want.n, 1)};
    Fields f = {.see = see_grad, .ctx = &x};
    model_fields(&m, &m.g, &f);
    for (int i = 0; i < want.n; i++) cr_assert(x.seen[i], "%s: %s has no field", name, want.entry[i].name);
    files.st = own;
    printf("# %s: %d fields, worst %.3g of the largest entry; %s\n", name, x.checked, x.worst, x.where);
    if (REAL == F64) cr_expect(x.worst <= 1e-6, "%.3g: %s", x.worst, x.where);
    /* What is stored in float64, and sums in f32, are judged by the largest entry of all. */
    const double bound = REAL == F32 ? 2e-5 : !strcmp(want.entry[0].dtype, "F64") ? 1e-12 : INFINITY;
    cr_expect(x.off <= bound * x.most && x.most > 0, "%s: %.3g of %.3g", name, x.off, x.most);
    hf_files_close(&files);
    model_close(&m);
    model_cfg_free(&c);
    device_close(dev);
    st_close(&ids), st_close(&want);
    free(x.seen), free(dir), free(golden), free(path);
    return x.worst;
}
/* Whose gradients are stored in float64. */
Test(hf_gradient, to_the_last_digits) { check_grads("gpt_oss"); }
#ifdef KV_DOUBLE
static bool ends(const char *name, const char *with) {
    const size_t n = strlen(name), w = strlen(with);
    return n >= w && !strcmp(name + n - w, with);
}
Test(hf_gradient, is_that_of_autograd) {
    DIR *all = opendir(FAMILIES);
    int checked = 0, quantised = 0;
    double worst = 0;
    cr_assert(all);
    for (struct dirent *d; (d = readdir(all));) {
        if (d->d_name[0] == '.' || ends(d->d_name, ".json")) continue;
        if (ends(d->d_name, "-fp8") || ends(d->d_name, "-mxfp4")) {
            quantised++;
            continue;
        }
        worst = fmax(worst, check_grads(d->d_name));
        checked++;
    }
    closedir(all);
    printf("# %d models, worst %.3g of a tensor's largest entry\n", checked, worst);
    cr_assert(checked >= 66 && quantised == 3, "%d models, %d quantised", checked, quantised);
}
#endif
