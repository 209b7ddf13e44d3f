/* props.c: the device, its driver, and CUDA's libraries: where they are and which they are. */
#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <unistd.h>
#include "check.h"

/* Where one file of each library would lie. Python's packages carry them in a folder for each, or in one for all. */
static const char *const below[] = {"", "/lib64", "/lib", "/targets/x86_64-linux/lib"};
static const char *const packages[] = {"nvidia/cu13/lib", "nvidia/cublas/lib", "nvidia/cudnn/lib", "nvidia/nccl/lib"};

/* Found by the loader? The path it would take, or NULL. In a process of its own: nothing is to stay loaded here. */
static char *by_loader(const char *file) {
    void *so = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    struct link_map *map;
    char *at = so && dlinfo(so, RTLD_DI_LINKMAP, &map) == 0 ? xformat("%s", map->l_name) : NULL;
    if (so) dlclose(so);
    return at;
}
static char *in_folder(const char *folder, const char *file) {
    char *path = xformat("%s/%s", folder, file);
    if (*folder && access(path, R_OK) == 0) return path;
    free(path);
    return NULL;
}
void libraries_find(Check *c, Library out[LIBRARIES]) {
    static const Library known[LIBRARIES] = {
        {"cuBLASLt", "libcublasLt.so.13", "matrix products", NULL},
        {"cuDNN", "libcudnn.so.9", "attention in training, where it is asked for", NULL},
        {"NCCL", "libnccl.so.2", "ranks on several devices", NULL},
    };
    const char *homes[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"},
               *old = getenv("LD_LIBRARY_PATH");
    Child py = CHILD(c, 30, c->python, "-c", "import sys; print('\\n'.join(p for p in sys.path if p))");
    char *path = xformat("%s", old ? old : "");
    for (int i = 0; i < LIBRARIES; i++) {
        out[i] = known[i];
        const char *file = known[i].file;
        if ((out[i].at = by_loader(file))) continue;
        for (size_t h = 0; h < 3 && !out[i].at; h++)
            for (size_t b = 0; b < 4 && !out[i].at && homes[h]; b++) {
                char *folder = xformat("%s%s", homes[h], below[b]);
                out[i].at = in_folder(folder, file);
                free(folder);
            }
        char *list = xformat("%s", py.status == 0 ? py.out : ""), *rest = list;
        for (char *p; !out[i].at && (p = strsep(&rest, "\n"));)
            for (size_t k = 0; k < 4 && *p && !out[i].at; k++) {
                char *folder = xformat("%s/%s", p, packages[k]);
                out[i].at = in_folder(folder, file);
                free(folder);
            }
        free(list);
        if (out[i].at) { /* for the processes that are started */
            char *longer =
                xformat("%s%s%.*s", path, *path ? ":" : "", (int)(strrchr(out[i].at, '/') - out[i].at), out[i].at);
            free(path);
            path = longer;
        }
    }
    c->libraries = path;
    child_free(&py);
}

/* Reads; changes nothing. */
static void smi(Check *c, const char *name, const char *fields) {
    if (!case_begin(c, name)) return;
    char *query = xformat("--query-gpu=%s", fields);
    Child r = CHILD(c, case_seconds(c, 30), "nvidia-smi", query, "--format=csv");
    if (r.status == 0)
        case_end(c, CASE_OK, json_pack("{s:s%}", "nvidia-smi", r.out, strlen(r.out)), "%s", "");
    else
        case_end(c, r.status > 0 ? CASE_SKIPPED : CASE_FAILED, NULL, "nvidia-smi: %s", child_line(&r));
    free(query);
    child_free(&r);
}
/* Which files the program really loads, by the loader's own word: a path that is built into it comes before
 * LD_LIBRARY_PATH. */
static void loaded(Check *c) {
    if (!case_begin(c, "libraries loaded")) return;
    Child r = CHILD(c, case_seconds(c, 60), "env", "LD_DEBUG=files", c->program, "bench", "train", "--device", "cuda",
                    "--dtype", "bf16", "--attention", "cudnn", "--rows", "8", "-s", "0.01", "model.d_model=64",
                    "model.layers=1", "data.seq_len=64", "train.micro_batch=1");
    static const char mark[] = "calling init: ";
    json_t *files = json_array();
    for (char *rest = r.err, *line; (line = strsep(&rest, "\n"));) {
        char *at = strstr(line, mark);
        if (at) json_array_append_new(files, json_string(at + strlen(mark)));
    }
    bool some = json_array_size(files) > 0;
    case_end(c, r.status == 0 && some ? CASE_OK : CASE_FAILED, json_pack("{s:o}", "files", files), "%s",
             r.status ? child_line(&r)
             : some   ? ""
                      : "the loader names none");
    child_free(&r);
}

void part_props(Check *c) {
    if (case_begin(c, "device")) {
        Child r = CHILD(c, case_seconds(c, 120), c->program, "device", "--device", "cuda", "--json");
        json_t *j = child_json(&r);
        if (j) {
            printf("device: %s\n", json_string_value(json_object_get(j, "deviceName")));
            case_end(c, CASE_OK, j, "%s", "");
        } else
            case_end(c, CASE_FAILED, NULL, "%s", child_line(&r));
        child_free(&r);
    }
    Library libs[LIBRARIES];
    libraries_find(c, libs);
    for (int i = 0; i < LIBRARIES; i++) {
        if (!case_begin(c, libs[i].name)) continue;
        if (libs[i].at)
            case_end(c, CASE_OK, json_pack("{s:s, s:s}", "file", libs[i].at, "for", libs[i].use), "%s", libs[i].at);
        else
            case_end(c, CASE_SKIPPED, NULL,
                     "%s (%s) is neither in the loader's path nor below CUDA_HOME nor in Python's packages",
                     libs[i].file, libs[i].use);
    }
    smi(c, "driver",
        "name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,temperature.gpu,power.draw,power.limit,"
        "ecc.mode.current");
    smi(c, "modes", "compute_mode,mig.mode.current,persistence_mode,clocks.max.sm,clocks.max.mem");
    smi(c, "clocks", "clocks_event_reasons.active,clocks_event_reasons.supported,pstate");
    loaded(c);
    if (case_begin(c, "program")) {
        Child r = CHILD(c, 30, c->program, "--version");
        case_end(c, r.status ? CASE_FAILED : CASE_OK, json_pack("{s:s}", "version", r.out), "%s", "");
        child_free(&r);
    }
}
