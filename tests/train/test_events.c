/* test_events.c: TensorBoard files: the sums by published vectors, records byte for byte as tensorboard writes them
 * (golden/make_events.py), what a run finds again, what it cuts. A parser of this file's own reads them back. */
#include "tests/lib/check.h"
#include "train/report/events.h"
#include <time.h>
#include <unistd.h>

Test(events, sums) { /* RFC 3720, B.4, and the polynomial's check value */
    unsigned char b[32];
    cr_assert_eq(crc32c("123456789", 9), 0xE3069283u);
    cr_assert_eq(crc32c("", 0), 0);
    memset(b, 0, 32);
    cr_assert_eq(crc32c(b, 32), 0x8A9136AAu);
    memset(b, 0xFF, 32);
    cr_assert_eq(crc32c(b, 32), 0x62A8AB43u);
    for (int i = 0; i < 32; i++) b[i] = (unsigned char)i;
    cr_assert_eq(crc32c(b, 32), 0x46DD794Eu);
    for (int i = 0; i < 32; i++) b[i] = (unsigned char)(31 - i);
    cr_assert_eq(crc32c(b, 32), 0x113FDB5Cu);
}

static char *run_path(void) {
    char *run = check_path("run");
    char *made = xformat("mkdir -p '%s'", run);
    cr_assert_eq(system(made), 0);
    free(made);
    return run;
}
static char *file_of(const char *run) { return xformat("%s/" EVENTS_DIR "/" EVENTS_FILE, run); }

Test(events, bytes_are_tensorboards) {
    char *run = run_path(), *path = file_of(run);
    Journal j;
    RunDir dir;
    Err e = {0};
    cr_assert(run_dir_open(&dir, run, true, &e), "%s", e.msg);
    cr_assert(events_open(&j, &dir, -1, true, 1700000000.0, &e), "%s", e.msg);
    TrainRecord r = {.step = 1, .loss = 5.5, .lr = 0.001, .grad_norm = 2.25, .tok_s = 123456, .mfu = -1};
    cr_assert(events_train(&j, &r, 1700000001.25, &e), "%s", e.msg);
    r = (TrainRecord){.step = 300,
                      .loss = 1.0 / 3,
                      .lr = 1e-5,
                      .grad_norm = 0.1,
                      .tok_s = 1e6,
                      .mfu = 0.25,
                      .reports = true,
                      .cr = 4.0 / 3,
                      .cr_loss = 0.125};
    ValRecord v = {
        .step = 300, .loss = 2.5, .reports = true, .cr = INFINITY, .task = true, .acc = 0.25, .acc_all = 0.75};
    cr_assert(events_train(&j, &r, 1700000002.5, &e) && events_val(&j, &v, 1700000003.75, &e), "%s", e.msg);
    cr_assert(events_val(&j, &(ValRecord){.step = 123456789012}, 1700000004.0, &e), "%s", e.msg);
    journal_close(&j);
    size_t n, m;
    char *got = check_read(path, &n), *want = check_read("tests/golden/events.tfevents", &m);
    cr_assert_eq(n, m, "%zu bytes, tensorboard's are %zu", n, m);
    CHECK_BYTES("events", got, want, n);
    free(got), free(want), free(path), free(run);
}

/* Where the golden file's records end. */
static const size_t *ends(const char *p, size_t n, int *count) {
    static size_t end[16];
    *count = 0;
    for (size_t at = 0; at + 8 <= n; end[(*count)++] = at) {
        uint64_t size;
        memcpy(&size, p + at, 8);
        at += (size_t)size + 16;
    }
    return end;
}

Test(events, whole_records_up_to_a_step_are_kept) {
    size_t n;
    char *p = check_read("tests/golden/events.tfevents", &n);
    const unsigned char *b = (const unsigned char *)p;
    int count;
    const size_t *end = ends(p, n, &count);
    cr_assert(count == 5 && end[4] == n);
    static const struct {
        int64_t step;
        int records;
    } cases[] = {{INT64_MAX, 5}, {123456789012, 5}, {123456789011, 4}, {300, 4}, {299, 2}, {1, 2}, {0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_eq(events_kept(b, n, cases[i].step), end[cases[i].records - 1], "step %lld",
                     (long long)cases[i].step);
    for (size_t cut = 0; cut <= n; cut++) { /* torn anywhere */
        int whole = 0;
        while (whole < count && end[whole] <= cut) whole++;
        cr_assert_eq(events_kept(b, cut, INT64_MAX), whole ? end[whole - 1] : 0, "cut at %zu", cut);
    }
    unsigned char *bad = malloc(n);
    for (size_t i = 0; i < n; i++) { /* a byte that changed anywhere ends what is kept before it */
        memcpy(bad, b, n);
        bad[i] ^= 0x10;
        int before = 0;
        while (end[before] <= i) before++;
        cr_assert_eq(events_kept(bad, n, INT64_MAX), before ? end[before - 1] : 0, "byte %zu", i);
    }
    cr_assert_eq(events_kept(b + end[0], n - end[0], INT64_MAX), 0, "a file that does not begin with its version");
    free(bad), free(p);
}

Test(events, a_run_goes_on) {
    char *run = run_path(), *path = file_of(run), *tb = xformat("%s/" EVENTS_DIR, run);
    Journal j;
    RunDir dir;
    Err e = {0};
    size_t n, m;
    cr_assert(run_dir_open(&dir, run, true, &e), "%s", e.msg);
    cr_assert(events_open(&j, &dir, -1, false, 1, &e) && !j.f, "%s", e.msg);
    journal_close(&j);
    cr_assert(!check_exists(tb), "not wanted, but made");
    cr_assert(events_open(&j, &dir, -1, true, 1, &e), "%s", e.msg);
    for (int s = 1; s <= 6; s++) {
        TrainRecord r = {.step = s, .loss = s, .mfu = -1};
        cr_assert(events_train(&j, &r, s, &e));
    }
    journal_close(&j);
    char *all = check_read(path, &n);
    /* Six records, back to three, and on: the bytes are those of a run that never stopped. */
    cr_assert(events_open(&j, &dir, 3, true, 99, &e), "%s", e.msg);
    for (int s = 4; s <= 6; s++) cr_assert(events_train(&j, &(TrainRecord){.step = s, .loss = s, .mfu = -1}, s, &e));
    journal_close(&j);
    char *again = check_read(path, &m);
    cr_assert_eq(n, m);
    CHECK_BYTES("events", again, all, n);
    cr_assert(events_open(&j, &dir, 2, false, 99, &e) && j.f, "%s", e.msg); /* no longer wanted: cut all the same */
    journal_close(&j);
    free(again);
    again = check_read(path, &m);
    cr_assert_eq(events_kept((unsigned char *)all, n, 2), m);
    cr_assert(events_open(&j, &dir, -1, true, 1, &e), "%s", e.msg); /* from the beginning */
    journal_close(&j);
    free(again);
    again = check_read(path, &m);
    cr_assert_eq(events_kept((unsigned char *)all, n, 0), m);
    /* What cannot be. */
    char *command = xformat("rm -r '%s' && touch '%s'", tb, tb);
    cr_assert_eq(system(command), 0);
    cr_assert(!events_open(&j, &dir, -1, true, 1, &e) && strstr(e.msg, EVENTS_DIR) && !strchr(e.msg, '\n'), "%s",
              e.msg);
    journal_close(&j);
    /* Nothing is written through a link. */
    free(command);
    command = xformat("rm '%s' && mkdir '%s/other' && ln -s other '%s'", tb, run, tb);
    cr_assert_eq(system(command), 0);
    e = (Err){0};
    cr_assert(!events_open(&j, &dir, -1, true, 1, &e) && strstr(e.msg, "a link is not allowed"), "%s", e.msg);
    journal_close(&j);
    char *other = xformat("%s/other", run);
    cr_assert_eq(check_entries(other), 0);
    run_dir_close(&dir);
    free(other), free(command), free(again), free(all), free(tb), free(path), free(run);
}

/* ---- the program ----------------------------------------------------------------------------------------------------
 */

#ifndef KV_DOUBLE
static const char *message_field(const char *at, const char *end, int want, int *wire, uint64_t *v,
                                 const char **bytes) {
    while (at < end) { /* of a message, the first field `want` at or behind `at` */
        uint64_t key = 0, x = 0;
        for (int s = 0;; s += 7) {
            key |= (uint64_t)(*at & 127) << s;
            if (!(*at++ & 128)) break;
        }
        *wire = key & 7;
        *bytes = at;
        if (*wire == 0 || *wire == 2)
            for (int s = 0;; s += 7) {
                x |= (uint64_t)(*at & 127) << s;
                if (!(*at++ & 128)) break;
            }
        if (*wire == 2) *bytes = at, at += x;
        if (*wire == 1) at += 8;
        if (*wire == 5) at += 4;
        *v = x;
        if ((int)(key >> 3) == want) return at;
    }
    return NULL;
}

/* "step tag value" of every value, a line each. */
static char *text_of(const char *path, double *last_wall) {
    size_t n;
    char *p = check_read(path, &n), *text = NULL;
    FILE *f = open_memstream(&text, &(size_t){0});
    for (size_t at = 0; at + 16 <= n;) {
        uint64_t size, step = 0, v;
        const char *bytes, *sub;
        int wire;
        memcpy(&size, p + at, 8);
        const char *from = p + at + 12, *end = from + size;
        at += (size_t)size + 16;
        if (message_field(from, end, 2, &wire, &v, &bytes)) step = v;
        if (message_field(from, end, 1, &wire, &v, &bytes)) memcpy(last_wall, bytes, 8);
        if (!message_field(from, end, 5, &wire, &v, &bytes)) continue;
        const char *s = bytes, *stop = bytes + v;
        while ((s = message_field(s, stop, 1, &wire, &v, &sub))) {
            const char *tag, *num;
            uint64_t tag_n, x;
            float value;
            cr_assert(message_field(sub, sub + v, 1, &wire, &tag_n, &tag) &&
                      message_field(sub, sub + v, 2, &wire, &x, &num));
            memcpy(&value, num, 4);
            fprintf(f, "%llu %.*s %.6g\n", (unsigned long long)step, (int)tag_n, tag, (double)value);
        }
    }
    fclose(f);
    free(p);
    return text;
}

/* Every number of metrics.jsonl stands in the events once, and no other, over an interruption and a resumed run. */
Test(events, a_run_writes_what_its_metrics_say) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run), *path = file_of(run),
         *metrics = xformat("%s/metrics.jsonl", run);
    #define TRAIN                                                                                                     \
        "train", "configs/tiny-gqa.yaml", "--threads", "1", "-q", dir, "train.tensorboard=true", "train.log_every=2", \
            "optim.schedule_steps=20", "train.eval_every=5"
    Ran a = RUN(TRAIN, "train.steps=12", "train.save_every=9");
    cr_assert_eq(a.status, 0, "%s", a.err);
    char *gone = xformat("rm -r '%s/step-000012'", run); /* back to 9 */
    cr_assert_eq(system(gone), 0);
    a = RUN(TRAIN, "train.steps=20", "--resume", "auto");
    cr_assert_eq(a.status, 0, "%s", a.err);
    double wall = 0;
    char *events = text_of(path, &wall), *lines = check_read(metrics, NULL), *want = NULL;
    cr_assert(fabs(wall - (double)time(NULL)) < 600, "wall time %f", wall);
    FILE *f = open_memstream(&want, &(size_t){0});
    int records = 0;
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n"), records++) {
        static const char *const tags[] = {"loss", "lr", "grad_norm", "tok_s", "mfu", "val_loss"};
        long long step = atoll(line + strlen("{\"step\":"));
        for (int i = 0; i < 6; i++) {
            char *key = xformat("\"%s\":", tags[i]), *at = strstr(line, key);
            if (at && strncmp(at + strlen(key), "null", 4))
                fprintf(f, "%lld %s %.6g\n", step, tags[i], (double)strtof(at + strlen(key), NULL));
            free(key);
        }
    }
    fclose(f);
    cr_assert(records == 15, "%d records", records);
    /* tok_s and mfu are printed to fewer digits there: compared as numbers */
    char *g = events, *w = want;
    while (*g && *w) {
        char tag[2][32];
        long long step[2];
        double v[2];
        int len[2];
        cr_assert(sscanf(g, "%lld %31s %lf\n%n", &step[0], tag[0], &v[0], &len[0]) == 3);
        cr_assert(sscanf(w, "%lld %31s %lf\n%n", &step[1], tag[1], &v[1], &len[1]) == 3);
        cr_assert(step[0] == step[1] && !strcmp(tag[0], tag[1]) && fabs(v[0] - v[1]) <= 1e-3 * fabs(v[1]),
                  "%lld %s %g in the events, %lld %s %g in the metrics", step[0], tag[0], v[0], step[1], tag[1], v[1]);
        g += len[0], w += len[1];
    }
    cr_assert(!*g && !*w, "events go on with '%s', metrics with '%s'", g, w);
    CHECK_REFUSED(RUN("train", "configs/tiny-gqa.yaml", dir), 2, "already holds a run");
    free(gone), free(events), free(lines), free(want), free(metrics), free(path), free(dir), free(run);
}
#endif
