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
