/* signals.h: handling of the signals that ask a command to end: SIGINT, SIGTERM, SIGHUP (a lost terminal or ssh
 * connection) and SIGUSR1 (sent by batch systems before a time limit). docs/guide.md says what each command then does.
 * SIGHUP and SIGUSR1 stay ignored if they were ignored when the program started (nohup). */
#pragma once
#include <signal.h>

/* Install `handler` for all of them; flags as of sigaction. */
void signals_catch(void (*handler)(int), int flags);
/* The set of signals that signals_catch would give to a handler. Callers block them and look for them with sigpending
 * or a signalfd, where an ignored signal would show up as well. */
void signals_set(sigset_t *);
/* One of signals_set is blocked and pending. */
int signals_pending(void);
/* main calls it first. It opens descriptors 0 to 2 on /dev/null if they are closed, so that no other file gets their
 * number and is read or written in their place. It also makes a file-size limit an error of the write (EFBIG) instead
 * of a signal that kills. */
void signals_begin(void);
