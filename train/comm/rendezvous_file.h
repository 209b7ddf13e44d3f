/* rendezvous_file.h: a rendezvous by files, for ranks that share only a file system: rank 0 gives every other rank a
 * few bytes. ranks_open calls it if dist.store is set.
 *
 * Rank r writes PATH.r (a note with a random number for this start). Rank 0 answers in PATH with the numbers of all
 * notes it has seen, one of its own, and the bytes. Rank r accepts an answer that has its number, and sends thanks by a
 * second note with rank 0's number. So files that another start left, complete or not, are never accepted, whatever
 * their name and date: their numbers differ; and no rank accepts a file that belongs to another user. Files are written
 * under another name, synced and renamed. Rank 0 removes all of them when every rank has sent thanks.
 *
 * A file, little-endian:
 *   "kvsmfile"  u32 version  u32 rank  u32 world  u32 restart  u64 job  u64 config     40 bytes
 *   u64 number  u64 rank 0's number (of a note of thanks, else 0)  u32 n  u32 0         24 bytes
 *   of an answer: u64 number of rank 1, of rank 2, ... (0: not seen), n bytes; of a note n is 0
 *   u64 checksum of all before it */
#pragma once
#include "rendezvous.h"

enum { RENDEZVOUS_FILE_VERSION = 1, RENDEZVOUS_FILE_HEAD = 64 };
typedef struct {
    RendezvousKey key; /* of the rank that wrote it */
    uint64_t number, answers;
    const uint8_t *numbers, *bytes; /* into the file: world - 1 numbers of 8 bytes; n bytes */
    size_t n;
} RendezvousNote;
/* EXIT_RUNTIME after `deadline` seconds: names the missing rank, or describes what the file has instead of an answer.
 * EXIT_INPUT: on a rank whose configuration or number of ranks differs from rank 0's, and if the folder cannot be
 * written. */
bool rendezvous_file_share(const RendezvousKey *, const char *path, double deadline, void *bytes, size_t n, Err *);

size_t rendezvous_file_size(int rank, int world, size_t n);
/* False: no such file, or incomplete. */
bool rendezvous_file_read(const uint8_t *p, size_t size, RendezvousNote *);
uint64_t rendezvous_file_sum(const uint8_t *p, size_t n);
