/* speed.c: what is measured once results are right: ops, the choice of algorithms for products, training and decoding,
 * and peers where they are installed. Every figure is the program's own JSON, kept as it is; a floor by paper beside
 * the ops is an estimate from public peaks of one H100 SXM, whatever the device: 3.35 TB/s, 66.9 TFLOP/s of f32
 * arithmetic. */
#include <unistd.h>
#include "check.h"

static const double paper_bytes = 3.35e12, paper_flops = 66.9e12;
static void floors(json_t *list) {
    json_t *x;
    size_t i;
    json_array_foreach(list, i, x) {
        double b = json_number_value(json_object_get(x, "bytes")) / paper_bytes,
               f = json_number_value(json_object_get(x, "flops")) / paper_flops;
        json_object_set_new(x, "floor_estimate_s", json_real(fmax(b, f)));
        json_object_set_new(x, "floor_bound", json_string(b >= f ? "bytes" : "flops"));
    }
}
/* The program's JSON as the case's data. */
static void measured(Check *c, const char *name, double limit, const char *const argv[]) {
    if (!case_begin(c, name)) return;
    Child r = child_run(c, case_seconds(c, limit), argv);
    if (program_ran(c, name, &r)) {
        json_t *j = child_json(&r);
        floors(json_object_get(j, "elementwise")), floors(json_object_get(j, "heavy"));
        if (j)
            case_end(c, CASE_OK, j, "%s", "");
        else
            case_end(c, CASE_FAILED, NULL, "no JSON: %.100s", r.out);
    }
    child_free(&r);
}
#define MEASURED(c, name, limit, ...) measured(c, name, limit, (const char *const[]){__VA_ARGS__, NULL})

void part_ops(Check *c) {
    const char *p = c->program;
    if (c->quick) {
        MEASURED(c, "ops", 60, p, "bench", "ops", "--device", "cuda", "--json", "--rows", "8", "-s", "0.01");
        return;
    }
    MEASURED(c, "ops", 200, p, "bench", "ops", "--device", "cuda", "--json", "-s", "1");
    MEASURED(c, "recurrences", 200, p, "bench", "recur", "--device", "cuda", "--json", "-s", "0.5");
    MEASURED(c, "ops again", 200, p, "bench", "ops", "--device", "cuda", "--json", "-s", "1"); /* the spread */
}

/* Attention by cuDNN: errors beside long double, as our own kernels are held to; then the time of both, in turn. */
void part_cudnn(Check *c) {
    static const char *const whose[] = {"own", "cudnn", "cudnn_unordered"};
    Library found[LIBRARIES];
    const char *why = NULL;
    libraries_find(c, found);
    for (int i = 0; i < LIBRARIES; i++) {
        if (!strcmp(found[i].name, "cuDNN") && !found[i].at) why = "libcudnn.so.9 is not found";
        free(found[i].at);
    }
    if (c->quick) why = NULL; /* the emulation brings its own */
    suite_run(c, "attention and gradients",
              c->quick ? "cuda_bf16/attention_by_cudnn" : "cuda_bf16/@(attention_by_cudnn|gradients_by_cudnn)",
              c->quick ? 100 : 200);
    for (int i = 0; i < 3; i++) {
        char name[2][64];
        const char *p = c->program, *w = whose[i], *s = c->quick ? "0.01" : "1";
        snprintf(name[0], sizeof name[0], "ops in bf16, attention: %s", w);
        snprintf(name[1], sizeof name[1], "train 124m in bf16, attention: %s", w);
        if (c->quick && i != 1) continue;
        for (int k = 0; why && i && k < 2; k++)
            if (case_begin(c, name[k])) case_end(c, CASE_SKIPPED, NULL, "%s", why);
        if (why && i) continue;
        MEASURED(c, name[0], 150, p, "bench", "ops", "--device", "cuda", "--json", "--dtype", "bf16", "--attention", w,
                 "-s", s, "--rows", c->quick ? "8" : "16384");
        if (!c->quick)
            MEASURED(c, name[1], 120, p, "bench", "train", "configs/124m.yaml", "--device", "cuda", "--json", "--dtype",
                     "bf16", "--attention", w, "-s", "5");
    }
}

static const char *const small[] = {
    "model: {d_model: 16, layers: 1, kinds: {full: {mixer: gqa, heads: 2, head_dim: 8}},\n",
    "        ffn: {kind: swiglu, hidden: 24}, vocab: 32}\ndata: {seq_len: 8}\n", "train: {micro_batch: 1}\n"};
static char *config_of(const Check *c, const char *name) {
    if (!c->quick) return xformat("configs/%s", name);
    char *path = xformat("%s/small.yaml", c->out);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 3; i++) fputs(small[i], f);
    if (f) fclose(f);
    return path;
}

void part_tune(Check *c) {
    char *file = xformat("%s/tuning.txt", c->out), *with = xformat("--tuning=%s", file);
    char *config = config_of(c, "124m.yaml");
    const char *s = c->quick ? "0.01" : "0.05", *p = c->program;
    MEASURED(c, "sweep, 124m", 240, p, "bench", "tune", config, "--device", "cuda", "--json", "-s", s, with);
    if (!c->quick) {
        MEASURED(c, "train 124m, as the library chooses", 120, p, "bench", "train", config, "--device", "cuda",
                 "--json", "-s", "5");
        MEASURED(c, "train 124m, tuned", 120, p, "bench", "train", config, "--device", "cuda", "--json", "-s", "5",
                 with);
    }
    free(file), free(with), free(config);
}

static void peer(Check *c, const char *name, const char *mode) {
    if (!case_begin(c, name)) return;
    Child r = CHILD(c, case_seconds(c, 150), c->python, "peer.py", mode, c->quick ? "--quick" : "--full");
    json_t *j = child_json(&r);
    if (j)
        case_end(c, CASE_OK, j, "%s", "");
    else if (r.status == 77)
        case_end(c, CASE_SKIPPED, NULL, "%s", child_line(&r) + strlen("status 77: "));
    else
        case_end(c, r.status == 127 ? CASE_SKIPPED : CASE_FAILED, NULL, "%s: %s", c->python, child_line(&r));
    child_free(&r);
}
void part_bench(Check *c) {
    const char *p = c->program;
    char *config = config_of(c, "124m.yaml");
    if (c->quick) {
        MEASURED(c, "train", 60, p, "bench", "train", config, "--device", "cuda", "--json", "-s", "0.01", "--rows",
                 "8");
        MEASURED(c, "decode", 60, p, "bench", "decode", config, "--device", "cuda", "--json", "-s", "0.01", "--batch",
                 "1");
    } else {
        MEASURED(c, "train 124m", 120, p, "bench", "train", config, "--device", "cuda", "--json", "-s", "8");
        MEASURED(c, "train 124m, bf16", 120, p, "bench", "train", config, "--device", "cuda", "--json", "-s", "8",
                 "--dtype", "bf16");
        peer(c, "PyTorch, train 124m", "train");
        MEASURED(c, "decode 124m", 150, p, "bench", "decode", config, "--device", "cuda", "--json", "-s", "2");
        MEASURED(c, "decode 124m, bf16", 150, p, "bench", "decode", config, "--device", "cuda", "--json", "-s", "2",
                 "--dtype", "bf16");
        MEASURED(c, "prefill 124m", 100, p, "bench", "prefill", config, "--device", "cuda", "--json", "-s", "2");
        MEASURED(c, "train, standard", 60, p, "bench", "train", "--device", "cuda", "--json", "-s", "3");
        MEASURED(c, "decode, standard", 100, p, "bench", "decode", "--device", "cuda", "--json", "-s", "2");
    }
    peer(c, "PyTorch, attention", "attention");
    free(config);
}
