/* events.h: writes the records of metrics.jsonl also as a TensorBoard event file (train.tensorboard). journal.c calls
 * it. It writes the format itself: two messages of five fields do not justify a library.
 *
 * A file is a sequence of records: length (u64), masked CRC of these 8 bytes (u32), the bytes of an Event, masked CRC
 * of them (u32); little-endian. The CRC is CRC-32C (Castagnoli), masked: rotated right by 15, plus 0xa282ead8.
 *   Event    1: wall_time (double)  2: step (varint)  3: file_version (text)  5: summary
 *   Summary  1: value, repeated
 *   Value    1: tag (text)  2: simple_value (float)
 * The first record has the version "brain.Event:2" and no summary. Source of the format: tensorflow's
 * core/lib/io/record_writer.h and tensorboard/compat/proto/{event,summary}.proto. */
#pragma once
#include "journal.h"

#define EVENTS_DIR  "tb"
#define EVENTS_FILE "events.out.tfevents.kvsmith"

/* Opens RUN/tb/EVENTS_FILE (path) for appending, cut as a journal is: after the last complete record of a step up to
 * `step` that follows complete ones. step -1: from the beginning. An existing file is cut whether `wanted` or not; the
 * folder is made if it is wanted. `now` is the wall time of a new file's first record, in seconds since 1970. */
bool events_open(Journal *, const RunDir *, int64_t step, bool wanted, double now, Err *);
/* The values of a record of metrics.jsonl, one Event each. */
bool events_train(Journal *, const TrainRecord *, double now, Err *);
bool events_val(Journal *, const ValRecord *, double now, Err *);

/* Bytes at the beginning of a file that are complete records of steps up to `step`; 0 if the first is not valid. */
size_t events_kept(const unsigned char *p, size_t n, int64_t step);
uint32_t crc32c(const void *p, size_t n);
uint32_t events_sum(const void *p, size_t n); /* the masked one */
