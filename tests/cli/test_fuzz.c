/* test_fuzz.c: the fuzz targets on seeded mutations of their seeds: the same inputs in every run, and no clang needed.
 */
#include "tests/lib/check.h"
#include <dirent.h>

#define LLVMFuzzerTestOneInput fuzz_safetensors
#include "tests/fuzz/safetensors.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_shard_index
#include "tests/fuzz/shard_index.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_model_config
#include "tests/fuzz/model_config.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_run_config
#include "tests/fuzz/run_config.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tokenizer
#include "tests/fuzz/tokenizer.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_chat
#include "tests/fuzz/chat.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_choices
#include "tests/fuzz/choices.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_megatron
#include "tests/fuzz/megatron.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_llmc
#include "tests/fuzz/llmc.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_source
#include "tests/fuzz/source.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_events
#include "tests/fuzz/events.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_manifest
#include "tests/fuzz/manifest.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_moments
#include "tests/fuzz/moments.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_rendezvous
#include "tests/fuzz/rendezvous.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tuning
#include "tests/fuzz/tuning.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_sentencepiece
#include "tests/fuzz/sentencepiece.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tiktoken
#include "tests/fuzz/tiktoken.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_rendezvous_file
#include "tests/fuzz/rendezvous_file.c"
#undef LLVMFuzzerTestOneInput

enum { ROUNDS = 5000, SEEDS_MAX = 32, ROOM = 1 << 16 };
static const struct {
    const char *name;
    int (*run)(const uint8_t *, size_t);
} target[] = {{"safetensors", fuzz_safetensors},
              {"shard_index", fuzz_shard_index},
              {"model_config", fuzz_model_config},
              {"run_config", fuzz_run_config},
              {"tokenizer", fuzz_tokenizer},
              {"megatron", fuzz_megatron},
              {"llmc", fuzz_llmc},
              {"source", fuzz_source},
              {"events", fuzz_events},
              {"chat", fuzz_chat},
              {"choices", fuzz_choices},
              {"manifest", fuzz_manifest},
              {"moments", fuzz_moments},
              {"rendezvous", fuzz_rendezvous},
              {"tuning", fuzz_tuning},
              {"tiktoken", fuzz_tiktoken},
              {"sentencepiece", fuzz_sentencepiece},
              {"rendezvous_file", fuzz_rendezvous_file}};
enum { NTARGET = sizeof target / sizeof *target };

/* Things that parsers trip over. */
static const char *const word[] = {"0",
                                   "-1",
                                   "4294967296",
                                   "9223372036854775807",
                                   "18446744073709551615",
                                   "1e999",
                                   "null",
                                   "true",
                                   "\"\"",
                                   "\"..\"",
                                   "\\u0000",
                                   "[]",
                                   "{}",
                                   "\n",
                                   "\t- ",
                                   ": ",
                                   "&a [*a]",
                                   "\"",
                                   "[[[[",
                                   "}}}}",
                                   ",",
                                   "nan",
                                   "\xff\xfe",
                                   "\xc3"};
enum { NWORD = sizeof word / sizeof *word };

typedef struct {
    uint64_t key, n;
} Draw;
static size_t below(Draw *d, size_t n) { return (size_t)(rng_uniform(d->key, d->n++) * (double)n); }

static size_t replace(uint8_t *b, size_t n, size_t at, size_t cut, const void *p, size_t add) {
    cut = zmin(cut, n - at);
    add = zmin(add, ROOM - (n - cut));
    memmove(b + at + add, b + at + cut, n - at - cut);
    memcpy(b + at, p, add);
    return n - cut + add;
}

/* One change of the n bytes of b. */
static size_t mutate(Draw *d, uint8_t *b, size_t n, const uint8_t *other, size_t nother) {
    size_t at = below(d, n + 1), w = below(d, NWORD);
    uint8_t c = (uint8_t)below(d, 256);
    switch (below(d, 8)) {
    case 0:
        if (at < n) b[at] = c;
        return n;
    case 1:
        if (at < n) b[at] ^= (uint8_t)(1 << c % 8);
        return n;
    case 2: return at;
    case 3: return replace(b, n, at, 1 + below(d, 16), "", 0);
    case 4: return replace(b, n, at, 0, word[w], strlen(word[w]));
    case 5: return replace(b, n, at, 1 + below(d, 8), word[w], strlen(word[w]));
    case 6: { /* repeat a piece */
        uint8_t piece[64];
        size_t len = zmin(below(d, 64), n - at);
        memcpy(piece, b + at, len);
        return replace(b, n, below(d, n + 1), 0, piece, len);
    }
    default: { /* a piece of another seed */
        size_t from = below(d, nother + 1), len = zmin(below(d, 256), nother - from);
        return replace(b, n, at, below(d, 64), other + from, len);
    }
    }
}

ParameterizedTestParameters(fuzz, mutations) {
    static int index[NTARGET];
    for (int i = 0; i < NTARGET; i++) index[i] = i;
    return cr_make_param_array(int, index, NTARGET);
}
ParameterizedTest(int *i, fuzz, mutations) {
    char *dir = xformat("tests/fuzz/%s", target[*i].name), *seed[SEEDS_MAX];
    size_t len[SEEDS_MAX];
    int n = 0;
    struct dirent **found;
    int nfound = scandir(dir, &found, NULL, alphasort);
    cr_assert(nfound > 0, "%s", dir);
    for (int k = 0; k < nfound; k++) {
        char *path = xformat("%s/%s", dir, found[k]->d_name);
        if (found[k]->d_name[0] != '.' && n < SEEDS_MAX) {
            seed[n] = check_read(path, &len[n]);
            cr_assert(len[n] < ROOM / 2, "%s", path);
            n++;
        }
        free(path);
        free(found[k]);
    }
    free(found);
    cr_assert(n > 0, "no seed in %s", dir);
    uint8_t *b = xcalloc(ROOM, 1);
    for (int k = 0; k < n; k++) target[*i].run((uint8_t *)seed[k], len[k]);
    Draw d = {rng_name(1, target[*i].name), 0};
    for (int round = 0; round < ROUNDS; round++) {
        size_t k = below(&d, (size_t)n), o = below(&d, (size_t)n), size = len[k];
        memcpy(b, seed[k], size);
        for (size_t m = 1 + below(&d, 4); m--;) size = mutate(&d, b, size, (uint8_t *)seed[o], len[o]);
        target[*i].run(b, size);
    }
    for (int k = 0; k < n; k++) free(seed[k]);
    free(b);
    free(dir);
}
