/* text.c: sizes in readable form, and the advice for names of Hugging Face models. */
#include "text.h"
#include <ctype.h>
#include <sys/stat.h>

const char *bytes_text(size_t n, char out[24]) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n / 1024;
    int u = 0;
    if (n < 1024)
        snprintf(out, 24, "%zu bytes", n);
    else {
        for (; v >= 1023.95 && u < 5; u++) v /= 1024;
        snprintf(out, 24, "%.1f %s", v, units[u]);
    }
    return out;
}

bool bytes_parse(const char *text, size_t *out) {
    static const struct {
        const char *name;
        double size;
    } units[] = {{"B", 1},     {"", 1},       {"KB", 1e3},      {"MB", 1e6},         {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776}};
    char *end;
    const double v = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (end != text && !strcmp(end, units[i].name) && v * units[i].size >= 1 && v * units[i].size < 1e18)
            return *out = (size_t)(v * units[i].size), true;
    return false;
}

/* True for ORGANISATION/NAME or NAME with no such folder on this machine. */
static bool hub_name(const char *name) {
    const char *slash = strchr(name, '/'), *dot = strrchr(name, '.');
    char first[100];
    struct stat st;
    if (!isalnum((unsigned char)*name) || strlen(name) > 96) return false;
    if (name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/")]) return false;
    if (slash && (!slash[1] || strchr(slash + 1, '/'))) return false;
    if (dot && dot[1] && !isdigit((unsigned char)dot[1])) return false; /* a file name; Llama-3.2-1B is not one */
    snprintf(first, sizeof first, "%.*s", (int)strcspn(name, "/"), name);
    return stat(first, &st) != 0;
}
const char *hub_text(const char *name, const char *files, char out[200]) {
    /* the one model that is known by its name alone */
    const char *full = strcmp(name, "gpt2") ? name : "openai-community/gpt2";
    *out = 0;
    if (hub_name(name))
        snprintf(out, 200, "; a path is expected, nothing is downloaded: hf download %s%s%s --local-dir DIR", full,
                 *files ? " " : "", files);
    return out;
}
