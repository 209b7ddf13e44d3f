/* tree.h: folders of a case: copied, removed, compared. A failure of these ends the driver. */
#pragma once
#include <stdbool.h>

char *path_of(const char *dir, const char *name); /* malloc'ed DIR/NAME */
bool there(const char *path);                     /* also a link to nothing */
char *text_of(const char *path, int *n);          /* malloc'ed, ends with NUL; "" where no file is */
void tree_copy(const char *from, const char *to); /* links as links; `to` may exist */
void tree_remove(const char *path);
/* Names, links and bytes below a and b are the same, but for clocks: run.jsonl, clock.json and speeds are not
 * compared, of metrics.jsonl what lies before "tok_s". loose: below a is what an asynchronous save that failed may
 * leave out: b may have checkpoints and links that a has not, and trainer/state.json may name another best. why: the
 * first difference. */
bool tree_same(const char *a, const char *b, bool loose, char why[300]);
/* The first name below `path` that is a temporary one; malloc'ed, NULL: none. */
char *tree_left(const char *path);
