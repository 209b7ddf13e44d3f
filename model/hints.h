/* hints.h: what people who come from other tools write, and what it is called here.
 *
 * No foreign name is accepted: a setting has one name, so that a file means the same to everybody who reads it. A hint
 * ends the message that refuses it. */
#pragma once
#include "../ops/key.h"

enum { HINT_MAX = 200 };
/* For the unknown key `name` at the dotted `path` (which ends with it) of a table `keys`: "did you mean optim.lr?", or
 * a sentence where nothing here is quite the same. False: nothing is known of it, or the table is not one of a run's. */
bool hint_key(const char *name, const char *path, const Key *keys, char out[HINT_MAX]);
/* For an option --name that does not exist, of a command that takes KEY=VALUE words: the word that sets it. `value`
 * may be NULL. */
bool hint_option(const char *name, const char *value, char out[HINT_MAX]);
/* The mixer or feed-forward part that `name` means in other programs, or NULL. */
const char *hint_mixer(const char *name);
const char *hint_ffn(const char *name);
