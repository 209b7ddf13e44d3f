/* text.h: fragments of messages that several modules print. */
#pragma once
#include "base.h"

/* A number of bytes in readable form: "512 bytes", "1.5 GiB". Returns out. */
const char *bytes_text(size_t n, char out[24]);
/* A size as people write it: 1000, 500MB, 2GB, 1.5GiB, from 1 byte on. False: it is none. */
bool bytes_parse(const char *text, size_t *out);
/* Text to append to "no such file" when `name` may be a Hugging Face model: "" or "; a path is expected, nothing is
 * downloaded: hf download NAME FILES --local-dir DIR". `files` may be "". Returns out. */
const char *hub_text(const char *name, const char *files, char out[200]);
