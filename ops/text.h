/* text.h: words of messages that several modules share. */
#pragma once
#include "base.h"

/* A number of bytes as people read it: "512 bytes", "1.5 GiB". Returns out. */
const char *bytes_text(size_t n, char out[24]);
/* What to add to "no such file" for a name that may be one of Hugging Face's: "" or "; a path is expected, nothing is
 * downloaded: hf download NAME FILES --local-dir DIR". `files` may be "". */
const char *hub_text(const char *name, const char *files, char out[200]);
