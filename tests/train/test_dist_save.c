/* Checkpoints of several ranks: what one number of ranks wrote another goes on from, and the files hold the same. */
#include "tests/lib/dist.h"
#include "train/save/shards.h"

static char *checkpoint(const char *run, int step) { return xformat("%s/step-%06d", run, step); }
static void same_file(const char *a, const char *b, const char *name) {
    size_t n, m;
    char *x = xformat("%s/%s", a, name), *y = xformat("%s/%s", b, name), *p = check_read(x, &n), *q = check_read(y, &m);
    cr_assert_eq(n, m, "%s: %zu bytes, expected %zu", x, n, m);
    CHECK_BYTES(name, p, q, n);
    free(x), free(y), free(p), free(q);
}

/* A checkpoint's moments as one row of bytes, whatever files they are in: tensor by tensor, range by range. */
typedef struct {
    char key[192];
    size_t from, n;
    const StEntry *s;
} Stretch;
static int by_key(const void *a, const void *b) {
    const Stretch *x = a, *y = b;
    int c = strcmp(x->key, y->key);
    return c ? c : x->from < y->from ? -1 : 1;
}
static char *moments(const char *dir, int files, size_t *n) {
    char *file[DIST_RANKS], *out = NULL;
    for (int k = 0; k < files; k++)
        file[k] = files == 1 ? xformat("%s/trainer/optimizer.safetensors", dir)
                             : xformat("%s/trainer/optimizer-%05d-of-%05d.safetensors", dir, k + 1, files);
    St st;
    Err e = {0};
    cr_assert(st_open_files(&st, dir, file, files, &e), "%s", e.msg);
    Stretch *p = xcalloc((size_t)st.n, sizeof *p);
    for (int i = 0; i < st.n; i++) {
        size_t to = 0;
        p[i].s = &st.entry[i];
        if (sscanf(p[i].s->name, "%191[^[][%zu:%zu]", p[i].key, &p[i].from, &to) == 3) p[i].n = to - p[i].from;
    }
    qsort(p, (size_t)st.n, sizeof *p, by_key);
    FILE *f = open_memstream(&out, n);
    for (int i = 0; i < st.n; i++) {
        if (!i || strcmp(p[i].key, p[i - 1].key)) fprintf(f, "%s %s\n", p[i].key, p[i].s->dtype);
        fwrite(p[i].s->p, 1, p[i].s->bytes, f);
    }
    fclose(f);
    free(p);
    st_close(&st);
    for (int k = 0; k < files; k++) free(file[k]);
    return out;
}
static void same_moments(const char *a, int files_a, const char *b, int files_b) {
    size_t n, m;
    char *x = moments(a, files_a, &n), *y = moments(b, files_b, &m);
    cr_assert_eq(n, m, "%s: %zu bytes of moments, %s has %zu", a, n, b, m);
    CHECK_BYTES("moments", x, y, n);
    free(x), free(y);
}

/* Saved by so many ranks at a stage, gone on with by others. */
ParameterizedTestParameters(dist_save, saved_here_resumed_there) {
    static int which[] = {0, 1, 2, 3, 4, 5};
    return cr_make_param_array(int, which, 6);
}
ParameterizedTest(int *which, dist_save, saved_here_resumed_there) {
    static const struct {
        int W, stage, to, to_stage;
        const char *config, *is_bf16;
    } cases[] = {{4, 1, 3, 1, "gqa", "f32"},  {2, 2, 8, 2, "muon", "bf16"}, {3, 1, 3, 2, "mamba2", "f32"},
                 {4, 2, 1, 0, "muon", "f32"}, {1, 0, 4, 2, "gqa", "bf16"},  {2, 0, 4, 1, "moe", "f32"}};
    enum { BEFORE = 6, AFTER = 20 };
    char config[64], here[32], there[32], is_bf16[40];
    int k = *which, W = cases[k].W, to = cases[k].to;
    snprintf(config, sizeof config, "configs/tiny-%s.yaml", cases[k].config);
    snprintf(here, sizeof here, "dist.stage=%d", cases[k].stage);
    snprintf(there, sizeof there, "dist.stage=%d", cases[k].to_stage);
    snprintf(is_bf16, sizeof is_bf16, "optim.state_dtype=%s", cases[k].is_bf16);
    char *run = check_path("run"), *back = check_path("back"), *again = check_path("again"),
         *saved = checkpoint(run, BEFORE), *resaved = checkpoint(back, BEFORE);
    DistJob j = {.config = config,
                 .steps = BEFORE,
                 .over = {"train.batch=24", "train.micro_batch=1", "train.dropout=0.1", "train.steps=60", is_bf16, here,
                          k % 2 ? "train.async_save=true" : NULL},
                 .to = run};
    DistRun first[DIST_RANKS], on[DIST_RANKS], other[DIST_RANKS];
    dist_train(&j, W, first);
    /* Read and written by the others, not a bit changes: weights, moments, and where the run stands. */
    j.over[5] = there, j.from = saved, j.to = back, j.steps = 0;
    dist_train(&j, to, on);
    CHECK_BYTES("weights after the load", on[to - 1].w, first[0].w, first[0].n * sizeof(real));
    same_file(resaved, saved, "model.safetensors");
    same_moments(resaved, cases[k].to_stage ? to : 1, saved, cases[k].stage ? W : 1);
    same_file(resaved, saved, "trainer/state.json");
    dist_free(to, on);
    /* The next steps, here and there. */
    j.over[5] = here, j.to = NULL, j.steps = AFTER;
    dist_train(&j, W, on);
    j.over[5] = there;
    dist_train(&j, to, other);
    for (int i = 0; i < AFTER; i++) CHECK_CLOSE("loss after the change", &other[0].loss[i], &on[0].loss[i], 1, 1e-5);
    cr_assert_lt(fabs(on[0].loss[0] - on[0].loss[1]), 1);
    dist_free(W, first), dist_free(W, on), dist_free(to, other);
    free(run), free(back), free(again), free(saved), free(resaved);
}

/* The same files, whoever writes. */
Test(dist_save, a_checkpoint_does_not_know_its_ranks) {
    char *alone = check_path("alone"), *want = checkpoint(alone, 5);
    DistJob j = {.config = "configs/tiny-muon.yaml",
                 .steps = 5,
                 .over = {"train.batch=4", "train.micro_batch=1", "optim.state_dtype=bf16", NULL},
                 .to = alone};
    DistRun one[1], all[4];
    dist_train(&j, 1, one);
    dist_free(1, one);
    for (int k = 0; k < 4; k++) {
        static const char *const stage[] = {"dist.stage=0", "dist.stage=1", "dist.stage=2", "dist.stage=2"};
        char name[16];
        snprintf(name, sizeof name, "run-%d", k);
        char *run = check_path(name), *got = checkpoint(run, 5);
        j.over[3] = stage[k], j.over[4] = k == 3 ? "train.async_save=true" : NULL, j.to = run;
        dist_train(&j, 4, all);
        dist_free(4, all);
        same_file(got, want, "model.safetensors");
        same_moments(got, k ? 4 : 1, want, 1);
        same_file(got, want, "trainer/state.json");
        free(run), free(got);
    }
    free(alone), free(want);
}
