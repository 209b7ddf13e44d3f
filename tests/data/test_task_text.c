/* Tasks of text: every sample's text, solved by searching strings in it, against the answers that the sample states;
 * what each setting does to the text; and that a sample's parts are where they are said to be. */
#include "data/task_text.h"
#include "model/config/task_cfg.h"
#include "tests/lib/check.h"

enum { ROWS = 2048, WORDS = 1024 };
static int tok[ROWS + 1], tgt[ROWS];

static bool read_task(TaskCfg *c, const char *text, int T, Err *e) {
    Node *x = tree_yaml(text, strlen(text), "task.yaml", e);
    bool ok = x && task_cfg_read(c, x, "data.task", T, e);
    tree_free(x);
    return ok;
}

/* ---- solvers: from context and question alone, the text of the answers ------------------------------------------- */

typedef struct {
    char *context, *question, *prefix, *answers; /* the last one of the first round */
} Parts;
typedef char *Solver(const Parts *);

/* The word or number after `from`, without the blank in front; ended by what no word has in it. */
static char *word_at(const char *from) {
    while (*from == ' ') from++;
    return strndup(from, strspn(from, "abcdefghijklmnopqrstuvwxyz0123456789"));
}
static void answer_add(char **answers, const char *word) {
    char *more = xformat("%s%s %s", *answers ? *answers : "", *answers ? "," : "", word);
    free(*answers);
    *answers = more;
}
static char *solve_niah(const Parts *p) {
    const char *q = strstr(p->question, " for ");
    char *answers = NULL;
    cr_assert_not_null(q, "%s", p->question);
    for (q += 4; strncmp(q, " mentioned", 10);) {
        char *key = word_at(q), *needle = xformat(" for %s is: ", key);
        q = strstr(q, key) + strlen(key);
        if (*q == ',') q++;
        if (!strncmp(q, " and ", 5)) q += 4;
        for (const char *at = p->context; (at = strstr(at, needle)); at++) {
            char *value = word_at(at + strlen(needle));
            answer_add(&answers, value);
            free(value);
        }
        free(key), free(needle);
    }
    return answers;
}
static char *solve_passkey(const Parts *p) {
    const char *at = strstr(p->context, " The pass key is ");
    char *answers = NULL, *key = word_at(at + 17),
         *line = xformat(" The pass key is %s. Remember it. %s is the pass key.", key, key);
    cr_assert(!strncmp(at, line, strlen(line)), "%s", at);
    cr_assert_null(strstr(at + 1, " The pass key"), "two keys: %s", p->context);
    answer_add(&answers, key);
    free(key), free(line);
    return answers;
}
static char *solve_vt(const Parts *p) {
    const char *at = strstr(p->question, " the value ");
    char *answers = NULL, *value = word_at(at + 11), *line = xformat(" = %s.", value);
    while ((at = strstr(p->context, line))) { /* the variable before it */
        const char *name = at;
        while (name[-1] != ' ') name--;
        char *variable = word_at(name);
        cr_assert(!strncmp(name - 5, " VAR ", 5), "%s", name - 5);
        cr_assert_null(strstr(at + 1, line), "assigned twice: %s", line);
        answer_add(&answers, variable);
        free(line);
        line = xformat(" = VAR %s.", variable);
        free(variable);
    }
    free(line), free(value);
    return answers;
}

/* How often each different word of a text comes, in the order in which they first come. */
typedef struct {
    int n, times[WORDS];
    char *word[WORDS];
} Counts;
static void count_words(Counts *c, const char *text) {
    c->n = 0;
    while (*text) {
        size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz");
        if (!len) {
            text++;
            continue;
        }
        int i = 0;
        while (i < c->n && (strlen(c->word[i]) != len || strncmp(c->word[i], text, len))) i++;
        if (i == c->n) c->word[c->n] = strndup(text, len), c->times[c->n++] = 0;
        cr_assert_lt(c->n, WORDS);
        c->times[i]++;
        text += len;
    }
}
static void counts_free(Counts *c) {
    for (int i = 0; i < c->n; i++) free(c->word[i]);
}
static char *solve_cwe(const Parts *p) {
    Counts c;
    char *answers = NULL;
    int most = 0, asked = 0, found = 0;
    cr_assert_eq(sscanf(p->question, "\nQuestion: What are the %d most", &asked), 1);
    count_words(&c, strchr(p->context, '\n'));
    for (int i = 0; i < c.n; i++) most = imax(most, c.times[i]);
    for (int i = 0; i < c.n; i++)
        if (c.times[i] == most) answer_add(&answers, c.word[i]), found++;
    cr_assert_eq(found, asked, "%d words come %d times, %d are asked for", found, most, asked);
    counts_free(&c);
    return answers;
}
static char *solve_fwe(const Parts *p) {
    Counts c;
    char *answers = NULL;
    count_words(&c, strstr(p->context, "coded words.") + 12);
    for (int k = 0; k < 3; k++) {
        int best = 0;
        for (int i = 0; i < c.n; i++)
            if (c.times[i] > c.times[best]) best = i;
        for (int i = 0; i < c.n; i++) cr_assert(i == best || c.times[i] < c.times[best], "a tie of %s", c.word[i]);
        answer_add(&answers, c.word[best]);
        c.times[best] = -1;
    }
    counts_free(&c);
    return answers;
}
static char *solve_repeat(const Parts *p) {
    const char *list = strchr(p->context, '\n') + 1, *end = strchr(list, '\n');
    return end ? strndup(list, (size_t)(end - list)) : xstrdup(list);
}

static const struct {
    const char *text;
    int T, samples;
    Solver *solve;
    const char *says; /* in the context or question */
} forms[] = {
    {"niah", 64, 100, solve_niah, "A special magic number is hidden"},
    {"{name: niah, digits: 0}", 60, 100, solve_niah, "What is the special magic word for"},
    {"{name: niah, hay: words, depth_min: 0.5, depth_max: 0.5}", 200, 50, solve_niah, "special magic numbers for"},
    {"niah_multikey", 256, 50, solve_niah, "The grass is green."},
    {"{name: niah_multikey, hay: needles, digits: 0}", 512, 50, solve_niah, "What is the special"},
    {"niah_multivalue", 256, 50, solve_niah, "Some special magic numbers are hidden"},
    {"niah_multiquery", 256, 50, solve_niah, "What are all the special magic numbers for"},
    {"{name: niah_multiquery, keys: 3, queries: 2, values: 2, vocab: 80, digits: 0}", 300, 50, solve_niah, ", and"},
    {"passkey", 64, 50, solve_passkey, "irrelevant text"},
    {"{name: passkey, digits: 0, hay: words, vocab: 90}", 30, 50, solve_passkey, "What is the pass key?"},
    {"vt", 256, 50, solve_vt, " = VAR "},
    {"{name: vt, chains: 4, hops: 2, digits: 0, vocab: 100}", 256, 50, solve_vt, "Find all variables"},
    {"cwe", 512, 20, solve_cwe, "\n1. "},
    {"{name: cwe, common: 3, times: 4, vocab: 80}", 79, 50, solve_cwe, "Below is a numbered list"},
    {"fwe", 512, 20, solve_fwe, "..."},
    {"{name: fwe, vocab: 73}", 60, 50, solve_fwe, "track the frequency"},
    {"repeat", 200, 20, solve_repeat, "Which words are in the list"},
    {"{name: repeat, items: 9}", 100, 20, solve_repeat, "Here we go."},
};
enum { FORMS = sizeof forms / sizeof *forms };

static void parts_make(const TaskCfg *c, Parts *p, int rows[4]) {
    const TaskParts at = task_parts(c, tok);
    int first = 0, last;
    while (tgt[first] < 0) first++;
    first++; /* of the ids of the answers */
    tok[c->T] = tgt[c->T - 1];
    for (last = first + 1; last <= c->T && (tgt[last - 1] >= 0 || (last < c->T && tgt[last] >= 0));) last++;
    rows[0] = at.question, rows[1] = at.prefix, rows[2] = first, rows[3] = last;
    cr_assert(0 < at.question && at.question < at.prefix && at.prefix < first, "%d %d %d", at.question, at.prefix,
              first);
    p->context = task_spell(c, tok, 0, at.question), p->question = task_spell(c, tok, at.question, at.prefix);
    p->prefix = task_spell(c, tok, at.prefix, first), p->answers = task_spell(c, tok, first, last);
}
static void parts_free(Parts *p) { free(p->context), free(p->question), free(p->prefix), free(p->answers); }

Test(task_text, samples_are_solved_by_searching_their_text) {
    bool met[64] = {0};
    for (int f = 0; f < FORMS; f++) {
        TaskCfg c;
        Err e = {0};
        cr_assert(read_task(&c, forms[f].text, forms[f].T, &e), "%s: %s", forms[f].text, e.msg);
        for (int i = 0; tasks[i]; i++) met[i] |= tasks[i] == c.kind;
        void *work = xcalloc(task_work(&c), 1);
        int same = 0;
        char *before = xstrdup("");
        for (int s = 0; s < forms[f].samples; s++) {
            Parts p;
            int rows[4];
            task_sample(&c, TASK_TEST, 3, (uint64_t)s, tok, tgt, work);
            for (int i = 0; i < c.T; i++)
                cr_assert(tok[i] >= 0 && tok[i] < c.vocab && (tgt[i] < 0 || tgt[i] == tok[i + 1] || i == c.T - 1));
            parts_make(&c, &p, rows);
            char *want = forms[f].solve(&p);
            cr_assert_not_null(want, "%s: no answer in\n%s%s", forms[f].text, p.context, p.question);
            cr_assert_str_eq(p.answers, want, "%s:\n%s%s%s", forms[f].text, p.context, p.question, p.prefix);
            cr_assert(strstr(p.context, forms[f].says) || strstr(p.question, forms[f].says), "%s: no '%s' in\n%s%s",
                      forms[f].text, forms[f].says, p.context, p.question);
            cr_assert_eq(rows[3], c.T + 1, "%s: rows after the answers", forms[f].text);
            same += !strcmp(before, p.context);
            free(before), free(want);
            before = xstrdup(p.context);
            parts_free(&p);
        }
        cr_assert_eq(same, 0, "%s: equal samples", forms[f].text);
        free(before), free(work);
    }
    for (int i = 0; tasks[i]; i++)
        cr_assert(!tasks[i]->text || met[i] || tasks[i] == &task_recall, "no form of %s", tasks[i]->name);
}

/* Every round asks about the same context. */
Test(task_text, rounds_ask_one_after_the_other) {
    static const char *const several[] = {"{name: niah_multikey, keys: 6, rounds: 6, digits: 0, vocab: 90}",
                                          "{name: vt, chains: 3, rounds: 3, hops: 1, digits: 2, vocab: 90}"};
    Solver *const solve[] = {solve_niah, solve_vt};
    for (int f = 0; f < 2; f++) {
        TaskCfg c;
        Err e = {0};
        cr_assert(read_task(&c, several[f], 200, &e), "%s", e.msg);
        void *work = xcalloc(task_work(&c), 1);
        for (uint64_t s = 0; s < 30; s++) {
            Parts p;
            int rows[4], rounds = 0;
            task_sample(&c, TASK_TRAIN, 3, s, tok, tgt, work);
            parts_make(&c, &p, rows);
            char *rest = task_spell(&c, tok, rows[0], c.T + 1), *context = p.context;
            for (char *q = rest, *next; q; q = next, rounds++) {
                next = strchr(q + 1, '\n'); /* a question begins with a newline */
                char *one = strndup(q, next ? (size_t)(next - q) : strlen(q));
                char *want = solve[f](&(Parts){.context = context, .question = one});
                const size_t n = strlen(want), all = strlen(one);
                cr_assert(all > n && !strcmp(one + all - n, want), "round %d: '%s' in\n%s%s", rounds, want, context,
                          one);
                free(want), free(one);
            }
            cr_assert_eq(rounds, c.rounds);
            free(rest);
            parts_free(&p);
        }
        free(work);
    }
}

/* The needle lies where the settings say: depth 0 first, depth 1 last, of sentences of noise. */
Test(task_text, depths) {
    for (int d = 0; d <= 4; d++) {
        TaskCfg c;
        Err e = {0};
        char *text = xformat("{name: niah, digits: 0, depth_min: %g, depth_max: %g}", d / 4., d / 4.);
        cr_assert(read_task(&c, text, 117, &e), "%s", e.msg);
        void *work = xcalloc(task_work(&c), 1);
        task_sample(&c, TASK_TEST, 1, (uint64_t)d, tok, tgt, work);
        Parts p;
        int rows[4], before = 0, after = 0;
        parts_make(&c, &p, rows);
        const char *needle = strstr(p.context, " One of the special");
        for (const char *at = strchr(p.context, '\n') + 1; (at = strchr(at, '.')); at++) {
            if (at < needle) before++;
            if (at > strchr(needle, '.')) after++;
        }
        cr_assert_eq(before, (int)lround(d / 4. * (before + after)), "depth %g: %d before, %d after", d / 4., before,
                     after);
        free(text), free(work);
        parts_free(&p);
    }
}

/* All families come, each with its questions, and every sample of the mixture fits. */
Test(task_text, the_mixture_has_every_family) {
    static const char *const asks[] = {"\nWhat is the special", "\nWhat are all the special", "\nWhat is the pass",
                                       "\nQuestion: Find all", "\nQuestion: Which words"};
    for (int T = 96; T <= 400; T += 76) {
        TaskCfg c;
        Err e = {0};
        int count[5] = {0}, answers = 0;
        cr_assert(read_task(&c, "{name: recall, vocab: 128, keys: 10, rounds: 6}", T, &e), "%s", e.msg);
        unsigned char *work = xcalloc(task_work(&c) + 16, 1);
        for (uint64_t s = 0; s < 300; s++) {
            memset(work + task_work(&c), 0x5A, 16);
            task_sample(&c, TASK_TRAIN, 9, s, tok, tgt, work);
            for (int i = 0; i < 16; i++) cr_assert_eq(work[task_work(&c) + (size_t)i], 0x5A, "writes past its work");
            const TaskParts at = task_parts(&c, tok);
            char *question = task_spell(&c, tok, at.question, at.question + 1);
            for (int k = 0; k < 5; k++) count[k] += !strncmp(question, asks[k], strlen(asks[k]));
            for (int i = 0; i < T; i++) answers += tgt[i] >= 0;
            free(question);
        }
        cr_assert(count[0] + count[1] > 120 && count[2] > 15 && count[3] > 15 && count[4] > 15, "%d %d %d %d %d",
                  count[0], count[1], count[2], count[3], count[4]);
        cr_assert_gt(answers, 600);
        free(work);
    }
}

/* What cannot be, and the least that can; the tightest that is accepted makes samples. */
Test(task_text, impossible_settings) {
    static const struct {
        const char *text;
        int T;
        const char *says;
    } limits[] = {{"{name: niah, vocab: 50}", 64, "vocab: expected"},
                  {"{name: niah, digits: 0}", 9, "no room for 1 needles"},
                  {"{name: niah, keys: 2, queries: 3}", 200, "need as many keys, got keys 2"},
                  {"{name: niah, depth_min: 0.5, depth_max: 0.2}", 200, "is more than depth_max"},
                  {"{name: niah_multivalue, digits: 0, vocab: 80, values: 40}", 900, "words for values"},
                  {"{name: vt, digits: 1, chains: 10, hops: 1}", 900, "1 digits give 9 values"},
                  {"passkey", 10, "a pass key needs samples of at least"},
                  {"{name: vt, vocab: 75, hops: 20}", 900, "words for variables"},
                  {"{name: vt, rounds: 2}", 900, "need as many chains"},
                  {"vt", 20, "give a larger T"},
                  {"cwe", 100, "give T=141"},
                  {"{name: cwe, vocab: 80, common: 2, times: 2}", 400, "larger vocab or times"},
                  {"fwe", 40, "at least"},
                  {"{name: fwe, vocab: 75}", 1800, "coded words need at least"},
                  {"{name: repeat, items: 100}", 100, "samples of at least 202"},
                  {"{name: recall, vocab: 75, chains: 9}", 400, "words for variables"}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        TaskCfg c;
        Err e = {0};
        cr_assert(!read_task(&c, limits[i].text, limits[i].T, &e), "%s T=%d is accepted", limits[i].text, limits[i].T);
        cr_assert(e.status == EXIT_INPUT && strstr(e.msg, limits[i].says), "%s: %s", limits[i].text, e.msg);
    }
    for (int i = 0; tasks[i]; i++) {
        TaskCfg c;
        Err e = {0};
        if (!tasks[i]->text) continue;
        cr_assert(read_task(&c, tasks[i]->name, ROWS, &e), "%s", e.msg);
        const int least = task_text_least(&c, ROWS);
        cr_assert(least > 3 && least < 400, "%s: at least %d", tasks[i]->name, least);
        for (c.T = least; c.T < least + 40; c.T++) {
            void *work = xcalloc(task_work(&c), 1);
            cr_assert(c.kind->check(&c, &e), "%s T=%d: %s", tasks[i]->name, c.T, e.msg);
            for (uint64_t s = 0; s < 5; s++) task_sample(&c, TASK_VAL, 1, s, tok, tgt, work);
            free(work);
        }
        c.T = least - 1;
        cr_assert(!c.kind->check(&c, &e), "%s has a sample of %d", tasks[i]->name, c.T);
    }
}
