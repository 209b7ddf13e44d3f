/* signals.h: the signals that ask a command to end: SIGINT, SIGTERM, SIGHUP (a terminal or ssh that is lost) and SIGUSR1 (what
 * batch systems send ahead of a limit). docs/guide.md says what each command then does. SIGHUP and SIGUSR1 stay ignored where
 * whoever started the program left them so (nohup). */
#pragma once
#include <signal.h>

/* All of them go to the handler; flags as of sigaction. */
void signals_catch(void (*handler)(int), int flags);
/* Those of them that signals_catch would give to a handler: to be blocked and looked for with sigpending or a signalfd, where one that is
 * ignored would show, too. */
void signals_set(sigset_t *);
/* One of signals_set is blocked and has come. */
int signals_pending(void);
/* For main: descriptors 0 to 2 are open, on /dev/null if need be, so that no other file gets their number and is read or
 * written in their place; and a file-size limit is an error of the write (EFBIG), not a signal that kills. */
void signals_begin(void);
