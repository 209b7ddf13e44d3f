/* names.c: how far two names are apart, for messages that ask what was meant. */
#include "schema.h"
#include <limits.h>

int name_distance(const char *a, const char *b) {
    enum { MAX = 48 };
    int n = (int)strnlen(a, MAX + 1), m = (int)strnlen(b, MAX + 1), d[MAX + 1][MAX + 1];
    if (n > MAX || m > MAX) return INT_MAX;
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int v = imin(imin(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) v = imin(v, d[i - 2][j - 2] + 1);
            d[i][j] = v;
        }
    return d[n][m];
}
