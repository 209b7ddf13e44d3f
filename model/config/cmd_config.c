/* cmd_config.c: the command `config`: prints the documentation of the configuration from the tables that parse it, and
 * checks files. */
#include "model/cli.h"
#include "config_keys.h"

int cmd_config(int argc, char **argv);

enum { OVERRIDES_MAX = 256 };
typedef struct {
    bool markdown;
    const char *file;
    int n;
    char *override[OVERRIDES_MAX];
} Args;

static bool cmd_config_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    if (key == 'm')
        a->markdown = true;
    else if (!a->file)
        a->file = arg;
    else if (a->n == OVERRIDES_MAX)
        return err_input(e, "more than %d key=value words", OVERRIDES_MAX);
    else
        a->override[a->n++] = (char *)arg;
    return true;
}

/* Check everything that a run would refuse before it opens its files, and print the resolved settings. */
static int cmd_config_check(const Args *a, const Cli *cli) {
    Config *c = xcalloc(1, sizeof *c);
    Err e = {0};
    char *text = NULL;
    bool ok = config_read(c, a->file, a->n, a->override, &e);
    if (ok) {
        ok = config_trainable(c, &e);
        if (ok && !cli->quiet) fputs(text = config_text(c), stdout);
        config_free(c);
    }
    free(text);
    free(c);
    return ok ? 0 : cli_fail(&e);
}

static void json_key(Writer *w, const char *name, const char *value) {
    write_name(w, name);
    write_text(w, value);
}

/* Write {"name", "type", "required", "default" as YAML text, "min", "max", "choices", "meaning"} for every key. */
static void json_keys(Writer *w, const Key *keys, const char *prefix) {
    static const char *const types[] = {
        [KEY_INT] = "integer",   [KEY_LONG] = "integer",  [KEY_FLOAT] = "number", [KEY_BOOL] = "boolean",
        [KEY_TEXT] = "text",     [KEY_CHOICE] = "choice", [KEY_TABLE] = "table",  [KEY_NUMBERS] = "numbers",
        [KEY_INTS] = "integers", [KEY_OTHER] = "other"};
    for (const Key *k = keys; k->name; k++) {
        char *name = xformat("%s%s", prefix, k->name);
        write_item(w);
        write_map(w, true);
        json_key(w, "name", name);
        json_key(w, "type", types[k->type]);
        write_name(w, "required"), fputs(k->dflt ? "false" : "true", w->f);
        if (k->dflt && *k->dflt) json_key(w, "default", k->dflt);
        if (k->type == KEY_INT || k->type == KEY_LONG || k->type == KEY_FLOAT) {
            write_name(w, "min"), write_number(w, k->min);
            write_name(w, "max"), write_number(w, k->max);
        }
        if (k->choices) {
            write_name(w, "choices");
            write_list(w);
            for (const char *const *c = k->choices; *c; c++) write_item(w), write_text(w, *c);
            write_list_end(w);
        }
        json_key(w, "meaning", k->meaning);
        write_map_end(w);
        if (k->type == KEY_TABLE) {
            char *sub = xformat("%s.", name);
            json_keys(w, k->sub, sub);
            free(sub);
        }
        free(name);
    }
}

static void json_named(Writer *w, const char *name, const Key *keys) {
    write_name(w, name);
    write_list(w);
    json_keys(w, keys, "");
    write_list_end(w);
}

static void json_document(FILE *f) {
    Writer w = {.f = f, .json = true};
    write_map(&w, true);
    write_name(&w, "keys");
    write_list(&w);
    json_keys(&w, config_keys, "");
    json_keys(&w, model_keys, "model.");
    write_list_end(&w);
    write_name(&w, "mixers");
    write_map(&w, true);
    for (int i = 0; mixers[i]; i++) json_named(&w, mixers[i]->name, mixers[i]->keys);
    write_map_end(&w);
    write_name(&w, "ffns");
    write_map(&w, true);
    for (int i = 0; ffns[i]; i++) json_named(&w, ffns[i]->name, ffns[i]->keys);
    write_map_end(&w);
    write_name(&w, "tasks");
    write_map(&w, true);
    for (int i = 0; tasks[i]; i++) json_named(&w, tasks[i]->name, tasks[i]->keys);
    write_map_end(&w);
    write_map_end(&w);
    fputc('\n', f);
}

int cmd_config(int argc, char **argv) {
    static const struct argp_option options[] = {{"markdown", 'm', 0, 0, "Print Markdown", 0}, {0}};
    static const CliSpec spec = {
        .args = "[CONFIG.yaml [KEY=VALUE...]]",
        .doc = "Without a file: prints every key of a run's configuration with its type, range, default and meaning. "
               "With a file: checks it and prints all settings that a run would use, defaults included.",
        .options = options,
        .take = cmd_config_take,
        .settings = true,
        .max_args = -1};
    Cli cli;
    Args a = {0};
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    if (a.file && (cli.json || a.markdown)) {
        err_input(&e, "config: %s prints the keys; give it no file", cli.json ? "--json" : "--markdown");
        return cli_fail(&e);
    }
    if (a.file) return cmd_config_check(&a, &cli);
    if (cli.json)
        json_document(stdout);
    else
        config_document(stdout, a.markdown);
    return 0;
}
