/* marks.h: states of recurrences at earlier lengths of a session's sequences. A recurrence overwrites its state, so a
 * sequence can go back to where it was marked and no further; rows of attention are cut. The session makes and uses
 * marks (SessionOpts.marks), and saved.h keeps them in a file. */
#pragma once
#include "layers/cache/cache.h"

typedef struct {
    int seq, length; /* tokens that the sequence had */
    char *state;     /* kv_mark's */
} StateMark;
typedef struct {
    int n, most;     /* most 0: none are kept */
    size_t bytes;    /* of each state */
    StateMark *mark; /* (most) the oldest first */
} Marks;

/* At most `most` of them; none where the cache could use none (kv_mark_bytes). */
void marks_open(Marks *, const Cache *, int most);
void marks_close(Marks *);
/* Sequence seq as it is now, `length` tokens long. The oldest mark makes room. */
void marks_add(Marks *, const Cache *, int seq, int length);
/* Room for a state of that length, for the caller to fill; NULL: none are kept, or this length is there. */
char *marks_put(Marks *, int seq, int length);
/* Forget those of seq at lengths above `to`. */
void marks_drop(Marks *, int seq, int to);
/* Sequence seq goes back to the longest marked length of `to` at most. Returns it; 0: to none, and nothing changed. */
int marks_rewind(Marks *, Cache *, int seq, int to);
