/* Synthetic tasks: every sample against a solver that reads nothing but the tokens, what the draws are distributed
 * like, that samples are pure functions of their number, what cannot be and what only just can. */
#include "data/loader.h"
#include "model/config/config.h"
#include "model/config/task_cfg.h"
#include "tests/lib/check.h"

enum { ROWS = 4096 };
static int tok[ROWS + 1], tgt[ROWS + 1];

/* ---- settings -------------------------------------------------------------------------------------------------------
 */

/* Settings as text: of a task as data.task has them, T beside. */
static bool read_task(TaskCfg *c, const char *text, int T, Err *e) {
    Node *x = tree_yaml(text, strlen(text), "task.yaml", e);
    bool ok = x && task_cfg_read(c, x, "data.task", T, e);
    tree_free(x);
    return ok;
}
static TaskCfg task_of(const char *text, int T) {
    TaskCfg c;
    Err e = {0};
    cr_assert(read_task(&c, text, T, &e), "%s T=%d: %s", text, T, e.msg);
    cr_assert(T <= ROWS);
    return c;
}
static void *work_of(const TaskCfg *c) {
    size_t n = task_work(c);
    void *w = xcalloc(n + 1, 1);
    memset(w, 0xA5, n + 1);
    return w;
}

/* ---- solvers --------------------------------------------------------------------------------------------------------
 * Each says what is to be answered at every row from the tokens up to it, -1 where nothing is, and checks on the way
 * that the sample has the form that the generator's comment gives. */
typedef void Solver(const TaskCfg *, int *want);

static void solve_mqar(const TaskCfg *c, int *want) {
    int D = c->pairs, half = c->vocab / 2, *value = xcalloc((size_t)c->vocab, sizeof *value), *asked = value,
        *has = xcalloc((size_t)c->vocab, sizeof *has), questions = 0;
    for (int i = 0; i < 2 * D; i++) {
        bool key = i % 2 == 0;
        cr_assert(key ? tok[i] >= 1 && tok[i] < half : tok[i] >= half, "row %d: %d is no %s", i, tok[i],
                  key ? "key" : "value");
        cr_assert(!has[tok[i]], "row %d: %d comes twice", i, tok[i]);
        has[tok[i]] = 1;
        if (key) value[tok[i]] = tok[i + 1];
    }
    for (int i = 2 * D; i < c->T; i++) {
        /* A row of noise may look like a question: what is a question is told by the target alone. */
        if (tgt[i] < 0) {
            cr_assert(c->noise || tok[i] == 0, "row %d holds %d, expected 0", i, tok[i]);
            continue;
        }
        cr_assert(i % 2 == 0 && tok[i] > 0 && tok[i] < half && asked[tok[i]] > 0, "row %d asks for %d", i, tok[i]);
        want[i] = value[tok[i]];
        asked[tok[i]] = -1; /* once */
        questions++;
    }
    cr_assert_eq(questions, D);
    free(value), free(has);
}

static void solve_palindrome(const TaskCfg *c, int *want) {
    int held[ROWS], n = 0, i = 0;
    for (; tok[i]; i++) held[n++] = tok[i];
    cr_assert_eq(n, c->T / 2);
    for (; n; i++) {
        want[i] = held[--n];
        if (i + 1 < c->T) cr_assert_eq(tok[i + 1], want[i]);
    }
    cr_assert(i == c->T - c->T % 2, "%d rows of %d", i, c->T);
}

static void solve_copy(const TaskCfg *c, int *want) {
    int n = 0, i = 1, from = 1;
    cr_assert_eq(tok[0], 0);
    for (; tok[i] != 1; i++, n++) cr_assert_geq(tok[i], 2);
    cr_assert_eq(n, (c->T - 1) / 2);
    for (; n; i++, n--) {
        want[i] = tok[from++];
        if (i + 1 < c->T) cr_assert_eq(tok[i + 1], want[i]);
    }
    cr_assert(i >= c->T - 1);
}

static void solve_stack(const TaskCfg *c, int *want) {
    /* every push leaves a mark in a log; a pop takes the newest mark of its stack */
    int log_stack[ROWS], log_element[ROWS], n = 0, ops = c->T / 3;
    for (int i = 0; i < 3 * ops; i += 3) {
        int s = tok[i + 1] - 2, x = tok[i + 2];
        cr_assert(tok[i] <= 1 && s >= 0 && s < c->stacks && x >= 2 + c->stacks, "operation %d: %d %d %d", i / 3, tok[i],
                  tok[i + 1], x);
        if (tok[i] == 0) {
            log_stack[n] = s, log_element[n++] = x;
            continue;
        }
        int k = n - 1;
        while (k >= 0 && log_stack[k] != s) k--;
        cr_assert(k >= 0, "operation %d pops the empty stack %d", i / 3, s);
        want[i + 1] = log_element[k];
        cr_assert_eq(x, log_element[k], "operation %d pops %d, expected %d", i / 3, x, log_element[k]);
        log_stack[k] = -1;
    }
    for (int i = 3 * ops; i < c->T; i++) cr_assert_eq(tok[i], 0);
}

static void solve_induction(const TaskCfg *c, int *want) {
    int last[ROWS], times[ROWS] = {0}, n = 0;
    for (int i = 0; i < c->T; i++) {
        int a = tok[i];
        if (tgt[i] >= 0) {
            cr_assert_eq(times[a], 1, "row %d: %d came %d times before", i, a, times[a]);
            want[i] = tok[last[a] + 1];
            cr_assert(i - last[a] >= 2 && (!c->distance || i - last[a] == c->distance), "row %d: distance %d", i,
                      i - last[a]);
            if (i + 1 < c->T) cr_assert_eq(tok[i + 1], want[i]);
            times[a] = 1000000;
            n++;
        } else {
            cr_assert_lt(times[a], 1000000, "row %d: %d once more", i, a);
            times[a]++;
            last[a] = i;
        }
    }
    cr_assert_eq(n, c->bigrams);
}

static void solve_needle(const TaskCfg *c, int *want) {
    int m = c->length, n = c->needles, H = c->T - m - 1, asks = 0, at = -1, behind = -m - 1, keys = 0;
    for (int i = 0; i < c->T; i++) asks += tok[i] == 0;
    cr_assert(asks == 1 && tok[H] == 0, "%d rows that ask, row %d holds %d", asks, H, tok[H]);
    for (int i = 0; i < H; i++) {
        if (tok[i] > n) continue;
        cr_assert(i - behind > m, "a needle of length %d at row %d, another at %d", m, behind, i);
        behind = i;
        keys++;
        if (tok[i] == tok[H + 1]) at = i;
    }
    cr_assert(keys == n && behind + m < H && at >= 0, "%d needles, the last at %d of %d", keys, behind, H);
    double depth = H - m - 1 ? at / (double)(H - m - 1) : 0, half = H - m - 1 ? 0.500001 / (H - m - 1) : 0;
    cr_assert(H == m + 1 || (depth >= c->depth_min - half && depth <= c->depth_max + half), "depth %g", depth);
    for (int i = 0; i < m; i++) {
        want[H + 1 + i] = tok[at + 1 + i];
        if (i < m - 1) cr_assert_eq(tok[H + 2 + i], tok[at + 1 + i]);
    }
}

static const struct {
    const char *text;
    int T, samples;
} forms[] = {
    {"mqar", 256, 200},
    {"{name: mqar, vocab: 8192, pairs: 64}", 512, 50},
    {"{name: mqar, pairs: 8, vocab: 19, noise: false}", 65, 300},
    {"{name: mqar, pairs: 255}", 1020, 20}, /* every key, every place */
    {"{name: mqar, pairs: 5, power: 3}", 41, 300},
    {"{name: mqar, pairs: 1, vocab: 4}", 4, 50},
    {"{name: mqar, pairs: 1024, vocab: 8192}", 4096, 3},
    {"palindrome", 256, 100},
    {"{name: palindrome, vocab: 3}", 2, 50},
    {"{name: palindrome, vocab: 5}", 31, 50},
    {"copy", 256, 100},
    {"{name: copy, vocab: 4}", 3, 50},
    {"{name: copy, vocab: 9}", 32, 50},
    {"stack", 256, 200},
    {"{name: stack, stacks: 1, vocab: 5}", 6, 300},
    {"{name: stack, stacks: 3, vocab: 9, pop: 0.3}", 101, 300},
    {"{name: stack, stacks: 5, vocab: 60, pop: 0}", 100, 100},
    {"{name: stack, stacks: 5, vocab: 60, pop: 1}", 90, 100},
    {"{name: stack, stacks: 64, vocab: 512, pop: 0.45}", 4096, 5},
    {"induction", 256, 200},
    {"{name: induction, vocab: 3}", 3, 50},
    {"{name: induction, vocab: 8, distance: 2}", 3, 50},
    {"{name: induction, vocab: 8, distance: 7}", 40, 300},
    {"{name: induction, vocab: 9, distance: 39}", 40, 50},
    {"{name: induction, vocab: 64, bigrams: 16}", 63, 100},
    {"{name: induction, vocab: 40, bigrams: 7}", 50, 300},
    {"needle", 256, 200},
    {"{name: needle, length: 1, vocab: 4}", 4, 50},
    {"{name: needle, length: 3, depth_min: 0.5, depth_max: 0.5}", 77, 100},
    {"{name: needle, length: 3, depth_min: 0.9}", 77, 200},
    {"{name: needle, needles: 5, length: 3, vocab: 12}", 30, 300}, /* as tight as is allowed */
    {"{name: needle, needles: 20, length: 1}", 100, 200},
    {"{name: needle, needles: 3, length: 6, vocab: 9, depth_max: 0.1}", 128, 200},
};
enum { NFORMS = sizeof forms / sizeof *forms };

static Solver *solver(const TaskCfg *c) {
    static const struct {
        const char *name;
        Solver *solve;
    } all[] = {{"mqar", solve_mqar},   {"palindrome", solve_palindrome}, {"copy", solve_copy},
               {"stack", solve_stack}, {"induction", solve_induction},   {"needle", solve_needle}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, c->kind->name)) return all[i].solve;
    cr_assert(false, "no solver for %s", c->kind->name);
    return NULL;
}

Test(task, samples_are_solved) {
    bool met[64] = {0};
    for (int f = 0; f < NFORMS; f++) {
        TaskCfg c = task_of(forms[f].text, forms[f].T);
        Solver *solve = solver(&c);
        void *work = work_of(&c);
        for (int i = 0; tasks[i]; i++) met[i] |= tasks[i] == c.kind;
        for (int s = 0; s < forms[f].samples; s++) {
            int want[ROWS], asked = 0;
            task_sample(&c, (TaskStream)(s % 3), 11, (uint64_t)s, tok, tgt, work);
            for (int i = 0; i < c.T; i++) {
                want[i] = -1;
                asked += tgt[i] >= 0;
                cr_assert(tok[i] >= 0 && tok[i] < c.vocab && tgt[i] >= -1 && tgt[i] < c.vocab,
                          "%s sample %d row %d: %d %d", forms[f].text, s, i, tok[i], tgt[i]);
            }
            cr_assert_gt(asked, 0, "%s: sample %d asks nothing", forms[f].text, s);
            solve(&c, want);
            for (int i = 0; i < c.T; i++)
                cr_assert_eq(tgt[i], want[i], "%s sample %d row %d: target %d, the solver says %d", forms[f].text, s, i,
                             tgt[i], want[i]);
        }
        free(work);
    }
    for (int i = 0; tasks[i]; i++) cr_assert(met[i] || tasks[i]->text, "no form of %s", tasks[i]->name);
}

/* ---- purity ---------------------------------------------------------------------------------------------------------
 */

Test(task, samples_are_pure_functions) {
    for (int f = 0; f < NFORMS; f++) {
        TaskCfg c = task_of(forms[f].text, forms[f].T);
        size_t n = (size_t)c.T, bytes = task_work(&c);
        unsigned char *work = xcalloc(bytes + 64, 1);
        int *a = xcalloc(n + 1, sizeof *a), *b = xcalloc(n + 1, sizeof *b), same[3] = {0};
        enum { TRIES = 40 };
        for (uint64_t s = 0; s < TRIES; s++) {
            memset(work, (int)s, bytes + 64);
            memset(tok, 0x7F, sizeof tok), memset(tgt, 0x7F, sizeof tgt);
            task_sample(&c, TASK_TRAIN, 5, s, tok, tgt, work);
            for (size_t i = bytes; i < bytes + 64; i++)
                cr_assert_eq(work[i], (unsigned char)s, "%s writes past its work", forms[f].text);
            cr_assert(tok[n] == 0x7F7F7F7F && tgt[n] == 0x7F7F7F7F, "%s writes past the sample", forms[f].text);
            memset(work, 0xC3, bytes);
            task_sample(&c, TASK_TRAIN, 5, s, a, b, work);
            CHECK_BYTES(forms[f].text, a, tok, n * sizeof *a);
            CHECK_BYTES(forms[f].text, b, tgt, n * sizeof *b);
            task_sample(&c, TASK_TRAIN, 5, s + 1, a, b, work);
            same[0] += !memcmp(a, tok, n * sizeof *a) && !memcmp(b, tgt, n * sizeof *b);
            task_sample(&c, TASK_TRAIN, 6, s, a, b, work);
            same[1] += !memcmp(a, tok, n * sizeof *a) && !memcmp(b, tgt, n * sizeof *b);
            task_sample(&c, s % 2 ? TASK_VAL : TASK_TEST, 5, s, a, b, work);
            same[2] += !memcmp(a, tok, n * sizeof *a) && !memcmp(b, tgt, n * sizeof *b);
        }
        /* Of the smallest forms there are but few samples at all. */
        for (int k = 0; k < 3; k++)
            cr_assert(same[k] <= (n <= 6 ? TRIES * 3 / 4 : 0), "%s: %d of %d other samples are the same (%d)",
                      forms[f].text, same[k], TRIES, k);
        free(work), free(a), free(b);
    }
}

Test(task, batches_are_samples) {
    enum { MOST = 5 };
    for (int f = 0; f < NFORMS; f++) {
        TaskCfg c = task_of(forms[f].text, forms[f].T);
        void *work = work_of(&c);
        Loader l;
        Err e = {0};
        cr_assert(loader_open_task(&l, &c, MOST, true, &e), "%s", e.msg);
        cr_assert_eq(l.mem.peak, loader_bytes_task(&c, MOST));
        for (uint64_t at = 3; at < 12; at += 4) {
            int b = at == 3 ? MOST : 2;
            int64_t asked = 0;
            loader_task(&l, TASK_VAL, 9, at, b);
            cr_assert(l.batch.B == b && l.batch.N == b * c.T && !l.batch.history);
            for (int s = 0; s < b; s++) {
                int r = l.batch.off[s];
                task_sample(&c, TASK_VAL, 9, at + (uint64_t)s, tok, tgt, work);
                cr_assert(r == s * c.T && l.batch.id[s] == at + (uint64_t)s && l.batch.seq[s] == s);
                CHECK_BYTES("tok", l.tok + r, tok, (size_t)c.T * sizeof *tok);
                CHECK_BYTES("tgt", l.tgt + r, tgt, (size_t)c.T * sizeof *tgt);
                for (int i = 0; i < c.T; i++) {
                    cr_assert(l.batch.of[r + i] == s && l.batch.pos[r + i] == i && l.batch.first[r + i] == r);
                    asked += tgt[i] >= 0;
                }
            }
            cr_assert_eq(l.batch.off[b], b * c.T);
            cr_assert_eq(loader_task_targets(&l, TASK_VAL, 9, at, b), asked);
        }
        /* More than there is room for at once. */
        int64_t one = 0;
        for (uint64_t s = 0; s < 17; s++) one += loader_task_targets(&l, TASK_TRAIN, 2, s, 1);
        cr_assert_eq(loader_task_targets(&l, TASK_TRAIN, 2, 0, 17), one);
        arena_guards(&l.mem);
        loader_close(&l);
        free(work);
    }
}

Test(task, hash_is_of_every_setting) {
    static const char *const others[][2] = {{"mqar", "{name: mqar, vocab: 514}"},
                                            {"mqar", "{name: mqar, pairs: 31}"},
                                            {"mqar", "{name: mqar, power: 0.02}"},
                                            {"mqar", "{name: mqar, noise: false}"},
                                            {"{name: copy, vocab: 64}", "palindrome"},
                                            {"stack", "{name: stack, stacks: 63}"},
                                            {"stack", "{name: stack, pop: 0.25}"},
                                            {"induction", "{name: induction, bigrams: 2}"},
                                            {"induction", "{name: induction, distance: 2}"},
                                            {"needle", "{name: needle, needles: 2}"},
                                            {"needle", "{name: needle, length: 5}"},
                                            {"needle", "{name: needle, depth_min: 0.5}"},
                                            {"needle", "{name: needle, depth_max: 0.5}"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        TaskCfg a = task_of(others[i][0], 128), b = task_of(others[i][1], 128), longer = task_of(others[i][0], 129);
        cr_assert(task_hash(&a) == task_hash(&a) && task_hash(&a) != task_hash(&b) &&
                      task_hash(&a) != task_hash(&longer),
                  "%s", others[i][1]);
    }
}

/* ---- distributions --------------------------------------------------------------------------------------------------
 */

/* Chi-square of n cells against their expected parts, with a limit that a true hypothesis passes in 999 of 1000. */
static void fits(const char *what, const int64_t *count, const double *part, int n) {
    double total = 0, sum = 0, chi = 0, df = n - 1, h = 2 / (9 * df), limit = df * pow(1 - h + 3.1 * sqrt(h), 3);
    for (int i = 0; i < n; i++) total += (double)count[i], sum += part ? part[i] : 1;
    for (int i = 0; i < n; i++) {
        double want = total * (part ? part[i] : 1) / sum;
        cr_assert(want >= 5, "%s: cell %d of %d expects %g", what, i, n, want);
        chi += pow((double)count[i] - want, 2) / want;
    }
    cr_assert(chi < limit, "%s: chi-square %g in %d cells, limit %g", what, chi, n, limit);
}

Test(task, mqar_places_keys_and_noise) {
    enum { D = 3, T = 46, PLACES = (T - 2 * D) / 2, V = 24, SAMPLES = 20000 };
    TaskCfg c = task_of("{name: mqar, vocab: 24, pairs: 3, power: 0.3}", T);
    void *work = work_of(&c);
    int64_t first[PLACES] = {0}, second[PLACES] = {0}, key[V / 2 - 1] = {0}, value[V / 2] = {0}, noise[V] = {0};
    double p[PLACES], q[PLACES] = {0}, sum = 0;
    for (int i = 0; i < PLACES; i++) sum += p[i] = pow(i + 1, 0.3 - 1);
    for (int i = 0; i < PLACES; i++) /* the second draw, by all the first could be */
        for (int j = 0; j < PLACES; j++)
            if (i != j) q[i] += p[j] / sum * p[i] / (sum - p[j]);
    for (uint64_t s = 0; s < SAMPLES; s++) {
        task_sample(&c, TASK_TRAIN, 1, s, tok, tgt, work);
        key[tok[2] - 1]++;
        value[tok[5] - V / 2]++;
        for (int i = 2 * D; i < T; i++) {
            if (tgt[i] < 0) noise[tok[i]]++;
            if (tgt[i] >= 0 && tok[i] == tok[0]) first[(i - 2 * D) / 2]++;
            if (tgt[i] >= 0 && tok[i] == tok[2]) second[(i - 2 * D) / 2]++;
        }
    }
    fits("the place of the first key's question", first, p, PLACES);
    fits("the place of the second key's question", second, q, PLACES);
    fits("keys", key, NULL, V / 2 - 1);
    fits("values", value, NULL, V / 2);
    fits("noise", noise, NULL, V);
    free(work);
}

Test(task, symbols_are_uniform) {
    enum { V = 9, T = 40, SAMPLES = 4000 };
    static const char *const texts[] = {"{name: palindrome, vocab: 9}", "{name: copy, vocab: 9}",
                                        "{name: induction, vocab: 9, bigrams: 2}",
                                        "{name: needle, vocab: 9, needles: 2, length: 2}",
                                        "{name: stack, vocab: 9, stacks: 3}"};
    for (int k = 0; k < 5; k++) {
        TaskCfg c = task_of(texts[k], T);
        void *work = work_of(&c);
        int64_t asked[V] = {0}, operation[2] = {0}, pushed[3] = {0};
        int from = (int[]){1, 2, 0, 3, 5}[k];
        for (uint64_t s = 0; s < SAMPLES; s++) {
            task_sample(&c, TASK_VAL, 3, s, tok, tgt, work);
            for (int i = 0; i < T; i++)
                if (tgt[i] >= 0) asked[tgt[i]]++;
            for (int i = 3; k == 4 && i < 3 * (T / 3) - 3; i += 3) {
                if (tok[i] == 0) pushed[tok[i + 1] - 2]++;
                bool empty = true; /* as many pops as pushes so far: then a push must come */
                int n = 0;
                for (int j = 0; j < i; j += 3) n += tok[j] ? -1 : 1;
                empty = n == 0;
                if (!empty) operation[tok[i]]++;
            }
        }
        for (int v = 0; v < from; v++) cr_assert_eq(asked[v], 0, "%s answers %d", texts[k], v);
        fits(texts[k], asked + from, NULL, V - from);
        if (k == 4) fits("pushes and pops", operation, NULL, 2), fits("stacks", pushed, NULL, 3);
        free(work);
    }
}

/* Of two pairs of cells among T+1 that do not overlap every choice is as likely. */
Test(task, induction_places) {
    enum { T = 11, SAMPLES = 30000 };
    TaskCfg c = task_of("{name: induction, vocab: 7}", T), d = task_of("{name: induction, vocab: 7, distance: 4}", T);
    void *work = work_of(&c);
    int64_t place[T][T] = {{0}}, flat[T * T], start[T] = {0};
    int n = 0;
    for (uint64_t s = 0; s < SAMPLES; s++) {
        int p = 0, q = 0;
        task_sample(&c, TASK_TRAIN, 1, s, tok, tgt, work);
        while (tgt[q] < 0) q++;
        while (tok[p] != tok[q]) p++;
        place[p][q]++;
        task_sample(&d, TASK_TRAIN, 1, s, tok, tgt, work);
        for (q = 0; tgt[q] < 0;) q++;
        start[q - 4]++;
    }
    for (int p = 0; p < T; p++)
        for (int q = 0; q < T; q++) {
            if (q >= p + 2)
                flat[n++] = place[p][q];
            else
                cr_assert_eq(place[p][q], 0);
        }
    fits("places", flat, NULL, n);
    fits("places at a distance", start, NULL, T - 4);
    free(work);
}

Test(task, needle_depths) {
    enum { T = 60, M = 3, LAST = T - 2 * (M + 1), SAMPLES = 40000, N = 3 };
    TaskCfg c = task_of("{name: needle, needles: 3, length: 3}", T),
            d = task_of("{name: needle, depth_min: 0.25, depth_max: 0.75, length: 3}", T);
    void *work = work_of(&c);
    int64_t at[LAST + 1] = {0}, asked[N] = {0}, half[LAST + 1] = {0}, side[2] = {0};
    double p[LAST + 1], expect[2] = {0};
    for (int i = 0; i <= LAST; i++) p[i] = i && i < LAST ? 1 : 0.5; /* rounded: the ends get half */
    for (uint64_t s = 0; s < SAMPLES; s++) {
        int i = 0;
        task_sample(&c, TASK_TEST, 1, s, tok, tgt, work);
        while (tok[i] != tok[T - M]) i++;
        at[i]++;
        asked[tok[i] - 1]++;
        for (int j = 0; j < T - M - 1; j++)
            if (j != i && tok[j] <= N) side[j > i]++;
        task_sample(&d, TASK_TEST, 1, s, tok, tgt, work);
        for (i = 0; tok[i] != 1;) i++;
        half[i]++;
    }
    fits("depth", at, p, LAST + 1);
    fits("keys", asked, NULL, N);
    expect[0] = expect[1] = 1;
    fits("other needles before and behind", side, expect, 2);
    int lo = (int)lround(0.25 * LAST), hi = (int)lround(0.75 * LAST);
    for (int i = 0; i <= LAST; i++) cr_assert((half[i] > 0) == (i >= lo && i <= hi), "row %d: %d", i, (int)half[i]);
    free(work);
}

/* ---- refusals -------------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *text;
    int T;
    const char *says; /* NULL: as small as it can be */
} limits[] = {
    {"nosuch", 64, "data.task: unknown name 'nosuch'; known: mqar, palindrome"},
    {"mqra", 64, "did you mean mqar?"},
    {"{name: mqar, pears: 3}", 64, "data.task.pears: unknown key; did you mean data.task.pairs?"},
    {"{pairs: 3}", 64, "data.task.name: required"},
    {"[mqar]", 64, "expected {name: TASK, settings...}, got a list"},
    {"{name: [mqar]}", 64, "got a list"},
    {"{name: mqar, T: 64}", 64, "data.task.T: unknown key"},
    {"{name: copy, pairs: 3}", 64, "data.task.pairs: unknown key; known: vocab, name"},
    {"{name: mqar, pairs: 0}", 64, "data.task.pairs: expected a whole number from 1"},
    {"{name: mqar, power: -1}", 256, "power: expected a number from 0 to 10"},
    {"{name: mqar, vocab: 66}", 256, NULL},
    {"{name: mqar, vocab: 65}", 256,
     "pairs: 32 need as many keys, but a vocab of 65 has 31 (1 to vocab/2 - 1); give 66"},
    {"mqar", 128, NULL},
    {"mqar", 127, "pairs: 32 pairs and questions need 4 x pairs = 128 tokens, a sample has 127"},
    {"{name: mqar, vocab: 2, pairs: 1}", 64, "has 0"},
    {"{name: palindrome, vocab: 2}", 64, "vocab: expected at least 3"},
    {"palindrome", 1, "at least 2 tokens, got 1"},
    {"{name: copy, vocab: 3}", 64, "vocab: expected at least 4"},
    {"copy", 2, "at least 3 tokens, got 2"},
    {"{name: stack, stacks: 126}", 64, NULL},
    {"{name: stack, stacks: 127}", 64,
     "stacks: 127 stacks, two operations and at least two elements need a vocab of 131"},
    {"{name: stack, stacks: 1048576, vocab: 1048576}", 64, "stacks: 1048576"},
    {"{name: stack, pop: 1.1}", 64, "pop: expected a number from 0 to 1"},
    {"stack", 5, "at least 6 tokens"},
    {"{name: induction, vocab: 2}", 64, "bigrams: 1 and at least two other symbols need a vocab of 3, got 2"},
    {"{name: induction, bigrams: 16}", 63, NULL},
    {"{name: induction, bigrams: 16}", 62, "4 x bigrams - 1 = 63 tokens"},
    {"{name: induction, distance: 1}", 64, "distance: expected 0, or 2 to 63"},
    {"{name: induction, distance: 63}", 64, NULL},
    {"{name: induction, distance: 64}", 64, "distance: expected 0, or 2 to 63 in samples of 64 tokens, got 64"},
    {"{name: induction, distance: 6, bigrams: 2}", 64, "distance: can be chosen for one bigram only"},
    {"{name: needle, needles: 61}", 4096, NULL},
    {"{name: needle, needles: 62}", 4096, "needles: 62 keys, the one that asks and two symbols need a vocab of 65"},
    {"needle", 10, NULL},
    {"needle", 9, "needles: 1 of length 4 need 10 tokens, a sample has 9"},
    {"{name: needle, needles: 3}", 28, NULL},
    {"{name: needle, needles: 3}", 27, "need 28 tokens"},
    {"{name: needle, depth_min: 0.6, depth_max: 0.5}", 64, "depth_min: 0.6 is more than depth_max, 0.5"},
    {"{name: needle, length: 1048576}", 64, "need 2097154 tokens"},
};
Test(task, impossible_settings) {
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        TaskCfg c, zero = {0};
        Err e = {0};
        bool ok = read_task(&c, limits[i].text, limits[i].T, &e);
        cr_assert_eq(ok, !limits[i].says, "%s T=%d: %s", limits[i].text, limits[i].T, ok ? "accepted" : e.msg);
        if (ok) continue;
        cr_assert(e.status == EXIT_INPUT && strstr(e.msg, limits[i].says), "%s: status %d, %s", limits[i].text,
                  e.status, e.msg);
        CHECK_BYTES("settings", &c, &zero, sizeof c);
    }
}

/* A member of TaskCfg that no table reads would be a setting that cannot be set; of a task that does not name it, it
 * stays zero, so that equal settings are equal bytes. */
Test(task, every_member_has_a_key) {
    TaskCfg c;
    bool read[sizeof c] = {0};
    memset(read, true, offsetof(TaskCfg, vocab)); /* the kind and T */
    for (int i = 0; tasks[i]; i++)
        for (const Key *k = tasks[i]->keys; k->name; k++)
            memset(read + k->at, true, k->type == KEY_FLOAT ? sizeof(double) : sizeof(int));
    int without = 0;
    for (size_t i = 0; i < sizeof c; i++) without += !read[i];
    cr_assert_leq(without, 4, "%d bytes without a key are more than alignment needs", without);
}

/* What a run's configuration says about its task. */
static const struct {
    const char *override, *says;
} configs[] = {
    {"data.task=copy", NULL},
    {"data.task={name: mqar, pairs: 8}", NULL},
    {"data.train=x.txt", "a task makes its own samples, but data.train is given"},
    {"data.val=x.txt", "but data.val is given"},
    {"data.separator=x", "but data.separator is given"},
    {"data.eot=x", "but data.eot is given"},
    {"data.tokenizer=x.json", "but data.tokenizer is given"},
    {"train.sample_every=5", "train.sample_every is 5"},
    {"data.val_samples=0", "data.val_samples: expected a whole number from 1"},
    {"data.seq_len=15", "4 x pairs = 16 tokens, a sample has 15"},
    {"data.task.pairs=16", "16 need as many keys"},
    {"data.task=nosuch", "unknown name 'nosuch'"},
    {"data.task=", "train.stop_at_acc: a text has no answers"},
    {"train.stop_at_acc=1.5", "train.stop_at_acc: expected a number from 0 to 1"},
};
Test(task, in_a_configuration) {
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        Config *c = xcalloc(1, sizeof *c);
        Err e = {0};
        char *over[] = {"train.stop_at_acc=0.5", (char *)configs[i].override};
        bool ok = config_read(c, "configs/tiny-mqar.yaml", 2, over, &e);
        cr_assert_eq(ok, !configs[i].says, "%s: %s", over[1], ok ? "accepted" : e.msg);
        if (!ok) {
            cr_assert(e.status == EXIT_INPUT && strstr(e.msg, configs[i].says), "%s: %s", over[1], e.msg);
        } else { /* what is written reads back to the same */
            Config *d = xcalloc(1, sizeof *d);
            char *text = config_text(c);
            cr_assert(config_parse(d, text, strlen(text), "again", 0, NULL, &e), "%s\n%s", e.msg, text);
            CHECK_BYTES("task", &d->data.task, &c->data.task, sizeof c->data.task);
            cr_assert(c->data.task.T == 32 && config_trainable(c, &e) && config_resumable(c, d, 0, &e), "%s", e.msg);
            free(text);
            config_free(d);
            free(d);
            config_free(c);
        }
        free(c);
    }
}
