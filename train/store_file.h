/* store_file.h: ranks meet by files, where nothing but a file system is shared: rank 0 hands a few bytes to every
 * other.
 *
 * Rank r writes PATH.r (a note with a number drawn for this start), rank 0 answers in PATH with the numbers of all that
 * it has seen, one of its own, and the bytes; rank r takes an answer that has its number, and says thanks by a second
 * note with rank 0's. So what another start left, whole or not, is never taken, whatever its name and date: its numbers
 * are others; and nobody takes a file that is another user's than his own. Files are written under another name, synced and renamed. Rank 0 removes all when everybody has thanked.
 *
 * A file, little-endian:
 *   "kvsmfile"  u32 version  u32 rank  u32 world  u32 restart  u64 job  u64 config     40 bytes
 *   u64 number  u64 rank 0's number (of a note of thanks, else 0)  u32 n  u32 0         24 bytes
 *   of an answer: u64 number of rank 1, of rank 2, ... (0: not seen), n bytes; of a note n is 0
 *   u64 checksum of all before it */
#pragma once
#include "store.h"

enum { STORE_FILE_VERSION = 1, STORE_FILE_HEAD = 64 };
typedef struct {
    StoreKey key; /* of who wrote it */
    uint64_t number, answers;
    const uint8_t *numbers, *bytes; /* into the file: world - 1 numbers of 8 bytes; n bytes */
    size_t n;
} StoreNote;
/* EXIT_WORLD after `deadline` seconds, naming the rank that has not come, or what stands in the file in place of an
 * answer; EXIT_INPUT on a rank whose configuration or number of ranks is not rank 0's, and
 * where the folder does not let itself be written. */
bool store_file_share(const StoreKey *, const char *path, double deadline, void *bytes, size_t n, Err *);

size_t store_file_size(int rank, int world, size_t n);
/* False: it is none, or not whole. */
bool store_file_read(const uint8_t *p, size_t size, StoreNote *);
uint64_t store_file_sum(const uint8_t *p, size_t n);
