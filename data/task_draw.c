/* task_draw.c: random choices for the generators of tasks. */
#include "task_draw.h"

void task_shuffle(Draw *d, int *list, int n, int count) {
    for (int i = 0; i < count; i++) {
        int j = i + task_below(d, n - i), swap = list[i];
        list[i] = list[j], list[j] = swap;
    }
}
void task_deal(Draw *d, int *list, int first, int n, int count) {
    for (int i = 0; i < n; i++) list[i] = first + i;
    task_shuffle(d, list, n, count);
}

/* A walk over pieces and single cells, of which `cells - count (len-1)` exist. */
void task_scatter(Draw *d, int begin, int cells, int len, int count, int *start) {
    int items = cells - count * (len - 1);
    CHECK(items >= count, "%d pieces of %d in %d cells", count, len, cells);
    for (int at = begin; count; items--) {
        if (task_below(d, items) < count) {
            *start++ = at;
            at += len;
            count--;
        } else {
            at++;
        }
    }
}
