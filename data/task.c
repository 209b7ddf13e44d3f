/* task.c: the generators of the tasks' samples. Ids with a meaning come first, symbols without meaning after them. */
#include "task.h"
#include "task_draw.h"
#include "task_text.h"

#define AT(member) offsetof(TaskCfg, member)
#define VOCAB_KEY(dflt, meaning) \
    { "vocab", KEY_INT, AT(vocab), dflt, 2, TASK_VOCAB_MAX, meaning, 0, 0 }

/* ---- mqar -----------------------------------------------------------------------------------------------------------
 * Keys 1..V/2-1, values V/2..V-1 (V/2 rounded down), each at most once.
 *   rows 0..2D-1   k1 v1 k2 v2 ... kD vD
 *   the rest       (T-2D)/2 places of two rows; key j is asked for at the first row of place g_j: target v_j there.
 * Places are drawn one after the other without replacement, place i (from 1) with probability proportional to i^(a-1).
 * Every other row holds any id (noise), or 0. */
static const Key mqar_keys[] = {
    VOCAB_KEY("512", "ids: keys 1 to vocab/2 - 1, values from vocab/2 on"),
    {"pairs", KEY_INT, AT(pairs), "32", 1, TASK_LEN_MAX, "keys with a value; each is asked for once", 0, 0},
    {"power", KEY_FLOAT, AT(power), "0.01", 0, 10, "a: position i of a question has probability ~ i^(a-1)", 0, 0},
    {"noise", KEY_BOOL, AT(noise), "true", 0, 0, "rows between the questions hold any id; false: 0", 0, 0},
    {0}};

static bool mqar_check(const TaskCfg *c, Err *e) {
    int keys = c->vocab / 2 - 1;
    if (c->pairs > keys)
        return err_input(e, "pairs: %d need as many keys, but a vocab of %d has %d (1 to vocab/2 - 1); give %d or more",
                         c->pairs, c->vocab, imax(keys, 0), 2 * (c->pairs + 1));
    if ((int64_t)4 * c->pairs > c->T)
        return err_input(e, "pairs: %d pairs and questions need 4 x pairs = %d tokens, a sample has %d", c->pairs,
                         4 * c->pairs, c->T);
    return true;
}

/* A place with the time at which it is drawn: exponential clocks of rates p_i ring in the order of successive draws
 * without replacement. */
typedef struct {
    double when;
    int place;
} Clock;
static int mqar_places(const TaskCfg *c) { return (c->T - 2 * c->pairs) / 2; }
static size_t mqar_work(const TaskCfg *c) {
    return (size_t)mqar_places(c) * sizeof(Clock) + (size_t)c->vocab * sizeof(int);
}

static void task_sink(Clock *h, int n, int i) {
    for (int kid; (kid = 2 * i + 1) < n; i = kid) {
        if (kid + 1 < n && h[kid + 1].when < h[kid].when) kid++;
        if (!(h[kid].when < h[i].when)) return;
        Clock swap = h[i];
        h[i] = h[kid], h[kid] = swap;
    }
}

static void mqar_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    Draw fill = draw_make(key, "fill"), when = draw_make(key, "when"), pick = draw_make(key, "pairs");
    int D = c->pairs, half = c->vocab / 2, n = mqar_places(c);
    Clock *h = work;
    int *keys = (int *)(h + n), *values = keys + half - 1;
    task_deal(&pick, keys, 1, half - 1, D);
    task_deal(&pick, values, half, c->vocab - half, D);
    for (int i = 2 * D; c->noise && i < c->T; i++) tok[i] = task_below(&fill, c->vocab);
    for (int i = 0; i < n; i++) h[i] = (Clock){-log(task_unit(&when)) * pow(i + 1, 1 - c->power), i};
    for (int i = n / 2 - 1; i >= 0; i--) task_sink(h, n, i);
    for (int j = 0; j < D; j++) {
        int row = 2 * (D + h[0].place);
        tok[2 * j] = keys[j], tok[2 * j + 1] = values[j];
        tok[row] = keys[j], tgt[row] = values[j];
        h[0] = h[--n];
        task_sink(h, n, 0);
    }
}

/* ---- palindrome -----------------------------------------------------------------------------------------------------
 * 0 is the separator, 1..V-1 are symbols; n = T/2 rounded down.   x1 .. xn 0 xn .. x2 (x1)
 * Targets are xn .. x1 from the separator on. x1 itself is in the last row when T is odd. */
static const Key palindrome_keys[] = {VOCAB_KEY("64", "ids: 0 separates, the rest are symbols"), {0}};

static bool palindrome_check(const TaskCfg *c, Err *e) {
    if (c->vocab < 3) return err_input(e, "vocab: expected at least 3, a separator and two symbols, got %d", c->vocab);
    return c->T >= 2 || err_input(e, "a palindrome needs samples of at least 2 tokens, got %d", c->T);
}
static void palindrome_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    (void)work;
    Draw d = draw_make(key, "symbols");
    int n = c->T / 2;
    for (int i = 0; i < n; i++) tok[i] = 1 + task_below(&d, c->vocab - 1);
    for (int j = 0; j < n; j++) {
        tgt[n + j] = tok[n - 1 - j];
        if (n + 1 + j < c->T) tok[n + 1 + j] = tok[n - 1 - j];
    }
}

/* ---- copy -----------------------------------------------------------------------------------------------------------
 * 0 begins, 1 separates, 2..V-1 are symbols; n = (T-1)/2 rounded down.   0 x1 .. xn 1 x1 .. x(n-1) (xn)
 * Targets x1 .. xn from the separator on. */
static const Key copy_keys[] = {VOCAB_KEY("66", "ids: 0 begins, 1 separates, the rest are symbols"), {0}};

static bool copy_check(const TaskCfg *c, Err *e) {
    if (c->vocab < 4)
        return err_input(e, "vocab: expected at least 4, two ids with a meaning and two symbols, got %d", c->vocab);
    return c->T >= 3 || err_input(e, "copy needs samples of at least 3 tokens, got %d", c->T);
}
static void copy_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    (void)work;
    Draw d = draw_make(key, "symbols");
    int n = (c->T - 1) / 2;
    for (int i = 0; i < n; i++) tok[1 + i] = 2 + task_below(&d, c->vocab - 2);
    tok[n + 1] = 1;
    for (int j = 0; j < n; j++) {
        tgt[n + 1 + j] = tok[1 + j];
        if (n + 2 + j < c->T) tok[n + 2 + j] = tok[1 + j];
    }
}

/* ---- stack ----------------------------------------------------------------------------------------------------------
 * 0 pushes, 1 pops, 2..S+1 are the S stacks, S+2..V-1 are elements. A sample is T/3 operations of three rows,
 *   0 stack element      1 stack element
 * The element of a pop is the last one pushed on this stack that is still there; it is the target at the row of the
 * stack's id. An operation is a pop with probability `pop` if some stack holds something, each of those stacks being
 * equally likely; the last operation is always a pop. Rows after it hold 0. */
static const Key stack_keys[] = {VOCAB_KEY("130", "ids: 0 pushes, 1 pops, then the stacks, the rest are elements"),
                                 {"stacks", KEY_INT, AT(stacks), "64", 1, TASK_VOCAB_MAX, "number of stacks", 0, 0},
                                 {"pop", KEY_FLOAT, AT(pop), "0.5", 0, 1,
                                  "probability that an operation is a pop, where one is possible", 0, 0},
                                 {0}};

static bool stack_check(const TaskCfg *c, Err *e) {
    if (c->vocab < 4 || c->stacks > c->vocab - 4)
        return err_input(e, "stacks: %d stacks, two operations and at least two elements need a vocab of %lld, got %d",
                         c->stacks, (long long)c->stacks + 4, c->vocab);
    return c->T >= 6 || err_input(e, "a stack needs samples of at least 6 tokens, a push and a pop, got %d", c->T);
}
static size_t stack_work(const TaskCfg *c) { return (3 * (size_t)c->stacks + 2 * (size_t)(c->T / 3)) * sizeof(int); }

static void stack_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    Draw d = draw_make(key, "operations");
    int S = c->stacks, ops = c->T / 3, held = 0; /* held: stacks that are not empty */
    int *top = work, *list = top + S, *where = list + S, *below_it = where + S, *element = below_it + ops;
    for (int s = 0; s < S; s++) top[s] = -1;
    for (int i = 0; i < ops; i++, tok += 3, tgt += 3) {
        bool pop = held && (task_unit(&d) < c->pop || i == ops - 1);
        int s = pop ? list[task_below(&d, held)] : task_below(&d, S);
        if (pop) {
            int node = top[s];
            tok[0] = 1, tok[1] = 2 + s, tok[2] = tgt[1] = element[node];
            top[s] = below_it[node];
            if (top[s] < 0) { /* the last of the list replaces it */
                list[where[s]] = list[--held];
                where[list[where[s]]] = where[s];
            }
        } else {
            tok[0] = 0, tok[1] = 2 + s, tok[2] = element[i] = 2 + S + task_below(&d, c->vocab - 2 - S);
            if (top[s] < 0) list[where[s] = held++] = s;
            below_it[i] = top[s], top[s] = i;
        }
    }
}

/* ---- induction ------------------------------------------------------------------------------------------------------
 * All ids are symbols. Symbols, of which k occur exactly twice as a first half of a pair:  .. a b .. a (b) ..  the
 * second a asks for b. No other row holds an a. The pairs do not overlap; a b beyond the last row is a target only. */
static const Key induction_keys[] = {VOCAB_KEY("64", "ids, all of them symbols"),
                                     {"bigrams", KEY_INT, AT(bigrams), "1", 1, TASK_LEN_MAX,
                                      "pairs of symbols that occur twice", 0, 0},
                                     {"distance", KEY_INT, AT(distance), "0", 0, TASK_LEN_MAX,
                                      "rows from the first to the second, 2 or more, with one bigram; 0: any", 0, 0},
                                     {0}};

static bool induction_check(const TaskCfg *c, Err *e) {
    if (c->bigrams > c->vocab - 2)
        return err_input(e, "bigrams: %d and at least two other symbols need a vocab of %lld, got %d", c->bigrams,
                         (long long)c->bigrams + 2, c->vocab);
    if ((int64_t)4 * c->bigrams - 1 > c->T)
        return err_input(e, "bigrams: %d of them, twice, need 4 x bigrams - 1 = %lld tokens, a sample has %d",
                         c->bigrams, (long long)4 * c->bigrams - 1, c->T);
    if (c->distance && c->bigrams > 1)
        return err_input(e, "distance: can be chosen for one bigram only, got bigrams %d", c->bigrams);
    if (c->distance == 1 || c->distance >= c->T)
        return err_input(e, "distance: expected 0, or 2 to %d in samples of %d tokens, got %d", c->T - 1, c->T,
                         c->distance);
    return true;
}
static size_t induction_work(const TaskCfg *c) { return (2 * (size_t)c->bigrams + (size_t)c->vocab) * sizeof(int); }

static void induction_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    Draw fill = draw_make(key, "fill"), place = draw_make(key, "place");
    int k = c->bigrams, *start = work, *symbol = start + 2 * k;
    if (c->distance) {
        start[0] = task_below(&place, c->T - c->distance);
        start[1] = start[0] + c->distance;
    } else {
        task_scatter(&place, 0, c->T + 1, 2, 2 * k, start);
        task_shuffle(&place, start, 2 * k, 2 * k);
    }
    /* The symbols in an order of the sample's own: the first k are the a's, all other rows hold the others. */
    task_deal(&fill, symbol, 0, c->vocab, k);
    for (int i = 0; i < c->T; i++) tok[i] = symbol[k + task_below(&fill, c->vocab - k)];
    for (int j = 0; j < k; j++) {
        int p = start[2 * j], q = start[2 * j + 1], b = tok[imin(p, q) + 1];
        tok[p] = tok[q] = symbol[j];
        tgt[imax(p, q)] = b;
        if (imax(p, q) + 1 < c->T) tok[imax(p, q) + 1] = b;
    }
}

/* ---- needle ---------------------------------------------------------------------------------------------------------
 * 0 asks, 1..n are the needles' keys, n+1..V-1 are symbols. H = T - m - 1 rows of symbols hold n needles, each a key
 * and its m symbols; then   0 key s1 .. s(m-1)   with the targets s1 .. sm from the key on. The needle asked for
 * begins at row round(depth (H - m - 1)), depth uniform from depth_min to depth_max; the others lie anywhere else. */
static const Key needle_keys[] = {
    VOCAB_KEY("64", "ids: 0 asks, then the needles' keys, the rest are symbols"),
    {"needles", KEY_INT, AT(needles), "1", 1, TASK_LEN_MAX, "keys in the haystack, one of which is asked for", 0, 0},
    {"length", KEY_INT, AT(length), "4", 1, TASK_LEN_MAX, "symbols after each key: the answer", 0, 0},
    {"depth_min", KEY_FLOAT, AT(depth_min), "0", 0, 1, "where the needle asked for may begin: 0 first row", 0, 0},
    {"depth_max", KEY_FLOAT, AT(depth_max), "1", 0, 1, "and 1: as late as it can", 0, 0},
    {0}};

static bool needle_check(const TaskCfg *c, Err *e) {
    /* Others fit wherever the needle lies: before and after it, less than a needle's room stays unused each. */
    int64_t n = c->needles, len = (int64_t)c->length + 1, need = len * n + (n > 1 ? 2 * (len - 1) : 0) + len;
    if (c->needles > c->vocab - 3)
        return err_input(e, "needles: %d keys, the one that asks and two symbols need a vocab of %lld, got %d",
                         c->needles, (long long)n + 3, c->vocab);
    if (need > c->T)
        return err_input(e, "needles: %d of length %d need %lld tokens, a sample has %d", c->needles, c->length,
                         (long long)need, c->T);
    return c->depth_min <= c->depth_max ||
           err_input(e, "depth_min: %g is more than depth_max, %g", c->depth_min, c->depth_max);
}
static size_t needle_work(const TaskCfg *c) { return 2 * (size_t)c->needles * sizeof(int); }

static void needle_sample(const TaskCfg *c, uint64_t key, int *tok, int *tgt, void *work) {
    Draw fill = draw_make(key, "fill"), place = draw_make(key, "place");
    int n = c->needles, m = c->length, len = m + 1, H = c->T - len, *start = work, *keys = start + n;
    task_deal(&place, keys, 1, n, n);
    start[0] = (int)lround((c->depth_min + (c->depth_max - c->depth_min) * task_unit(&place)) * (H - len));
    int before = start[0], behind = H - len - before, left = 0;
    for (int j = 1; j < n; j++) left += task_below(&place, H - len) < before;
    left = imin(imax(left, n - 1 - behind / len), before / len);
    task_scatter(&place, 0, before, len, left, start + 1);
    task_scatter(&place, before + len, behind, len, n - 1 - left, start + 1 + left);
    for (int i = 0; i < H; i++) tok[i] = 1 + n + task_below(&fill, c->vocab - 1 - n);
    for (int j = 0; j < n; j++) tok[start[j]] = keys[j];
    tok += H, tgt += H; /* the question */
    tok[0] = 0;
    for (int i = 0; i < m; i++) {
        tok[1 + i] = (tok - H)[start[0] + i];
        tgt[1 + i] = (tok - H)[start[0] + 1 + i];
    }
}
#undef AT

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static const Task mqar = {"mqar",      "associative recall of many pairs, arXiv:2312.04927",
                          mqar_keys,   mqar_check,
                          mqar_sample, mqar_work,
                          false},
                  palindrome = {"palindrome",
                                "symbols, then the same backwards, arXiv:2510.26692",
                                palindrome_keys,
                                palindrome_check,
                                palindrome_sample,
                                NULL,
                                false},
                  stack = {"stack",      "last in, first out on many stacks, arXiv:2510.26692",
                           stack_keys,   stack_check,
                           stack_sample, stack_work,
                           false},
                  copy = {"copy", "symbols, then the same again", copy_keys, copy_check, copy_sample, NULL, false},
                  induction = {"induction",
                               "the symbol that followed the last time",
                               induction_keys,
                               induction_check,
                               induction_sample,
                               induction_work,
                               false},
                  needle = {"needle",      "a marked piece at a chosen depth of a long sample",
                            needle_keys,   needle_check,
                            needle_sample, needle_work,
                            false};
const Task *const tasks[] = {&mqar,
                             &palindrome,
                             &stack,
                             &copy,
                             &induction,
                             &needle,
                             &task_niah,
                             &task_niah_multikey,
                             &task_niah_multivalue,
                             &task_vt,
                             &task_niah_multiquery,
                             &task_passkey,
                             &task_cwe,
                             &task_fwe,
                             &task_repeat,
                             &task_recall,
                             NULL};

const Task *task_find(const char *name) {
    for (int i = 0; tasks[i]; i++)
        if (!strcmp(tasks[i]->name, name)) return tasks[i];
    return NULL;
}

size_t task_work(const TaskCfg *c) { return c->kind->work ? c->kind->work(c) : 0; }

void task_sample(const TaskCfg *c, TaskStream stream, uint64_t seed, uint64_t number, int *tok, int *tgt, void *work) {
    static const char *const names[] = {"task.train", "task.val", "task.test"};
    memset(tok, 0, (size_t)c->T * sizeof *tok);
    memset(tgt, 0xFF, (size_t)c->T * sizeof *tgt); /* -1 */
    c->kind->sample(c, rng_mix(rng_name(seed, names[stream]), number), tok, tgt, work);
}

uint64_t task_hash(const TaskCfg *c) {
    uint64_t h = rng_mix(rng_name(TASK_FORMAT, c->kind->name), (uint64_t)c->T);
    for (const Key *k = c->kind->keys; k->name; k++) {
        const char *at = (const char *)c + k->at;
        uint64_t v = 0;
        switch (k->type) {
        case KEY_CHOICE:
        case KEY_INT: v = (uint64_t) * (const int *)at; break;
        case KEY_BOOL: v = *(const bool *)at; break;
        case KEY_FLOAT: memcpy(&v, at, sizeof v); break;
        default: CHECK(false, "key %s", k->name);
        }
        h = rng_mix(rng_name(h, k->name), v);
    }
    return h;
}
