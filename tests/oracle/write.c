/* write.c: the double build's side of oracle.h: write FILE. */
#include "oracle.h"
#include <inttypes.h>

int main(int argc, char **argv) {
    FILE *f = argc == 2 ? fopen(argv[1], "wb") : NULL;
    if (!f) return fprintf(stderr, "write FILE\n"), 2;
    for (int i = 0; i < zoo_count(); i++) {
        Oracle k;
        Err e = {0};
        char name[ORACLE_NAME] = "";
        if (!oracle_step(&k, &zoo[i], "cpu", &e)) return fprintf(stderr, "%s: %s\n", zoo[i].name, e.msg), 1;
        int64_t n = (int64_t)k.n;
        snprintf(name, sizeof name, "%s", zoo[i].name);
        fwrite(name, 1, sizeof name, f);
        fwrite(&n, sizeof n, 1, f);
        fwrite(k.v, sizeof *k.v, k.n, f);
        free(k.v);
    }
    bool bad = ferror(f);
    return fclose(f) || bad;
}
