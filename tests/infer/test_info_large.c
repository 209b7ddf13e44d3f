/* test_info_large.c: `info` of directories of the shapes of published models, whose files are headers and holes:
 * the parameters and tensors are those of transformers' models of these shapes. */
#include "model/files/hf_file.h"
#include "model/files/safetensors_file.h"
#include "tests/lib/check.h"
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const HfFiles *plan;
    StList list;
} Plan;
static void see_tensor(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Plan *p = f->ctx;
    char name[192];
    StPlace place = hf_files_name(p->plan, path, *t, name);
    if (st_is_first(place)) st_plan(&p->list, name, st_stored(*t, place), flags & FIELD_F32 ? F32 : BF16);
}
static int by_line(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
/* FNV-1a of a sorted line for each tensor, as tests/golden/make_large.py has it. */
static uint64_t hash_of(const StList *l) {
    char **line = xcalloc((size_t)l->n, sizeof *line);
    for (int i = 0; i < l->n; i++) {
        char shape[64] = "";
        for (int k = 0; k < l->item[i].t.rank; k++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", k ? "," : "", l->item[i].t.n[k]);
        line[i] = xformat("%s %s\n", l->item[i].name, shape);
    }
    qsort(line, (size_t)l->n, sizeof *line, by_line);
    uint64_t hash = 0xCBF29CE484222325;
    for (int i = 0; i < l->n; i++) {
        for (const char *c = line[i]; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001B3;
        free(line[i]);
    }
    free(line);
    return hash;
}
/* A file of the header, and a hole as long as the data. */
static void write_hollow(const char *path, const StList *l) {
    size_t len, bytes = 0;
    StItem *item = st_file_order(l);
    char *head = st_header(item, l->n, NULL, &len);
    for (int i = 0; i < l->n; i++) bytes += st_item_bytes(&item[i]);
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)len >> 8 * i);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    cr_assert(fd >= 0 && write(fd, size, 8) == 8 && write(fd, head, len) == (ssize_t)len);
    cr_assert(!ftruncate(fd, (off_t)(8 + len + bytes)), "a file with a hole of %zu bytes", bytes);
    close(fd);
    free(item), free(head);
}

Test(info_large, published_shapes) {
    /* bytes of a token, of f32, in layers with attention: all heads' keys and values, or one latent and its key */
    static const struct {
        const char *name;
        int bytes;
    } model[] = {{"mixtral", 32 * 2 * 8 * 128 * 4},     {"deepseek_v3", 61 * (512 + 64) * 4},
                 {"qwen3_next", 12 * 2 * 2 * 256 * 4},  {"gpt_oss", 24 * 2 * 8 * 64 * 4},
                 {"kimi_linear", 7 * (512 + 64) * 4},   {"bailing_hybrid", 7 * (512 + 64) * 4},
                 {"qwen3_5-0.8b", 6 * 2 * 2 * 256 * 4}, {"qwen3_5-4b", 8 * 2 * 4 * 256 * 4},
                 {"qwen3_5-27b", 16 * 2 * 4 * 256 * 4}};
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        const char *name = model[i].name;
        char *from = xformat("tests/golden/large/%s", name), *shape = xformat("%s/shape.json", from);
        char *dir = check_path(name), *config = xformat("%s/config.json", from), *to = xformat("%s/config.json", dir);
        char *weights = xformat("%s/model.safetensors", dir), hash[17];
        json_t *want = json_load_file(shape, 0, NULL);
        ModelCfg c;
        HfFiles plan;
        Plan p = {.plan = &plan};
        Err e = {0};
        size_t n;
        cr_assert(want && !mkdir(dir, 0700));
        cr_assert(hf_config_read(from, &c, &e), "%s", e.msg);
        hf_files_plan(&plan, &c);
        Fields f = {.see = see_tensor, .ctx = &p};
        cr_assert(hf_walk(&c, &f, &e), "%s", e.msg);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hash_of(&p.list));
        cr_expect_eq(p.list.n, json_integer_value(json_object_get(want, "tensors")), "%s: %d", name, p.list.n);
        cr_expect_str_eq(hash, json_string_value(json_object_get(want, "hash")), "%s: other names or shapes", name);
        char *text = check_read(config, &n);
        check_write(to, text, n);
        write_hollow(weights, &p.list);
        Ran r = RUN("info", dir, "--json", "--context", "4096");
        cr_assert(r.status == 0, "%s", r.err);
        json_t *got = json_loads(r.out, 0, NULL);
        cr_expect_eq(json_integer_value(json_object_get(got, "params")),
                     json_integer_value(json_object_get(want, "params")), "%s: %lld", name,
                     (long long)json_integer_value(json_object_get(got, "params")));
        const json_t *cache = json_object_get(got, "cache");
        cr_expect_eq(json_integer_value(json_object_get(cache, "bytes_per_token")), model[i].bytes, "%s", name);
        cr_assert(!unlink(weights));
        hf_files_close(&plan);
        st_list_free(&p.list);
        model_cfg_free(&c);
        json_decref(got), json_decref(want);
        free(text), free(from), free(shape), free(dir), free(config), free(to), free(weights);
    }
}
