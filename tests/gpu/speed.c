/* speed.c: what is measured: limits, training, recurrences and decoding in bf16 first, then ops, the choice of
 * algorithms for products, the rest of training and decoding, and peers where they are installed. Every figure is the
 * program's own JSON, kept as it is, next to what was expected of it (estimates.c); a floor by paper beside the ops is
 * an estimate from public peaks of one H100 SXM, whatever the device: 3.35 TB/s, 66.9 TFLOP/s of f32 arithmetic, 989 of
 * bf16 on the matrix units. */
#include <unistd.h>
#include "check.h"

static const double paper_bytes = 3.35e12, paper_flops = 66.9e12, paper_matrix = 989e12;
static void floors(json_t *list) {
    json_t *x;
    size_t i;
    json_array_foreach(list, i, x) {
        const char *dtype = json_string_value(json_object_get(x, "dtype"));
        double b = json_number_value(json_object_get(x, "bytes")) / paper_bytes,
               f = json_number_value(json_object_get(x, "flops")) /
                   (dtype && !strcmp(dtype, "BF16") ? paper_matrix : paper_flops);
        json_object_set_new(x, "floor_estimate_s", json_real(fmax(b, f)));
        json_object_set_new(x, "floor_bound", json_string(b >= f ? "bytes" : "flops"));
    }
}

/* ---- a rehearsal --------------------------------------------------------------------------------------------------*/
static const char *const small[] = {
    "model: {d_model: 16, layers: 1, kinds: {full: {mixer: gqa, heads: 2, head_dim: 8}},\n"
    "        ffn: {kind: swiglu, hidden: 24}, vocab: 32}\ndata: {seq_len: 8}\n",
    "train: {micro_batch: 1}\n"};
static char *small_config(const Check *c) {
    char *path = xformat("%s/small.yaml", c->work);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 2; i++) fputs(small[i], f);
    if (f) fclose(f);
    return path;
}
/* The same words with little of everything: each option is still read, each file still looked for. NULL: it is not
 * there, and `missing` names it. */
enum { WORDS = 48 };
static bool rehearsed(const Check *c, const char *const argv[], const char *out[WORDS], const char **missing) {
    static const struct {
        const char *option, *value;
    } less[] = {{"-s", "0.01"},           {"--prompt", "10"}, {"--batch", "1"},
                {"--shape", "1x64x1x16"}, {"--chunk", "8"},   {"--logits", "1024"}};
    int n = 0;
    bool rows = false, shape = false;
    for (int i = 0; argv[i] && n < WORDS - 4; i++) {
        const char *word = argv[i], *dot = strrchr(word, '.');
        const bool file = i && dot && !strcmp(dot, ".yaml") && *word != '/';
        if (strchr(word, '=') && !strncmp(word, "train.", 6)) continue;
        if (file) {
            char *path = xformat("%s/%s", c->root, word);
            bool there = access(path, R_OK) == 0;
            free(path);
            if (!there) {
                *missing = word;
                return false;
            }
            out[n++] = small_config(c);
            continue;
        }
        out[n++] = word;
        rows |= !strcmp(word, "--rows"), shape |= !strcmp(word, "--shape");
        for (size_t k = 0; k < sizeof less / sizeof *less; k++)
            if (!strcmp(word, less[k].option) && argv[i + 1]) out[n++] = less[k].value, i++;
    }
    if (!rows && argv[1] && !strcmp(argv[1], "bench")) out[n++] = "--rows", out[n++] = "8";
    if (!shape && argv[2] && !strcmp(argv[2], "recur")) out[n++] = "--shape", out[n++] = "1x64x1x16";
    out[n] = NULL;
    return true;
}

void measured(Check *c, const char *name, double limit, const char *const argv[]) {
    const char *words[WORDS], *missing = "";
    if (!case_begin(c, name)) return;
    if (c->quick && !rehearsed(c, argv, words, &missing)) {
        case_end(c, CASE_FAILED, NULL, "%s is not in the bundle", missing);
        return;
    }
    Child r = child_run(c, case_seconds(c, limit), c->quick ? words : argv);
    if (program_ran(c, name, &r)) {
        json_t *j = child_json(&r);
        floors(json_object_get(j, "elementwise")), floors(json_object_get(j, "heavy"));
        if (j) {
            estimates_add(name, j);
            case_end(c, CASE_OK, j, "%s", "");
        } else
            case_end(c, CASE_FAILED, NULL, "no JSON: %.100s", r.out);
    }
    child_free(&r);
}
#define CUDA "--device", "cuda", "--json"
#define BF16 CUDA, "--dtype", "bf16"

/* ---- the first minutes
 * ---------------------------------------------------------------------------------------------*/
void part_limits(Check *c) {
    MEASURED(c, "limits", 60, "bench", "limits", BF16, "-s", "1");
    MEASURED(c, "limits in f32", 60, "bench", "limits", CUDA, "-s", "0.5");
}

static void train_first(Check *c, const char *whose) {
    char name[64];
    snprintf(name, sizeof name, "train 124m, 16 x 1024, %s", whose);
    MEASURED(c, name, 60, "bench", "train", "configs/124m.yaml", "train.micro_batch=16", BF16, "--attention", whose,
             "-s", "1.5");
}
/* Of one model the fast path at batch 1 with and without graphs, then what a server asks for. */
static void decode_first(Check *c, const char *what, const char *config, const char *rows) {
    char name[80];
    snprintf(name, sizeof name, "decode %s, batch 1", what);
    MEASURED(c, name, 60, "bench", "decode", config, BF16, "--fill", "--prompt", rows, "--batch", "1", "--graph",
             "both", "-s", "0.5");
    snprintf(name, sizeof name, "decode %s, batch 32", what);
    MEASURED(c, name, 60, "bench", "decode", config, BF16, "--fill", "--prompt", rows, "--batch", "32", "--graph",
             "both", "-s", "0.5");
}
#define MODELS "tests/gpu/models/"
/* Every goal gets a figure. */
void part_first(Check *c) {
    train_first(c, "own");
    MEASURED(c, "recur kda, gdn, 1 x 8192 x 96 x 128", 60, "bench", "recur", BF16, "--rule", "kda,gdn", "--shape",
             "1x8192x96x128", "-s", "0.5");
    MEASURED(c, "recur mamba2, 1 x 8192 x 96 x 64", 60, "bench", "recur", BF16, "--rule", "mamba2", "--shape",
             "1x8192x96x64", "-s", "0.5"); /* heads of 64 have states of 128 rows */
    decode_first(c, "8b, 4 layers, 32k", MODELS "8b-4.yaml", "32768");
    decode_first(c, "mla 128 heads, 4 layers, 32k", MODELS "mla-128-4.yaml", "32768");
    MEASURED(c, "train 0.5b, 16 x 1024", 60, "bench", "train", MODELS "0.5b.yaml", BF16, "-s", "1.5");
    train_first(c, "cudnn");
    train_first(c, "cudnn_unordered");
    decode_first(c, "kda, 4 layers", MODELS "kda-4.yaml", "1024"); /* a state is as large after any number of rows */
    decode_first(c, "0.5b, 32k", MODELS "0.5b.yaml", "32768");
    decode_first(c, "mla 16 heads, 4 layers, 32k", MODELS "mla-16-4.yaml", "32768");
    MEASURED(c, "train 1.5b, 16 x 1024", 60, "bench", "train", MODELS "1.5b.yaml", BF16, "-s", "2");
    MEASURED(c, "train 3b, 8 x 1024", 90, "bench", "train", MODELS "3b.yaml", BF16, "-s", "2");
    /* candidates */
    MEASURED(c, "train 124m, 16 x 1024, logits 2^28", 60, "bench", "train", "configs/124m.yaml", "train.micro_batch=16",
             BF16, "--logits", "268435456", "-s", "1");
    MEASURED(c, "train 124m, 16 x 1024, logits 2^29", 60, "bench", "train", "configs/124m.yaml", "train.micro_batch=16",
             BF16, "--logits", "536870912", "-s", "1");
    MEASURED(c, "train 0.5b, 16 x 1024, logits 2^28", 60, "bench", "train", MODELS "0.5b.yaml", BF16, "--logits",
             "268435456", "-s", "1");
    MEASURED(c, "train 0.5b, 16 x 1024, logits 2^29", 60, "bench", "train", MODELS "0.5b.yaml", BF16, "--logits",
             "536870912", "-s", "1");
    MEASURED(c, "train 3b, 8 x 1024, logits 2^29", 90, "bench", "train", MODELS "3b.yaml", BF16, "--logits",
             "536870912", "-s", "1");
    MEASURED(c, "prefill 8b, 4 layers, 8k, passes of 512", 60, "bench", "prefill", MODELS "8b-4.yaml", BF16, "--prompt",
             "8192", "--batch", "1", "--chunk", "512", "-s", "0.5");
    MEASURED(c, "prefill 8b, 4 layers, 8k, passes of 2048", 60, "bench", "prefill", MODELS "8b-4.yaml", BF16,
             "--prompt", "8192", "--batch", "1", "--chunk", "2048", "-s", "0.5");
    MEASURED(c, "decode 0.5b, top_k on the device", 60, "bench", "decode", MODELS "0.5b.yaml", BF16, "--fill",
             "--prompt", "1024", "--batch", "1", "--draw", "top_k", "-s", "0.5");
    MEASURED(c, "decode 0.5b, logits to the host", 60, "bench", "decode", MODELS "0.5b.yaml", BF16, "--fill",
             "--prompt", "1024", "--batch", "1", "--draw", "host", "-s", "0.5");
}

/* ---- the rest
 * ------------------------------------------------------------------------------------------------------*/
void part_ops(Check *c) {
    MEASURED(c, "ops in bf16", 200, "bench", "ops", BF16, "-s", "1");
    MEASURED(c, "recurrences in bf16", 200, "bench", "recur", BF16, "-s", "0.5");
    if (c->quick) return; /* the same words as above */
    MEASURED(c, "ops", 200, "bench", "ops", CUDA, "-s", "1");
    MEASURED(c, "recurrences", 200, "bench", "recur", CUDA, "-s", "0.5");
    MEASURED(c, "ops in bf16, again", 200, "bench", "ops", BF16, "-s", "1"); /* the spread */
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
    tests_run(c,
              (const char *const[]){"cuda_bf16/attention_by_cudnn", c->quick ? NULL : "cuda_bf16/gradients_by_cudnn",
                                    NULL},
              c->quick ? 100 : 60, false);
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "ops in bf16, attention: %s", whose[i]);
        if (c->quick && i != 1) continue;
        if (why && i) {
            if (case_begin(c, name)) case_end(c, CASE_SKIPPED, NULL, "%s", why);
            continue;
        }
        MEASURED(c, name, 150, "bench", "ops", BF16, "--attention", whose[i], "-s", "1");
    }
}

void part_tune(Check *c) {
    char *file = xformat("%s/tuning.txt", c->out), *with = xformat("--tuning=%s", file);
    const char *config = "configs/124m.yaml", *s = c->quick ? "0.01" : "0.05";
    MEASURED(c, "sweep, 124m in bf16", 240, "bench", "tune", config, BF16, "-s", s, with);
    if (!c->quick) {
        MEASURED(c, "train 124m in bf16, as the library chooses", 120, "bench", "train", config, BF16, "-s", "4");
        MEASURED(c, "train 124m in bf16, tuned", 120, "bench", "train", config, BF16, "-s", "4", with);
    }
    free(file), free(with);
}

/* A line of JSON for each figure as it is found: what a peer that was cut off has said is kept, in peers.jsonl and in
 * the journal. */
static void peer(Check *c, const char *name, const char *mode, double limit) {
    if (!case_begin(c, name)) return;
    char *file = xformat("%s/peers.jsonl", c->out);
    Child r = CHILD(c, case_seconds(c, limit), c->python, "-u", "peer.py", mode, c->quick ? "--quick" : "--full",
                    "--out", file);
    json_t *all = json_object(), *j;
    int n = 0;
    for (char *rest = r.out, *line; (line = strsep(&rest, "\n"));)
        if (*line && (j = json_loads(line, 0, NULL))) n++, json_object_update(all, j), json_decref(j);
    json_t *data = n ? json_incref(all) : NULL;
    if (r.status == 0 && n)
        case_end(c, CASE_OK, data, "%s", "");
    else if (r.status == 77)
        case_end(c, CASE_SKIPPED, data, "%s", child_line(&r) + strlen("status 77: "));
    else if (n > 1) /* some figures: it is not worth its time again */
        c->killed = false, case_end(c, CASE_FAILED, data, "%d lines, then %s", n, child_line(&r));
    else
        case_end(c, r.status == 127 ? CASE_SKIPPED : CASE_FAILED, data, "%s: %s", c->python, child_line(&r));
    json_decref(all);
    free(file);
    child_free(&r);
}
void part_peers(Check *c) {
    peer(c, "PyTorch, attention", "attention", 60);
    peer(c, "PyTorch, train 124m", "train", 240);
    peer(c, "flash-linear-attention, recurrences", "recur", 150);
}
void part_bench(Check *c) {
    const char *config = "configs/124m.yaml";
    MEASURED(c, "train 124m", 60, "bench", "train", config, CUDA, "-s", "3");
    MEASURED(c, "decode 124m, bf16", 150, "bench", "decode", config, BF16, "-s", "1");
    if (c->quick) return; /* the same words with other files */
    MEASURED(c, "train 124m, bf16", 60, "bench", "train", config, BF16, "-s", "3");
    MEASURED(c, "decode 124m", 150, "bench", "decode", config, CUDA, "-s", "1");
    MEASURED(c, "prefill 124m, bf16", 100, "bench", "prefill", config, BF16, "-s", "1");
    MEASURED(c, "train 124m, bf16, without graphs", 60, "bench", "train", config, "run.graph=off", BF16, "-s", "2");
    MEASURED(c, "train, standard", 60, "bench", "train", CUDA, "-s", "2");
    MEASURED(c, "decode, standard", 100, "bench", "decode", CUDA, "-s", "1");
}
