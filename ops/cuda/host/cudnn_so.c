/* cudnn_so.c: loads cuDNN's functions from its library at the first request, so that the program also starts and
 * computes without cuDNN. The library stays open until the process ends. */
#include "cudnn_so.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define LIBRARY "libcudnn.so.9"
/* Written once, before the first answer; constant afterwards. */
static struct {
    pthread_once_t once;
    bool found;
    char where[400], why[200];
    Cudnn f;
} dnn = {.once = PTHREAD_ONCE_INIT};

static const struct {
    const char *name;
    size_t at;
} calls[] = {
#define CALL(name) \
    { "cudnn" #name, offsetof(Cudnn, name) }
    CALL(GetVersion),      CALL(GetErrorString),      CALL(GetLastErrorString),      CALL(Create),
    CALL(Destroy),         CALL(SetStream),           CALL(BackendCreateDescriptor), CALL(BackendDestroyDescriptor),
    CALL(BackendFinalize), CALL(BackendSetAttribute), CALL(BackendGetAttribute),     CALL(BackendExecute),
};
static void *open_in(const char *dir, const char *sub) {
    char path[400];
    if (!dir || !*dir || snprintf(path, sizeof path, "%s%s/" LIBRARY, dir, sub) >= (int)sizeof path) return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}
static void open_library(void) {
    const char *own = getenv("CUDNN_HOME"), *cuda = getenv("CUDA_HOME");
    void *so = open_in(own, "/lib");
    if (!so) so = open_in(own, "/lib64");
    if (!so) so = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const char *said = so ? NULL : dlerror();
    char first[100] = "";
    if (said) snprintf(first, sizeof first, "%.95s", said);
    if (!so) so = open_in(cuda, "/lib64");
    if (!so) so = open_in("/usr/local/cuda", "/lib64");
    if (!so) {
        snprintf(dnn.why, sizeof dnn.why, "%s is not found; name its folder in CUDNN_HOME (%.90s)", LIBRARY, first);
        return;
    }
    struct link_map *map;
    if (dlinfo(so, RTLD_DI_LINKMAP, &map) == 0) snprintf(dnn.where, sizeof dnn.where, "%s", map->l_name);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *p = dlsym(so, calls[i].name);
        *(void **)((char *)&dnn.f + calls[i].at) = p;
        if (p) continue;
        snprintf(dnn.why, sizeof dnn.why, "%.120s has no %s", dnn.where, calls[i].name);
        return;
    }
    size_t v = dnn.f.GetVersion();
    dnn.found = v >= CUDNN_LEAST;
    if (!dnn.found)
        snprintf(dnn.why, sizeof dnn.why, "%.120s is version %zu.%zu.%zu; 9.8 or later is needed", dnn.where, v / 10000,
                 v / 100 % 100, v % 100);
}
const Cudnn *cudnn_open(const char **where, char why[200]) {
    pthread_once(&dnn.once, open_library);
    *where = dnn.where;
    if (!dnn.found) snprintf(why, 200, "%s", dnn.why);
    return dnn.found ? &dnn.f : NULL;
}
