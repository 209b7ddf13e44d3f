/* train.c: whole runs of the program on the device beside the CPU's: losses step by step, a run that is resumed, text.
 */
#include <dirent.h>
#include <unistd.h>
#include "check.h"
#include "data/tokenizer.h"

enum { STEPS_MAX = 512 };
typedef struct {
    int n;
    double loss[STEPS_MAX], norm[STEPS_MAX], val;
} Curve;

static json_t *curve_json(const Curve *k) {
    json_t *a = json_array();
    for (int i = 0; i < k->n; i++) json_array_append_new(a, isfinite(k->loss[i]) ? json_real(k->loss[i]) : json_null());
    return a;
}
static bool curve_read(Curve *k, const char *dir) {
    char *path = xformat("%s/metrics.jsonl", dir), *line = NULL;
    FILE *f = fopen(path, "r");
    size_t cap = 0;
    *k = (Curve){.val = NAN};
    free(path);
    if (!f) return false;
    while (getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, 0, NULL), *x = json_object_get(j, "loss");
        if (x && k->n < STEPS_MAX) {
            k->norm[k->n] = json_number_value(json_object_get(j, "grad_norm"));
            k->loss[k->n++] = json_is_number(x) ? json_number_value(x) : NAN;
        }
        if ((x = json_object_get(j, "val_loss"))) k->val = json_number_value(x);
        json_decref(j);
    }
    free(line);
    fclose(f);
    return k->n > 0;
}
static void forget(Check *c, const char *dir) {
    Child r = CHILD(c, 60, "rm", "-rf", dir);
    child_free(&r);
}
/* Stages say themselves how many steps they have. */
static bool has_stages(const Check *c, const char *config) {
    char *path = xformat("%s/%s", c->root, config), *line = NULL;
    FILE *f = fopen(path, "r");
    size_t cap = 0;
    bool found = false;
    while (f && getline(&line, &cap, f) > 0) found |= !strncmp(line, "stages:", 7);
    if (f) fclose(f);
    free(line), free(path);
    return found;
}
/* A run of `steps` steps of a schedule for `of`; more: NULL, or two settings. */
static Child train(Check *c, const char *config, const char *device, const char *dir, int steps, int of, bool resume,
                   const char *const more[2]) {
    char *at = xformat("run.dir=%s", dir), *n = xformat("train.steps=%d", steps),
         *s = xformat("optim.schedule_steps=%d", of);
    const char *argv[32] = {c->program,
                            "train",
                            config,
                            "-q",
                            "--device",
                            device,
                            at,
                            "train.dtype=f32",
                            "train.log_every=1",
                            "train.save_every=1000"};
    int k = 10;
    if (!has_stages(c, config)) argv[k++] = n, argv[k++] = s;
    if (c->quick) {
        static const char *const small[] = {"train.batch=1",      "train.micro_batch=1", "data.seq_len=8",
                                            "train.eval_every=0", "model.layers=2",      "optim.warmup=1"};
        for (int i = 0; i < 6; i++) argv[k++] = small[i];
    }
    if (resume) argv[k++] = "--resume", argv[k++] = "auto";
    for (int i = 0; more && i < 2; i++) argv[k++] = more[i];
    Child r = child_run(c, case_seconds(c, 150), argv);
    free(at), free(n), free(s);
    return r;
}
static double apart(const Curve *a, const Curve *b, int from, int *at) {
    double worst = 0;
    for (int i = from; i < b->n; i++) {
        double d = fabs(a->loss[i - from] - b->loss[i]) / fabs(b->loss[i]);
        if (!(d <= worst)) worst = isnan(d) ? 1e300 : d, *at = i;
    }
    return worst;
}
/* Of two runs that round in another order; a wrong kernel is far from it after a few steps. */
static const double curve_tol = 1e-3;

/* The CPU's logits after the last of `n` ids, to *row (malloc'ed); how many, 0: the program failed. */
static size_t last_logits(Check *c, const char *model, const char *ids, size_t n, float **row) {
    char *out = xformat("%s/runs/tie.safetensors", c->work);
    Child r =
        CHILD(c, case_seconds(c, 100), c->program, "logits", model, "--device", "cpu", "--tokens", ids, "--out", out);
    FILE *f = r.status == 0 ? fopen(out, "rb") : NULL;
    uint64_t head = 0;
    size_t words = 0;
    if (f && fread(&head, sizeof head, 1, f) == 1 && fseek(f, 0, SEEK_END) == 0) {
        long bytes = ftell(f) - (long)(sizeof head + head);
        words = bytes > 0 ? (size_t)bytes / sizeof(float) / n : 0;
        *row = xcalloc(words + 1, sizeof **row);
        if (fseek(f, -(long)(words * sizeof(float)), SEEK_END) || fread(*row, sizeof(float), words, f) != words)
            words = 0;
    }
    if (f) fclose(f);
    child_free(&r);
    free(out);
    return words;
}
/* Logits of two implementations in f32 differ by rounding: some ten ops in each of a few layers err by about 3 units of
 * 2^-24 each at widths of 48, which is 25 units of the largest logit, and 64 with what exponentials and the head add.
 * Tokens whose logits are closer than that are tied, and either may come. */
static const double tie = 64 * 0x1p-24;

/* Where two texts part, at token `at`, whether the CPU's logits call it a tie. The ids of the prompt are its bytes,
 * behind the end of a text where `prompt_ids` are one more. */
static bool tied(Check *c, const char *model, const char *prompt, size_t prompt_ids, json_t *const said[2], size_t at,
                 double *margin) {
    int own = (int)json_integer_value(json_array_get(said[0], at)),
        other = (int)json_integer_value(json_array_get(said[1], at));
    char *path = xformat("%s/runs/tie.txt", c->work);
    FILE *f = fopen(path, "w");
    size_t n = 0, words;
    float *row = NULL;
    *margin = INFINITY;
    if (f && prompt_ids == strlen(prompt) + 1) fprintf(f, "%d ", TOKENIZER_EOT);
    for (; f && prompt[n]; n++) fprintf(f, "%d ", (unsigned char)prompt[n]);
    for (size_t i = 0; f && i < at; i++, n++) fprintf(f, "%d ", (int)json_integer_value(json_array_get(said[0], i)));
    n += prompt_ids - strlen(prompt);
    if (f) fprintf(f, "\n");
    bool ok = f && fclose(f) == 0 && prompt_ids - strlen(prompt) <= 1 &&
              (words = last_logits(c, model, path, n, &row)) > 0 && own >= 0 && other >= 0 && (size_t)own < words &&
              (size_t)other < words;
    if (ok) {
        double largest = 0;
        for (size_t i = 0; i < words; i++) {
            largest = fmax(largest, fabs((double)row[i]));
            ok = ok && row[i] <= row[own]; /* or these are not the logits that the text was made of */
        }
        if (ok) *margin = ((double)row[own] - (double)row[other]) / largest;
    }
    free(row), free(path);
    return *margin <= tie;
}

static void text(Check *c, const char *name, const char *model, int tokens) {
    char *label = xformat("%s: text", name), most[16], *said[2] = {NULL, NULL};
    const char *prompt = c->quick ? "In" : "In the beginning God created the heaven and the";
    json_t *ids[2] = {NULL, NULL};
    size_t prompt_ids = 0;
    static const char *const devices[] = {"cpu", "cuda"};
    snprintf(most, sizeof most, "%d", tokens);
    if (!case_begin(c, label)) {
        free(label);
        return;
    }
    bool ok = true;
    for (int k = 0; k < 2 && ok; k++) {
        Child r = CHILD(c, case_seconds(c, 100), c->program, "generate", model, "--device", devices[k], "--prompt",
                        prompt, "--temperature", "0", "--ignore-eos", "--max-new", most, "--json");
        if (r.status == 2 && strstr(r.err, "has no text")) {
            case_end(c, CASE_SKIPPED, NULL, "%s", child_line(&r));
            ok = false;
        } else if ((ok = program_ran(c, devices[k], &r))) {
            json_t *j = child_json(&r);
            ids[k] = json_incref(json_object_get(j, "tokens"));
            prompt_ids = (size_t)json_integer_value(json_object_get(j, "prompt_tokens"));
            said[k] = json_dumps(json_object_get(j, "tokens"), JSON_COMPACT | JSON_ENCODE_ANY);
            if (!said[k]) said[k] = xformat("nothing (%.60s)", r.out);
            json_decref(j);
        }
        child_free(&r);
    }
    if (ok) {
        size_t at = 0, n = json_array_size(ids[0]);
        while (at < n && json_equal(json_array_get(ids[0], at), json_array_get(ids[1], at))) at++;
        double margin = 0;
        bool equal =
            n > 0 && n == json_array_size(ids[1]) && (at == n || tied(c, model, prompt, prompt_ids, ids, at, &margin));
        char where[120] = "";
        if (at < n)
            snprintf(where, sizeof where, "token %zu differs, by %.2g of the largest logit; a tie is %.2g", at, margin,
                     tie);
        case_end(c, equal ? CASE_OK : CASE_FAILED,
                 json_pack("{s:s, s:s, s:i, s:f}", "cpu", said[0], "cuda", said[1], "equal", (int)at, "margin",
                           isfinite(margin) ? margin : -1.0),
                 "%s", where);
    }
    json_decref(ids[0]), json_decref(ids[1]);
    free(said[0]), free(said[1]), free(label);
}

/* Passes that are replayed beside kernels that are launched one by one: the same losses to the bit. */
static void graphs(Check *c, const char *name, const char *recorded, int steps) {
    static const char *const off[] = {"run.graph=off", "run.seed=1"}, *const on[] = {"run.graph=auto", "run.seed=1"};
    char *label = xformat("%s: graph", name), *config = xformat("configs/%s.yaml", name);
    char *plain = xformat("%s/runs/%s-plain", c->work, name), *own = xformat("%s/runs/%s-graph", c->work, name);
    Curve a, b;
    if (case_begin(c, label)) {
        forget(c, plain), forget(c, own);
        bool ok = true;
        if (!recorded) { /* a run too short to replay anything was compared with the CPU's */
            Child r = train(c, config, "cuda", own, steps, steps, false, on);
            ok = program_ran(c, "run.graph=auto", &r);
            child_free(&r);
        }
        Child r = {0};
        if (ok) r = train(c, config, "cuda", plain, steps, steps, false, off);
        if (ok && program_ran(c, "run.graph=off", &r)) {
            int at = 0;
            bool read = curve_read(&a, recorded ? recorded : own);
            read = curve_read(&b, plain) && read && a.n == b.n;
            double worst = read ? apart(&a, &b, 0, &at) : 1e300;
            case_end(c, worst == 0 ? CASE_OK : CASE_FAILED,
                     json_pack("{s:f, s:o, s:o}", "worst", worst, "graph", curve_json(&a), "plain", curve_json(&b)),
                     "%d steps, apart by %.2g (step %d)", b.n, worst, at + 1);
        }
        if (ok) child_free(&r);
    }
    free(label), free(config), free(plain), free(own);
}

/* Losses hold, and something that begins at that run's end has not been asked yet. */
static bool wants_run(Check *c, const char *name, bool resumes) {
    static const char *const of[] = {"graph", "text", "resumed"};
    char *losses = xformat("%s: losses", name);
    const char *state = json_string_value(json_object_get(case_of(c, c->part, losses), "state"));
    bool wants = false;
    for (int i = 0; i < (resumes ? 3 : 2); i++) {
        char *label = xformat("%s: %s", name, of[i]);
        wants |= !case_of(c, c->part, label);
        free(label);
    }
    free(losses);
    return wants && state && !strcmp(state, "ok");
}

static void one(Check *c, const char *name, bool resumes) {
    int steps = c->quick ? 2 : 20, half = steps / 2;
    char *config = xformat("configs/%s.yaml", name), *label = xformat("%s: losses", name);
    char *dir[3] = {xformat("%s/runs/%s-cpu", c->work, name), xformat("%s/runs/%s-cuda", c->work, name),
                    xformat("%s/runs/%s-resumed", c->work, name)};
    Curve cpu, cuda, again;
    if (case_begin(c, label)) {
        forget(c, dir[0]), forget(c, dir[1]);
        Child b = train(c, config, "cuda", dir[1], steps, steps, false, NULL); /* first: it may be refused */
        if (program_ran(c, "cuda", &b)) {
            Child a = train(c, config, "cpu", dir[0], steps, steps, false, NULL);
            if (program_ran(c, "cpu", &a)) {
                int at = 0;
                bool read = curve_read(&cpu, dir[0]);
                read = curve_read(&cuda, dir[1]) && read && cpu.n == cuda.n;
                double worst = read ? apart(&cuda, &cpu, 0, &at) : 1e300;
                json_t *data =
                    json_pack("{s:o, s:o, s:f, s:i, s:f, s:f, s:f}", "cpu", curve_json(&cpu), "cuda", curve_json(&cuda),
                              "worst", worst, "at", at, "bound", curve_tol, "cpu_s", a.seconds, "cuda_s", b.seconds);
                case_end(c, worst <= curve_tol ? CASE_OK : CASE_FAILED, data,
                         "%d steps, losses apart by at most %.2g (relative, step %d)", cpu.n, worst, at + 1);
            }
            child_free(&a);
        }
        child_free(&b);
    }
    free(label);
    char *last = xformat("%s/last", dir[1]);
    if (access(last, F_OK) &&
        wants_run(c, name, resumes)) { /* the journal came from another machine, the run did not */
        Child b = train(c, config, "cuda", dir[1], steps, steps, false, NULL);
        child_free(&b);
    }
    if (access(last, F_OK) == 0) {
        label = xformat("%s: resumed", name);
        if (resumes && case_begin(c, label)) {
            forget(c, dir[2]);
            Child a = train(c, config, "cuda", dir[2], half, steps, false, NULL);
            Child b = train(c, config, "cuda", dir[2], steps, steps, true, NULL);
            if (program_ran(c, "first half", &a) && program_ran(c, "second half", &b)) {
                int at = 0;
                bool read = curve_read(&again, dir[2]);
                read = curve_read(&cuda, dir[1]) && read && again.n == cuda.n;
                double worst = read ? apart(&again, &cuda, 0, &at) : 1e300;
                case_end(c, worst <= 1e-6 ? CASE_OK : CASE_FAILED,
                         json_pack("{s:f, s:b, s:o}", "worst", worst, "bit for bit", worst == 0, "resumed",
                                   curve_json(&again)),
                         "resumed at %d of %d: apart by %.2g", half, steps, worst);
            }
            child_free(&a), child_free(&b);
        }
        free(label);
        graphs(c, name, c->quick ? NULL : dir[1], c->quick ? 4 : steps);
        text(c, name, last, c->quick ? 4 : 48);
    }
    free(last), free(config), free(dir[0]), free(dir[1]), free(dir[2]);
}
static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static bool is_resumed(const char *name) {
    static const char *const resumed[] = {"tiny-gqa", "tiny-mla", "tiny-kda", "tiny-mamba2", "tiny-moe", "tiny-muon"};
    bool resumes = false;
    for (size_t k = 0; k < sizeof resumed / sizeof *resumed; k++) resumes |= !strcmp(name, resumed[k]);
    return resumes;
}
static void config_ended(Check *c, Job *j, Child *r) {
    if (r->status == ONLY_LEFT) c->killed = true;
    fputs(r->out, stdout); /* what its cases say */
    if (r->status) case_log(c, j->name, *r->err ? r->err : r->out);
    case_end(c, r->status ? CASE_FAILED : CASE_OK, NULL, "%s", r->status == 0 ? "" : child_line(r));
}
/* A process for each configuration, some side by side, which add their cases to the same journal. */
void part_train(Check *c) {
    enum { SIDE_BY_SIDE = 6, MOST = 100 };
    if (c->only) {
        one(c, c->only, is_resumed(c->only));
        return;
    }
    char *folder = xformat("%s/configs", c->root), *names[MOST];
    int n = 0, jobs = imin(SIDE_BY_SIDE, side_by_side(c));
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (n < MOST && !strncmp(e->d_name, "tiny-", 5) && len > 5 && !strcmp(e->d_name + len - 5, ".yaml") &&
            (!c->quick || !strcmp(e->d_name, "tiny-gqa.yaml")))
            names[n++] = xformat("%.*s", (int)len - 5, e->d_name);
    }
    if (d) closedir(d);
    qsort(names, (size_t)n, sizeof *names, by_name);
    Job job[MOST] = {{0}};
    char *threads = xformat("OMP_NUM_THREADS=%d", imax(1, (int)sysconf(_SC_NPROCESSORS_ONLN) / jobs)),
         *end = xformat("%.3f", fmin(c->part_end, c->all_end)); /* of the same clock */
    for (int i = 0; i < n; i++) {
        job[i] = (Job){.name = names[i], .limit = 200};
        char *const words[] = {"env",    threads,         (char *)c->self, "train",        "--only", names[i],
                               "--root", (char *)c->root, "--out",         (char *)c->out, "--work", (char *)c->work};
        char *const more[] = {"--program", (char *)c->program, "--end", end};
        int k = 0;
        for (size_t w = 0; w < sizeof words / sizeof *words; w++) job[i].argv[k++] = words[w];
        for (size_t w = 0; w < sizeof more / sizeof *more; w++) job[i].argv[k++] = more[w];
        if (c->quick) job[i].argv[k++] = "--quick";
    }
    jobs_run(c, jobs, n, job, config_ended);
    for (int i = 0; i < n; i++) free(names[i]);
    free(folder), free(threads), free(end);
}

/* ---- one rank through NCCL ------------------------------------------------------------------------------------------
 */

/* The case ends here unless the program ran: skipped where there is no NCCL. */
static bool nccl_ran(Check *c, const char *what, const Child *r) {
    const char *why = r->status == 1 ? strstr(r->err, "NCCL: ") : NULL;
    if (!why || !strstr(why, "install NCCL")) return program_ran(c, what, r);
    case_end(c, CASE_SKIPPED, NULL, "%s", child_line(r));
    return false;
}
void part_nccl(Check *c) {
    const char *size = c->quick ? "4096" : "16777216", *seconds = c->quick ? "0.001" : "0.5", *name = "tiny-gqa";
    if (case_begin(c, "collectives")) {
        Child r = CHILD(c, case_seconds(c, 100), c->program, "bench", "comm", "--device", "cuda", "--comm", "nccl",
                        "--bytes", size, "--seconds", seconds, "--json");
        if (nccl_ran(c, "bench comm", &r)) case_end(c, CASE_OK, child_json(&r), "%s", "");
        child_free(&r);
    }
    char *config = xformat("configs/%s.yaml", name), *plain = xformat("%s/runs/nccl-without", c->work);
    int steps = c->quick ? 2 : 20;
    for (int stage = 0; stage < 3; stage++) {
        char *label = xformat("%s: stage %d", name, stage), *dir = xformat("%s/runs/nccl-%d", c->work, stage),
             *setting = xformat("dist.stage=%d", stage);
        if ((stage == 0 || !c->quick) && case_begin(c, label)) {
            forget(c, plain), forget(c, dir);
            Child a = train(c, config, "cuda", plain, steps, steps, false, NULL);
            Child b =
                train(c, config, "cuda", dir, steps, steps, false, (const char *const[2]){"dist.comm=nccl", setting});
            if (program_ran(c, "without", &a) && nccl_ran(c, "through NCCL", &b)) {
                Curve one, two;
                int at = 0;
                bool read = curve_read(&one, plain);
                read = curve_read(&two, dir) && read && one.n == two.n;
                double worst = read ? apart(&two, &one, 0, &at) : 1e300;
                case_end(c, worst <= 1e-5 ? CASE_OK : CASE_FAILED,
                         json_pack("{s:o, s:o, s:f, s:f, s:f}", "without", curve_json(&one), "through",
                                   curve_json(&two), "worst", worst, "without_s", a.seconds, "through_s", b.seconds),
                         "losses apart by at most %.2g (relative, step %d)", worst, at + 1);
            }
            child_free(&a), child_free(&b);
        }
        free(label), free(dir), free(setting);
    }
    free(config), free(plain);
}
