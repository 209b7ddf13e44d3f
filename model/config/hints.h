/* hints.h: suggests our name for a setting, option or mixer that other tools call differently. The readers of settings
 * and options append a hint to the message that refuses a name.
 *
 * No foreign name is accepted: a setting has one name, so that a file means the same to everybody who reads it. */
#pragma once
#include "ops/key.h"

enum { HINT_MAX = 200 };
/* Hint for the unknown key `name` at the dotted `path` (which ends with it) of a table `keys`: "did you mean
 * optim.lr?", or a sentence if nothing here is quite the same. False: there is no hint, or the table is not one of a
 * run. */
bool hint_key(const char *name, const char *path, const Key *keys, char out[HINT_MAX]);
/* Hint for an unknown option --name of a command with KEY=VALUE words: the word that sets it. `value` may be NULL. */
bool hint_option(const char *name, const char *value, char out[HINT_MAX]);
/* Our name of the mixer or feed-forward part that other programs call `name`, or NULL. */
const char *hint_mixer(const char *name);
const char *hint_ffn(const char *name);
