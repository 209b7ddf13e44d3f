/* policies.c: the table of policies, and their settings from text. */
#include "policy.h"
#include <ctype.h>
#include <errno.h>

static const Key window_keys[] = {POLICY_WINDOW("16"), POLICY_SINKS("4"), POLICY_EVERY("64", 0), {0}};
const Policy policy_window = {.name = "window",
                              .meaning = "the first and the newest rows",
                              .source = "arXiv:2309.17453 (StreamingLLM)",
                              .lacks = "rows keep their positions instead of being renumbered inside the cache",
                              .keys = window_keys,
                              .not_layers = "it keeps no budget of rows",
                              .not_lanes = "it compares no rows"};

#define POLICY_LISTED(name) &policy_##name,
static const Policy *const policies[] = {POLICIES(POLICY_LISTED)};
enum { LISTED = sizeof policies / sizeof *policies, WORD_MAX = 30 };
static const PolicyAbsent absent[] = {
    {"LazyLLM", "arXiv:2407.14057",
     "drops tokens between the layers of a pass and revives them from kept inputs; a pass here has one list of rows"},
};
const PolicyAbsent *policy_absent(int i) {
    return i >= 0 && i < (int)(sizeof absent / sizeof *absent) ? &absent[i] : NULL;
}
const Policy *policy_at(int i) { return i >= 0 && i < LISTED ? policies[i] : NULL; }

/* ---- settings ----------------------------------------------------------------------------------------------------*/

/* "a, b or c" of n names. */
static const char *policies_listed(char out[300], int n, const char *(*name)(const void *, int), const void *of) {
    int at = 0;
    for (int i = 0; i < n; i++)
        at += snprintf(out + at, (size_t)(300 - at), "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", name(of, i));
    return out;
}
static const char *policy_name(const void *of, int i) { return (void)of, i ? policies[i - 1]->name : "none"; }
static const char *key_name(const void *of, int i) { return policy_key(of, i)->name; }
static const char *own_name(const void *of, int i) { return ((const Policy *)of)->own[i].name; }
static int keys_of(const Key *k) {
    int n = 0;
    while (k && k[n].name) n++;
    return n;
}
const Key *policy_key(const Policy *p, int i) {
    const int shared = keys_of(p->keys), own = keys_of(p->own);
    return i < shared ? &p->keys[i] : i < shared + own ? &p->own[i - shared] : NULL;
}

static bool key_take(PolicyCfg *p, const Policy *of, const Key *k, const char *value, Err *e) {
    char *end;
    errno = 0;
    const double x = strtod(value, &end);
    const bool whole = k->type == KEY_INT;
    if (!*value || *end || isspace((unsigned char)*value) || errno || !(x >= k->min && x <= k->max) ||
        (whole && x != floor(x)))
        return err_input(e, "--policy %s: %s: expected a %snumber from %g to %g, got '%.*s'", of->name, k->name,
                         whole ? "whole " : "", k->min, k->max, WORD_MAX, value);
    void *at = (char *)p + k->at;
    if (whole)
        *(int *)at = (int)x;
    else
        *(double *)at = x;
    return true;
}
/* One word of a policy's settings; with another policy that chooses the rows (`leader`) it has only its own. */
static bool setting_take(PolicyCfg *p, const Policy *of, const Policy *leader, char *word, Err *e) {
    char *value = strchr(word, '='), names[300];
    const Key *k;
    if (value) *value++ = 0;
    for (int i = 0; value && (k = policy_key(of, i)); i++) {
        if (strcmp(word, k->name)) continue;
        if (of == leader || i >= keys_of(of->keys)) return key_take(p, of, k, value, e);
        return err_input(e, "--policy %s: %s: %s chooses the rows; %s has %s alone here", of->name, k->name,
                         leader->name, of->name, policies_listed(names, keys_of(of->own), own_name, of));
    }
    return err_input(e, "--policy %s: expected %s=NUMBER, got '%.*s'", of->name,
                     policies_listed(names, keys_of(of->keys) + keys_of(of->own), key_name, of), WORD_MAX, word);
}
static bool settings_take(PolicyCfg *p, const Policy *of, const Policy *leader, char *words, Err *e) {
    const Key *k;
    for (int i = of == leader ? 0 : keys_of(of->keys); (k = policy_key(of, i)); i++)
        if (!key_take(p, of, k, k->dflt, e)) return false;
    for (char *word = words, *next; word; word = next) {
        if ((next = strchr(word, ','))) *next++ = 0;
        if (!setting_take(p, of, leader, word, e)) return false;
    }
    return true;
}
static const Policy *policy_find(const char *name, Err *e) {
    char names[300];
    for (int i = 0; i < LISTED; i++)
        if (!strcmp(policies[i]->name, name)) return policies[i];
    err_input(e, "--policy: expected %s, got '%.*s'", policies_listed(names, LISTED + 1, policy_name, NULL), WORD_MAX,
              name);
    return NULL;
}
/* Whether policies of these roles go together; fills what of PolicyCfg names them. */
static bool stack_fits(PolicyCfg *p, const Policy *const role[POLICY_ROLES], Err *e) {
    const Policy *const divides[] = {role[POLICY_LAYERS], role[POLICY_LANES]};
    p->read = role[POLICY_READS];
    for (int i = 0; i < POLICY_ROLES && !p->of; i++) p->of = role[i];
    const char *const why[] = {p->of->not_layers, p->of->not_lanes};
    for (int i = 0; i < 2; i++)
        if (divides[i] && divides[i] != p->of && why[i])
            return err_input(e, "--policy: %s cannot divide the rows of %s: %s; leave one of them out",
                             divides[i]->name, p->of->name, why[i]);
    p->layers = p->of->rows ? p->of : divides[0];
    p->lanes = divides[1];
    return true;
}
enum { STACK_MOST = 8 };
static bool stack_parse(char *text, PolicyCfg *p, Err *e) {
    const Policy *role[POLICY_ROLES] = {NULL}, *of[STACK_MOST];
    char *words[STACK_MOST];
    int n = 0;
    for (char *name = text, *next; name; name = next, n++) {
        if (n == STACK_MOST) return err_input(e, "--policy: expected at most %d policies", STACK_MOST);
        if ((next = strchr(name, '+'))) *next++ = 0;
        if ((words[n] = strchr(name, ':'))) *words[n]++ = 0;
        if (!strcmp(name, "none") && (n || next))
            return err_input(e, "--policy: none goes with no other policy; leave one of them out");
        if (!(of[n] = policy_find(name, e))) return false;
        const Policy **as = &role[of[n]->role];
        if (*as && *as == of[n]) return err_input(e, "--policy %s: it was given before; leave one out", name);
        if (*as)
            return err_input(e, "--policy: %s and %s decide the same, %s; leave one of them out", (*as)->name, name,
                             (const char *[]){"which rows stay", "how layers share rows", "how lanes share rows",
                                              "what a step reads"}[of[n]->role]);
        *as = of[n];
    }
    if (!stack_fits(p, role, e)) return false;
    for (int i = 0; i < n; i++)
        if (!settings_take(p, of[i], p->of, words[i], e)) return false;
    if (p->recent < p->page)
        return err_input(e, "--policy %s: recent: expected at least the %d rows of a page, got %d", p->read->name,
                         p->page, p->recent);
    if (p->pool && p->pool % 2 == 0)
        return err_input(e, "--policy %s: pool: expected an odd number, got %d", p->of->name, p->pool);
    if (p->budget > 1 && p->budget < (double)p->window + p->sinks)
        return err_input(e, "--policy %s: budget: expected at least the %d rows of window and sinks, got %g",
                         p->of->name, p->window + p->sinks, p->budget);
    return true;
}
bool policy_parse(const char *text, PolicyCfg *p, Err *e) {
    *p = (PolicyCfg){0};
    if (!strcmp(text, "none")) return true;
    char *words = xstrdup(text);
    const bool ok = stack_parse(words, p, e);
    free(words);
    return ok;
}
