/* test_bench.c: what `bench` measures is what it names: a cache that was filled without its prompt has that prompt's
 * rows and lengths; shapes and rules are read or refused. On an emulated device: simt/test_bench_device.c. */
#include "train/bench/bench_decode.h"
#include "train/bench/bench_recur.h"
#include "tests/lib/zoo.h"

static Decode opened(Model *m, bool fill) {
    Decode d;
    Err e = {0};
    double unread;
    const DecodeOpts o = {.B = 2, .prompt = 37, .room = 4, .chunk = 16, .fill = fill};
    cr_assert(decode_open(&d, m, o, &e) && (fill ? decode_fill(&d, &e) : decode_prefill(&d, &unread, &e)), "%s", e.msg);
    return d;
}
Test(bench, a_filled_cache_is_as_long_as_the_prompts) {
    static const char *const names[] = {"gqa", "window with sinks", "mla", "kda"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        ModelCfg cfg;
        Model m;
        Device *dev;
        Err e = {0};
        int at = zoo_find(names[k]);
        cr_assert(at >= 0, "no %s", names[k]);
        zoo_open(&zoo[at], &cfg, &m, NULL, &dev, (ModelOpts){.max_rows = 0});
        Decode d[2] = {opened(&m, false), opened(&m, true)};
        for (int step = 0; step < 2; step++) {
            for (int b = 0; b < 2; b++) {
                cr_assert_eq(session_length(&d[1].s, b), 37 + step, "%s", names[k]);
                cr_assert(session_bytes(&d[1].s, b) == session_bytes(&d[0].s, b) && session_bytes(&d[1].s, b) > 0);
                for (int i = 0; i < d[0].s.cache.nslots; i++) {
                    const Slot *want = kv_slot(&d[0].s.cache, i), *got = kv_slot(&d[1].s.cache, i);
                    cr_assert_eq(kv_pages(got), kv_pages(want), "%s: pages of slot %d", names[k], i);
                    for (int h = 0; h < kv_lanes(want)->s.lanes; h++)
                        cr_assert_eq(kv_rows(got, b, h), kv_rows(want, b, h), "%s: slot %d, lane %d", names[k], i, h);
                }
            }
            for (int i = 0; i < 2; i++) cr_assert(decode_step(&d[i], &e), "%s", e.msg);
        }
        for (size_t i = 0; i < tensor_count(d[1].logits); i++) cr_assert(isfinite((double)R(d[1].logits)[i]));
        decode_close(&d[0]), decode_close(&d[1]);
        zoo_close(&cfg, &m, NULL, dev);
    }
}
Test(bench, rows_that_a_layer_evicts_are_not_made_up) {
    ModelCfg cfg;
    Model m;
    Device *dev;
    Decode d;
    Err e = {0};
    int at = zoo_find("dmc");
    cr_assert(at >= 0);
    zoo_open(&zoo[at], &cfg, &m, NULL, &dev, (ModelOpts){.max_rows = 0});
    cr_assert(decode_open(&d, &m, (DecodeOpts){.B = 1, .prompt = 9, .room = 1, .fill = true}, &e), "%s", e.msg);
    cr_assert(!decode_fill(&d, &e) && e.status == EXIT_INPUT && strstr(e.msg, "--fill"), "%s", e.msg);
    decode_close(&d);
    zoo_close(&cfg, &m, NULL, dev);
}
Test(bench, shapes_and_rules_are_read) {
    RecurShape s;
    RecurRule r;
    cr_assert(recur_shape_read("1x8192x96x128", &s) && s.B == 1 && s.T == 8192 && s.H == 96 && s.D == 128);
    static const char *const bad[] = {"",         "1x8192x96",  "1x8192x96x128x", "0x8x8x8",
                                      "1x8x8x-8", "1x8x8x4096", "99x99999x99x99"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) cr_assert(!recur_shape_read(bad[i], &s), "%s", bad[i]);
    for (int i = 0; i < RULES; i++) cr_assert(recur_rule_read(recur_rules[i], &r) && (int)r == i);
    cr_assert(!recur_rule_read("kd", &r));
}
