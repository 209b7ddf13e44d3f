/* test_palu_file.c: the codec palu with what else a cache does (policies, forks, guesses, a disk tier), and the file of
 * its basis: what it holds, and what of damaged and foreign files is refused in one line. */
#include "infer/calibrate.h"
#include "layers/cache/codec.h"
#include "layers/cache/policy.h"
#include "model/basis.h"
#include "model/files/safetensors.h"
#include "tests/lib/palu.h"
#include "tests/lib/rig.h"

enum { T = PALU_TOKENS, PROMPT = 22 };
/* A prompt in pieces, where a policy acts at its end, then single tokens. */
static void prompted(PaluCase *c, const int *tok, int piece, real *logits) {
    Session s;
    Err e = {0};
    palu_session(&s, c, 2);
    for (int at = 0, n; at < T; at += n) {
        n = at < PROMPT ? imin(piece, PROMPT - at) : 1;
        palu_feed(&s, 0, n, tok + at, logits + at * c->cfg.vocab);
        if (at + n == PROMPT) cr_assert(session_prompt_ends(&s, 0, &e), "%s", e.msg);
    }
    session_close(&s);
}

/* No policy here orders rows by the norm of their keys alone, which is the same for equal tokens.
 *
 * With all directions and `real`s a policy keeps and reads the rows that it does over a dense cache: who reads rows
 * (attention, its statistics, policies that look at keys and values, pages that are chosen) reads them right. With few
 * directions, in double, a prompt in pieces changes nothing. */
Test(palu_file, policies_read_its_rows, .timeout = 300) {
    static const char *const policies[] = {
        "snapkv:budget=0.5,window=3,sinks=1",    "h2o:budget=0.5,window=3,every=4",
        "tova:budget=0.4,every=4,window=1",      "expected:budget=0.5,window=3,sinks=1,ahead=8",
        "quest:reads=8,recent=5,page=5",         "h2o:budget=0.6,window=3,every=4+quest:reads=8,recent=5,page=5",
        "morphkv:budget=0.5,window=3,every=4",   "vatp:budget=0.5,window=3,every=4",
        "hashevict:budget=0.5,window=3,every=4", "kvzip:budget=0.5",
        "snapkv:budget=0.5,window=3+adakv"};
    const int animals[] = {zoo_find("gqa"), zoo_find("qk norm"), zoo_find("interleaved rope"), zoo_find("yarn rope")};
    int apart = 0;
    for (size_t k = 0; k < sizeof policies / sizeof *policies; k++)
        for (int a = 0; a < 4; a++) {
            PaluCase all, few, plain;
            PolicyCfg p;
            Err e = {0};
            int tok[T];
            cr_assert(policy_parse(policies[k], &p, &e), "%s: %s", policies[k], e.msg);
            const ModelOpts o = {.policy = &p};
            cr_assert(palu_open(&all, animals[a], "rank=1,bits=32", o) &&
                      palu_open(&few, animals[a], "rank=0.5,bits=16", o));
            palu_plain(&plain, animals[a], o);
            const size_t n = (size_t)(T * all.cfg.vocab);
            real *x = xcalloc(n, sizeof *x), *y = xcalloc(n, sizeof *y);
            palu_text(tok, all.cfg.vocab, k);
            prompted(&all, tok, PROMPT, x), prompted(&plain, tok, PROMPT, y);
            const double same = palu_distance(x, y, n);
            cr_assert(same < (REAL == F64 ? 1e-10 : 1e-4), "%s, %s: %.3g from a dense cache", policies[k],
                      zoo[animals[a]].name, same);
            prompted(&few, tok, PROMPT, x), prompted(&few, tok, 5, y);
            const double cut = palu_distance(x, y, n);
            cr_assert(REAL == F32 || cut < 1e-9, "%s, %s: %.3g in pieces", policies[k], zoo[animals[a]].name, cut);
            prompted(&plain, tok, PROMPT, y);
            apart += palu_distance(x, y, n) > 1e-3;
            free(x), free(y);
            palu_close(&all), palu_close(&few), palu_close(&plain);
        }
    cr_assert(apart > 35, "%d runs with few directions are apart", apart);
}

/* Forks share rows, guesses are taken back, a tier has rows on disk: the bits of one sequence that is fed alone. */
Test(palu_file, forks_guesses_and_a_tier_change_nothing, .timeout = 120) {
    for (int k = 0; k < 2 * zoo_count(); k += 3) {
        PaluCase c, disk;
        Session s;
        int tok[T], other[T];
        const KvTier tier = {.memory = (size_t)1 << 30, .dir = check_dir(), .least = 1};
        const int i = k / 2, heads = 1 + k % 2;
        if (!check_sampled(i) || !palu_open_groups(&c, i, heads, "rank=0.5,bits=8", (ModelOpts){0})) continue;
        const int V = c.cfg.vocab;
        const size_t n = (size_t)(T * V);
        real *alone = xcalloc(n, sizeof *alone), *x = xcalloc(n, sizeof *x);
        palu_text(tok, V, 4), palu_text(other, V, 5);
        palu_session(&s, &c, 2);
        palu_feed(&s, 0, 11, tok, alone), palu_feed(&s, 0, T - 11, tok + 11, alone + 11 * V);
        session_close(&s);

        palu_session(&s, &c, 2);
        palu_feed(&s, 0, 11, tok, x);
        session_fork(&s, 0, 1);
        palu_feed(&s, 0, 7, other, x + 11 * V);
        palu_feed(&s, 1, T - 11, tok + 11, x + 11 * V);
        CHECK_BYTES(zoo[i].name, x, alone, n * sizeof *x);
        session_close(&s);

        cr_assert(palu_open_groups(&disk, i, heads, "rank=0.5,bits=8", (ModelOpts){.tier = &tier}));
        palu_session(&s, &disk, 2);
        palu_feed(&s, 0, 11, tok, x), palu_feed(&s, 0, T - 11, tok + 11, x + 11 * V);
        cr_assert(session_disk(&s).slots > 0, "%s: no slot is on disk", zoo[i].name);
        CHECK_BYTES(zoo[i].name, x, alone, n * sizeof *x);
        session_close(&s);
        palu_close(&disk);

        palu_session(&s, &c, 1);
        palu_feed(&s, 0, 11, tok, x);
        palu_wrong_guess(&s, &c, tok, x);
        palu_feed(&s, 0, T - 12, tok + 12, x + 12 * V);
        const double apart = palu_distance(x, alone, n);
        cr_assert(apart < (REAL == F64 ? 1e-9 : 2e-2), "%s: %.3g after a wrong guess", zoo[i].name, apart);
        session_close(&s);
        free(alone), free(x);
        palu_close(&c);
    }
}

/* ---- the file ----------------------------------------------------------------------------------------------------*/

/* The same text, whatever the passes, gives the same bytes; more text gives others. */
Test(palu_file, the_file_is_a_function_of_the_text) {
    const int i = zoo_find("window with sinks");
    char *path[3] = {check_path("a"), check_path("b"), check_path("c")};
    size_t n[3];
    char *bytes[3];
    for (int k = 0; k < 3; k++) {
        cr_assert(palu_calibrate(i, k == 2 ? 2 : 1, 1, path[k]));
        bytes[k] = check_read(path[k], &n[k]);
    }
    cr_assert(n[0] == n[1] && !memcmp(bytes[0], bytes[1], n[0]));
    cr_assert(n[0] != n[2] || memcmp(bytes[0], bytes[2], n[0]) != 0);
    for (int k = 0; k < 3; k++) free(path[k]), free(bytes[k]);
}
static void refused_with(const char *path, const char *settings, int animal, const char *part, ModelOpts opts) {
    RowCodec codec;
    ModelCfg cfg;
    Model m;
    Device *dev;
    Err e = {0};
    char *text = path ? xformat("palu:basis=%s%s", path, settings) : xstrdup("palu");
    cr_assert(codec_parse(text, &codec, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&cfg, zoo[animal].json, strlen(zoo[animal].json), zoo[animal].name, &e), "%s", e.msg);
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    opts.codec = &codec;
    const bool opened = model_open(&m, dev, &cfg, opts, &e);
    cr_assert(!opened && e.status == EXIT_INPUT && strstr(e.msg, part) && !strchr(e.msg, '\n'),
              "expected '%s', got '%s'", part, opened ? "a model" : e.msg);
    device_close(dev);
    model_cfg_free(&cfg);
    free(text);
}
static void refused(const char *path, const char *settings, int animal, const char *part) {
    refused_with(path, settings, animal, part, (ModelOpts){0});
}
/* Writes a file whose checksum is right, with tensors of the animal as `spoil` leaves them, those of values from
 * another file with the same names. */
static void written(const char *path, const St *st, const St *values, int spoil) {
    StList list = {0};
    char sum[17];
    uint64_t h = 0;
    double *own[64];
    cr_assert(st->n <= 64);
    for (int i = 0; i < st->n; i++) {
        const StEntry *x = &(strstr(st->entry[i].name, ".values.") ? values : st)->entry[i];
        int shape[3] = {1, 1, 1};
        for (int k = 0; k < x->rank; k++) shape[k] = (int)x->shape[k];
        const size_t n = x->bytes / sizeof(double);
        own[i] = xcalloc(n, sizeof(double));
        memcpy(own[i], x->p, x->bytes);
        if (i == 0 && spoil == 1) own[i][0] = NAN;
        if (i == 0 && spoil == 2) own[i][1] += 0.01;
        if (i == 0 && spoil == 7) own[i][n / shape[0] / 2 - 1] += 0.01; /* the last of half of the directions */
        if (i == 0 && spoil == 3) shape[0] = 1, shape[1] = (int)n, shape[2] = 1;
        if (i == st->n - 1 && spoil == 4) continue;
        const int rank = i == 0 && spoil == 6 ? 1 : x->rank;
        if (i == 0 && spoil == 6) shape[0] = (int)n;
        h = basis_checksum(h, x->name, own[i], x->bytes);
        st_add(&list, x->name, tensor_make(own[i], F64, rank, shape), F64);
    }
    Err e = {0};
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)h);
    cr_assert(st_write(path, &list,
                       (const char *const[]){"kind", spoil == 5 ? "something" : BASIS_FORMAT, "checksum", sum, NULL},
                       &e),
              "%s", e.msg);
    for (int i = 0; i < st->n; i++) free(own[i]);
    st_list_free(&list);
}
Test(palu_file, damaged_and_foreign_files_are_refused, .timeout = 60) {
    static const char *const parts[] = {NULL,
                                        "are not orthonormal; the file is damaged",
                                        "are not orthonormal; the file is damaged",
                                        "got another shape",
                                        "expected 8 tensors for the 2 layers of this model, got 7",
                                        "not a basis that kvsmith calibrate wrote (kind 'something'",
                                        "got another shape"};
    const int i = zoo_find("gqa");
    char *path = check_path("whole"), *bad = check_path("bad"), *bytes;
    size_t n;
    St st;
    Err e = {0};
    cr_assert(palu_calibrate(i, 1, 1, path));
    refused(NULL, "", i, "expected basis=FILE, which kvsmith calibrate writes");
    refused("/nowhere/at/all", "", i, "/nowhere/at/all");
    refused(path, "", zoo_find("mqa"), "another shape; this basis is of another model");
    refused(path, "", zoo_find("untied, two kinds"), "expected 12 tensors for the 3 layers of this model, got 8");
    refused(path, "", zoo_find("mla"), "are latents");
    refused(path, "", zoo_find("dms"), "merges or evicts rows");
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    for (int k = 1; k < 7; k++) {
        written(bad, &st, &st, k);
        refused(bad, "", i, parts[k]);
    }
    bytes = check_read(path, &n);
    for (size_t cut = 0; cut < n; cut += cut < 100 ? 33 : n / 7) { /* truncated */
        check_write(bad, bytes, cut);
        refused(bad, "", i, "bad");
    }
    for (size_t at = n - 1; at > n - n / 3; at -= n / 19) { /* one bit of the data */
        bytes[at] ^= 4;
        check_write(bad, bytes, n);
        refused(bad, "", i, "its checksum is not that of its content");
        bytes[at] ^= 4;
    }
    st_close(&st);
    free(bytes), free(path), free(bad);
}
/* Files of groups: of other models, of keys and values that differ, and damaged ones; policies. */
Test(palu_file, files_of_groups_are_refused_where_they_do_not_fit, .timeout = 60) {
    const int i = zoo_find("gqa");
    char *one = check_path("one"), *two = check_path("two"), *bad = check_path("bad");
    St single, group;
    PolicyCfg p;
    Err e = {0};
    cr_assert(palu_calibrate(i, 1, 1, one) && palu_calibrate(i, 1, 2, two));
    cr_assert(!palu_calibrate(zoo_find("mqa"), 1, 2, bad) && !palu_calibrate(i, 1, 4, bad));
    cr_assert(st_open(&single, one, &e) && st_open(&group, two, &e), "%s", e.msg);
    refused(two, "", zoo_find("mqa"), "another shape; this basis is of another model");
    written(bad, &group, &single, 0);
    refused(bad, "", i, "layers.0.values.basis: expected");
    written(bad, &single, &group, 0);
    refused(bad, "", i, "layers.0.values.basis: expected");
    for (int k = 0; k < 3; k++) {
        written(bad, &group, &group, k ? k : 7);
        refused(bad, "", i, "the directions of group 0 are not orthonormal");
    }
    for (int k = 3; k < 7; k += 3) {
        written(bad, &group, &group, k);
        refused(bad, "", i, "got another shape");
    }
    cr_assert(policy_parse("h2o:budget=0.5", &p, &e), "%s", e.msg);
    refused_with(two, "", i, "in this basis 2 heads share directions", (ModelOpts){.policy = &p});
    st_close(&single), st_close(&group);
    free(one), free(two), free(bad);
}
Test(palu_file, settings_are_read_and_written) {
    static const struct {
        const char *text, *settings;
    } good[] = {{"palu", "group=32,rank=0.5,value_rank=0.5,bits=16"},
                {"palu:rank=0.25", "group=32,rank=0.25,value_rank=0.25,bits=16"},
                {"palu:basis=a=b.c,value_rank=1,bits=2", "group=32,rank=0.5,value_rank=1,bits=2"},
                {"palu:group=64,bits=4,basis=x", "group=64,rank=0.5,value_rank=0.5,bits=4"}};
    static const char *const bad[] = {"rank=0",   "rank=1.1",   "rank=-1",      "rank=",   "rank=x",
                                      "rank=nan", "bits=5",     "bits=1",       "bits=64", "basis=",
                                      "group=16", "rotate=yes", "value_rank=2", "x"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        RowCodec c;
        Err e = {0};
        char text[CODEC_TEXT_MAX];
        cr_assert(codec_parse(good[i].text, &c, &e), "%s: %s", good[i].text, e.msg);
        codec_settings(&c, ',', text);
        cr_assert(!strcmp(text, good[i].settings), "%s: %s", good[i].text, text);
        if (i == 2) cr_assert(c.basis_n == 5 && !strncmp(c.basis, "a=b.c", 5));
        if (i == 0) cr_assert(!c.basis && codec_rank(&c, 7, false) == 4 && codec_rank(&c, 1, true) == 1);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        RowCodec c;
        Err e = {0};
        char *text = xformat("palu:%s", bad[i]);
        cr_assert(!codec_parse(text, &c, &e) && e.status == EXIT_INPUT && strstr(e.msg, "expected basis=FILE") &&
                      strstr(e.msg, bad[i]),
                  "%s: %s", text, e.msg);
        free(text);
    }
}
