/* tier_story.h: a story of a session that has rows of its cache in a slower tier: what test_tier.c (files) and
 * test_cuda_tier.c (a GPU's rows with the host) feed. */
#pragma once
#include "infer/session.h"
#include "zoo.h"

enum { TIER_TOKENS = 48, TIER_PAGE = 5, TIER_CHUNK = 7, TIER_SEQS = 3, TIER_STORY = 80 };
static const size_t TIER_PLENTY = (size_t)1 << 40;

/* Slots of the model that have rows. */
int tier_row_slots(const Model *);
/* TIER_SEQS sequences of TIER_TOKENS tokens; prompts come in chunks of TIER_CHUNK. */
void tier_session(Session *, Model *, const KvTier *, int page);
/* Prompts, steps of a batch, forks, sequences that go back and begin again: all logits, one after the other,
 * (TIER_STORY, vocab) at most. Returns how many tokens were fed. */
int tier_story(Session *, real *out);
/* Rows that sequences have: a window of one has none. */
int tier_rows(const Session *);
