/* Settings written as text read back to what they say; every member of their structs has a key, every key a
 * description. */
#include "tests/lib/check.h"
#include "model/config/config_keys.h"
#include <dirent.h>
#include <jansson.h>

static Config one, two;
static void open_small(void) {
    static const char text[] =
        "model: {d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 64}}";
    Err e = {0};
    cr_assert(config_parse(&one, text, strlen(text), "run.yaml", 0, NULL, &e), "%s", e.msg);
}

static void same_text(const Config *c, const char *what) {
    Err e = {0};
    char *text = config_text(c), *json = model_cfg_json(&c->model);
    cr_assert(config_parse(&two, text, strlen(text), "resolved", 0, NULL, &e), "%s: %s\n%s", what, e.msg, text);
    char *again = config_text(&two);
    cr_assert_str_eq(again, text, "%s", what);
    json_error_t je; /* jansson judges that it is JSON */
    json_t *j = json_loads(json, JSON_REJECT_DUPLICATES, &je);
    cr_assert(j && json_is_object(j), "%s: %s\n%s", what, je.text, json);
    json_decref(j);
    static ModelCfg m;
    const ModelCfg *from = &c->model;
    ModelCfg sized = *from; /* a file's model knows its vocabulary */
    sized.vocab = 257;
    char *full = model_cfg_json(&sized);
    cr_assert(model_cfg_from_json(&m, full, strlen(full), "config.json", &e), "%s: %s", what, e.msg);
    char *full2 = model_cfg_json(&m);
    cr_assert_str_eq(full2, full, "%s", what);
    model_cfg_free(&m);
    config_free(&two);
    free(text), free(again), free(json), free(full), free(full2);
}

Test(schema, shipped_files_read_back) {
    DIR *d = opendir("configs");
    cr_assert(d, "configs/ is not here");
    int files = 0;
    for (struct dirent *f; (f = readdir(d));) {
        if (!strstr(f->d_name, ".yaml") || !strncmp(f->d_name, "compare", 7) || strstr(f->d_name, "table"))
            continue; /* those hold no run */
        char path[300];
        Err e = {0};
        snprintf(path, sizeof path, "configs/%s", f->d_name);
        bool asks = !config_read(&one, path, 0, NULL, &e) && strstr(e.msg, "??? is a placeholder for a value");
        if (asks && strstr(path, "uptrain")) continue; /* for a model: test_start.sh */
        char *const given[] = {"data.train=a", "data.tokenizer=b"};
        cr_assert(!asks || config_read(&one, path, 2, given, &e), "%s", e.msg);
        cr_assert(asks || !e.status, "%s", e.msg);
        same_text(&one, path);
        config_free(&one);
        files++;
    }
    closedir(d);
    cr_assert(files >= 9, "%d files", files);
}

/* Every character that a text may hold, in front, in the middle and at the end, and words that YAML takes for other
 * things. */
Test(schema, texts_read_back) {
    static const char *const words[] = {"null", "~",    "true", "no",       "12", "1e3", "-",   "- x", "# x", "a # b",
                                        "a: b", "{",    "[x]",  "'",        "\"", "\\",  "\\n", "|",   ">",   "%",
                                        "@",    "`",    "&a",   "*a",       "!a", "?",   ":",   ",",   " x",  "x ",
                                        "..",   ".inf", "./x",  "a\n\nb\n", "\n", "\t",  "<<",  "=",   "---", "..."};
    open_small();
    char *texts[3] = {one.run.dir, one.data.separator, one.train.sample_prompt};
    int count = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++, count++) {
        strcpy(texts[i % 3], words[i]);
        if (i % 3 == 2) same_text(&one, words[i]);
    }
    for (unsigned c = 9; c < 0x110000; c += c < 0x3000 ? 1 : c < 0xFE00 ? 251 : c < 0x10000 ? 1 : 7919) {
        if ((c < 32 && c != '\n' && c != '\t') || c == 127 || (c >= 0xD800 && c < 0xE000)) continue;
        char u[5] = {0};
        if (c < 0x80)
            u[0] = (char)c;
        else if (c < 0x800)
            u[0] = (char)(0xC0 | c >> 6), u[1] = (char)(0x80 | (c & 63));
        else if (c < 0x10000)
            u[0] = (char)(0xE0 | c >> 12), u[1] = (char)(0x80 | (c >> 6 & 63)), u[2] = (char)(0x80 | (c & 63));
        else
            u[0] = (char)(0xF0 | c >> 18), u[1] = (char)(0x80 | (c >> 12 & 63)), u[2] = (char)(0x80 | (c >> 6 & 63)),
            u[3] = (char)(0x80 | (c & 63));
        size_t k = strlen(texts[2]);
        if (!count || k > 900) { /* many at once, each between letters, before a blank and at the end of it all */
            char what[32];
            snprintf(what, sizeof what, "up to U+%04X", c);
            if (count) same_text(&one, what);
            for (int t = 0; t < 3; t++) texts[t][0] = 0;
            k = 0;
        }
        snprintf(texts[0], KEY_TEXT_MAX, "%s", u);
        snprintf(texts[1], KEY_TEXT_MAX, "x %s", u);
        snprintf(texts[2] + k, KEY_TEXT_MAX - k, "x%sx %s ", u, u);
        if (c < 0x180 || c >= 0xFE00 || (c >= 0x2000 && c < 0x2040)) same_text(&one, u);
        count++;
    }
    same_text(&one, "the last");
    cr_assert(count > 12000, "%d", count);
    config_free(&one);
}

Test(schema, numbers_read_back) {
    Err e = {0};
    open_small();
    for (uint64_t i = 0; i < 2000; i++) {
        double lr = exp(rng_uniform(3, 2 * i) * 700 - 700), eps = exp(-rng_uniform(3, 2 * i + 1) * 40);
        one.optim.lr = lr, one.optim.min_lr = i % 2 ? 0 : lr / 3, one.optim.eps = eps;
        one.run.seed = (int64_t)(rng_uniform(4, i) * 9e15);
        char *text = config_text(&one);
        cr_assert(config_parse(&two, text, strlen(text), "resolved", 0, NULL, &e), "%.17g %.17g: %s", lr, eps, e.msg);
        cr_assert(two.optim.lr == lr && two.optim.min_lr == one.optim.min_lr && two.optim.eps == eps &&
                      two.run.seed == one.run.seed,
                  "%.17g %.17g became %.17g %.17g", lr, eps, two.optim.lr, two.optim.eps);
        config_free(&two);
        free(text);
    }
    config_free(&one);
}

/* The tables in tables. */
static size_t table_size(const Key *k) {
    if (!strcmp(k->name, "losses")) return sizeof(TeacherLosses);
    return strcmp(k->name, "sft") ? sizeof(CompressionCfg) : sizeof(SftCfg);
}
static size_t table_align(const Key *k) { return strcmp(k->name, "sft") ? 8 : 4; }

/* Every member of a struct of settings has a key: each key's place begins where another's ends, but for alignment. What
 * the keys do not describe (lists read by hand) is named by skip_from..skip_to. */
static void covers(const char *what, const Key *keys, size_t size, size_t skip_from, size_t skip_to) {
    static const size_t sizes[] = {[KEY_INT] = sizeof(int),         [KEY_LONG] = sizeof(int64_t),
                                   [KEY_FLOAT] = sizeof(double),    [KEY_BOOL] = 1,
                                   [KEY_TEXT] = KEY_TEXT_MAX,       [KEY_CHOICE] = sizeof(int),
                                   [KEY_NUMBERS] = sizeof(Numbers), [KEY_INTS] = sizeof(Ints),
                                   [KEY_LENGTH] = sizeof(Length),   [KEY_TEXTS] = sizeof(Texts)};
    static const size_t aligns[] = {
        [KEY_INT] = 4,     [KEY_LONG] = 8, [KEY_FLOAT] = 8,  [KEY_BOOL] = 1,  [KEY_TEXT] = 1, [KEY_CHOICE] = 4,
        [KEY_NUMBERS] = 8, [KEY_INTS] = 4, [KEY_LENGTH] = 8, [KEY_TABLE] = 8, [KEY_TEXTS] = 4};
#define SIZE(k) ((k)->type == KEY_TABLE ? table_size(k) : sizes[(k)->type])
    size_t last = skip_to;
    for (const Key *k = keys; k->name; k++) {
        cr_assert(k->meaning && *k->meaning && k->min <= k->max, "%s: %s", what, k->name);
        for (const Key *o = keys; o != k; o++) cr_assert(strcmp(o->name, k->name), "%s: two keys %s", what, k->name);
        if (k->type == KEY_OTHER) continue;
        size_t before = skip_to <= k->at ? skip_to : 0, a = k->type == KEY_TABLE ? table_align(k) : aligns[k->type];
        for (const Key *o = keys; o->name; o++)
            if (o != k && o->type != KEY_OTHER && o->at <= k->at) before = zmax(before, o->at + SIZE(o));
        cr_assert(k->at == (before + a - 1) / a * a, "%s: %s begins at byte %zu, what is before it ends at %zu", what,
                  k->name, k->at, before);
        cr_assert(k->at + SIZE(k) <= skip_from || k->at >= skip_to, "%s: %s", what, k->name);
        last = zmax(last, k->at + SIZE(k));
    }
    cr_assert(last == size || (size % 8 == 0 && size - last < 8), "%s: keys end at byte %zu of %zu", what, last, size);
}
Test(schema, every_member_has_a_key) {
    covers("run", run_keys, sizeof(RunCfg), 0, 0);
    covers("model", model_keys, sizeof(ModelCfg), offsetof(ModelCfg, nkinds), sizeof(ModelCfg));
    covers("data", data_keys, sizeof(DataCfg), 0, offsetof(DataCfg, val));
    covers("train", train_keys, sizeof(TrainCfg), 0, 0);
    const Key *k = train_keys;
    while (strcmp(k->name, "compression")) k++;
    covers("train.compression", k->sub, sizeof(CompressionCfg), 0, 0);
    for (k = data_keys; strcmp(k->name, "sft");) k++;
    covers("data.sft", k->sub, sizeof(SftCfg), 0, 0);
    covers("optim", optim_keys, sizeof(OptimCfg), 0, offsetof(OptimCfg, kind));
    covers("optim.groups", group_keys, sizeof(OptimGroup), 0, 0);
    covers("teacher", teacher_keys, sizeof(TeacherCfg), 0, 0);
    for (k = teacher_keys; strcmp(k->name, "losses");) k++;
    covers("teacher.losses", k->sub, sizeof(TeacherLosses), 0, 0);
    covers("lora", lora_keys, sizeof(LoraCfg), 0, 0);
    covers("rope", rope_keys, sizeof(RopeCfg), 0, 0);
}

Test(schema, documents_every_key) {
    for (int markdown = 0; markdown < 2; markdown++) {
        char *text = NULL, name[300];
        size_t n;
        FILE *f = open_memstream(&text, &n);
        config_document(f, markdown);
        fclose(f);
        static const Key *const tables[] = {run_keys,  data_keys,    train_keys, optim_keys, model_keys,
                                            rope_keys, teacher_keys, lora_keys,  group_keys};
        static const char *const prefix[] = {"run.",     "data.",  "train.",
                                             "optim.",   "model.", "model.kinds.NAME.rope.",
                                             "teacher.", "lora.",  "optim.groups.N."};
        for (int t = 0; t < 9; t++)
            for (const Key *k = tables[t]; k->name; k++) {
                snprintf(name, sizeof name, markdown ? "| `%s%s` |" : "  %s%s ", prefix[t], k->name);
                cr_assert(strstr(text, name), "no '%s' in\n%s", name, text);
            }
        for (int t = 0; tasks[t]; t++) {
            snprintf(name, sizeof name, "data.task with name: %s", tasks[t]->name);
            const char *section = strstr(text, name);
            cr_assert(section, "no '%s' in\n%s", name, text);
            for (const Key *k = tasks[t]->keys; k->name; k++) {
                snprintf(name, sizeof name, markdown ? "| `data.task.%s` |" : "  data.task.%s ", k->name);
                cr_assert(strstr(section, name), "no '%s' in\n%s", name, section);
            }
        }
        cr_assert(strstr(text, "init_from") && strstr(text, "model.ffn.hidden"));
        free(text);
    }
}
