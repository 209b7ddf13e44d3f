/* test_modeling.c: models of the type kvsmith for transformers: what is written next to their weights, and that
 * modeling_kvsmith.py computes what the program computes. golden/modeling.txt holds what PyTorch made of that file and
 * of the zoo's models in double; golden/make_modeling.py writes it. */
#include "tests/lib/dirs.h"
#include "tests/lib/zoo.h"
#include "model/files/hf_file.h"
#include <sys/stat.h>
#include <zlib.h>

enum { DOCUMENTS = 2, TOKENS = 21, VOCAB = 11 };
static void draw_tokens(int tok[DOCUMENTS * TOKENS]) {
    for (int i = 0; i < DOCUMENTS * TOKENS; i++) tok[i] = (int)(rng_mix(5, (uint64_t)i) % VOCAB);
}
/* Rotations and a router that the zoo has in types of transformers alone. */
#define TURNS(rope)                                                                                            \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"layers\":2,\"tied\":true,\"ffn\":[{" \
    "\"kind\":"                                                                                                \
    "\"swiglu\",\"hidden\":10}],\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":2,\"head_dim\":6,\"window\":9,"  \
    "\"sinks\":1,"                                                                                             \
    "\"rope\":{" rope "}}},\"pattern\":[\"a\"]}"
static const Animal extra[] = {
    {"window, linear rope", TURNS("\"type\":\"linear\",\"theta\":100,\"factor\":4")},
    {"window, dynamic rope", TURNS("\"type\":\"dynamic\",\"factor\":4,\"original_max_positions\":8,\"length\":20")},
    {"window, llama3 rope", TURNS("\"type\":\"llama3\",\"theta\":100,\"factor\":8,\"original_max_positions\":32")},
    {"window, yarn rope", TURNS("\"type\":\"yarn\",\"theta\":100,\"factor\":4,\"original_max_positions\":16")},
    {"window, yarn rope, real bounds, mscale",
     TURNS("\"type\":\"yarn\",\"theta\":100,\"factor\":4,\"truncate\":false,\"mscale\":0.7,\"mscale_all_dim\":1.5,"
           "\"beta_fast\":8,\"original_max_positions\":16")},
    {"window, long rope",
     TURNS("\"type\":\"longrope\",\"length\":40,\"original_max_positions\":16,\"short_factor\":[1,2,3],"
           "\"long_factor\":[1.5,3,9]")},
    {"window, short rope",
     TURNS("\"type\":\"longrope\",\"length\":10,\"original_max_positions\":16,\"short_factor\":[1,2,"
           "3],\"long_factor\":[1.5,3,9]")},
    {"window, experts by sigmoid, groups, shared",
     "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"layers\":2,\"tied\":true,\"ffn\":[{\"kind\":"
     "\"moe\",\"experts\":8,\"top_k\":3,\"hidden\":5,\"shared\":2,\"router\":\"sigmoid\",\"scale\":2.5,\"groups\":4,"
     "\"top_groups\":2,\"bias_balance\":true}],\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":2,\"window\":9,\"sinks\":"
     "1}},"
     "\"pattern\":[\"a\"]}"}};
enum { EXTRA = sizeof extra / sizeof *extra };
static int animals(void) { return zoo_count() + EXTRA; }
static const Animal *animal(int i) { return i < zoo_count() ? &zoo[i] : &extra[i - zoo_count()]; }

/* Models that no class of transformers computes. */
static bool own_type(const Animal *a) {
    Err e = {0};
    ModelCfg c;
    cr_assert(model_cfg_from_json(&c, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    const bool own = !hf_type_of(&c);
    cr_assert(c.vocab == VOCAB);
    model_cfg_free(&c);
    return own;
}
static void open_animal(const Animal *a, ModelCfg *c, Model *m, Device **d) {
    zoo_open(a, c, m, NULL, d, (ModelOpts){0});
}

/* With MODELING_OUT=DIR in the environment the models stay there, by number, for make_modeling.py. */
Test(modeling, is_written_with_every_model_of_our_own, .timeout = 120) {
    const char *out = getenv("MODELING_OUT");
    size_t n;
    char *source = check_read("model/files/modeling_kvsmith.py", &n);
    int written = 0, tok[DOCUMENTS * TOKENS];
    for (int i = 0; i < animals(); i++) {
        const Animal *a = animal(i);
        char name[32];
        Err e = {0};
        ModelCfg c;
        Model m;
        Device *d;
        snprintf(name, sizeof name, "%d", i);
        char *dir = out ? xformat("%s/%s", out, name) : check_path(name), *config = xformat("%s/config.json", dir),
             *py = xformat("%s/modeling_kvsmith.py", dir);
        open_animal(a, &c, &m, &d);
        cr_assert(!mkdir(dir, 0700) && hf_save(dir, &m, NULL, REAL, &e), "%s: %s", a->name, e.msg);
        json_t *j = json_load_file(config, 0, NULL);
        const json_t *map = json_object_get(j, "auto_map");
        cr_expect_eq(check_entries(dir), own_type(a) ? 4 : 3, "%s", a->name);
        cr_expect_eq(map != NULL, own_type(a), "%s", a->name);
        if (own_type(a)) {
            size_t k;
            char *text = check_read(py, &k);
            cr_expect(k == n && !memcmp(text, source, n), "%s", py);
            cr_expect_str_eq(json_string_value(json_object_get(map, "AutoModelForCausalLM")),
                             "modeling_kvsmith.KvsmithForCausalLM");
            free(text), written++;
        }
        json_decref(j);
        zoo_close(&c, &m, NULL, d);
        free(dir), free(config), free(py);
    }
    free(source);
    cr_assert(written >= 80, "%d models", written);
    if (!out) return;
    char *tokens = xformat("%s/tokens.txt", out), *names = xformat("%s/names.txt", out);
    FILE *f = fopen(tokens, "w"), *g = fopen(names, "w");
    draw_tokens(tok);
    for (int i = 0; i < DOCUMENTS * TOKENS; i++) fprintf(f, "%d%c", tok[i], (i + 1) % TOKENS ? ' ' : '\n');
    for (int i = 0; i < animals(); i++) fprintf(g, "%s\n", animal(i)->name);
    cr_assert(!fclose(f) && !fclose(g));
    free(tokens), free(names);
}

Test(modeling, pytorch_computes_the_same, .timeout = 120) {
    const double bound = REAL == F64 ? 1e-11 : 2e-5; /* of the largest logit; in f32 the weights are rounded, too */
    FILE *f = fopen("tests/golden/modeling.txt", "r");
    int tok[DOCUMENTS * TOKENS], i, models = 0, own = 0;
    unsigned crc;
    size_t n;
    char *text = check_read("model/files/modeling_kvsmith.py", &n);
    cr_assert(f && fscanf(f, "crc32 %x", &crc) == 1, "tests/golden/modeling.txt");
    cr_assert(crc == crc32(0, (const Bytef *)text, (uInt)n),
              "modeling_kvsmith.py has changed: run tests/golden/make_modeling.py");
    free(text);
    draw_tokens(tok);
    char name[96];
    while (fscanf(f, " %95[^\t]", name) == 1) {
        double golden[DOCUMENTS * VOCAB];
        real want[DOCUMENTS * VOCAB], got[DOCUMENTS * VOCAB];
        ModelCfg c;
        Model m;
        Device *d;
        for (int k = 0; k < DOCUMENTS * VOCAB; k++) cr_assert(fscanf(f, "%lf", &golden[k]) == 1, "%s", name);
        for (i = 0; i < animals() && strcmp(animal(i)->name, name);) i++;
        cr_assert(i < animals() && own_type(animal(i)), "%s: run tests/golden/make_modeling.py", name);
        open_animal(animal(i), &c, &m, &d);
        real *all = dir_logits(&m, tok, DOCUMENTS, TOKENS);
        for (int k = 0; k < DOCUMENTS * VOCAB; k++)
            want[k] = (real)golden[k], got[k] = all[(k / VOCAB * TOKENS + TOKENS - 1) * VOCAB + k % VOCAB];
        CHECK_RELATIVE(name, got, want, DOCUMENTS * VOCAB, bound);
        free(all);
        zoo_close(&c, &m, NULL, d);
        models++;
    }
    fclose(f);
    for (i = 0; i < animals(); i++) own += own_type(animal(i));
    cr_assert(models == own && own >= 80, "%d models of %d: run tests/golden/make_modeling.py", models, own);
}
