/* replay.h: feeds a copy of a sequence tokens by whose queries a policy of the cache judges its rows
 * (layers/cache/policy.h): the context once more, where its prompt ends (ASK_REPLAY), or a prompt of the policy's own,
 * wherever rows are to leave (ASK_PROMPT). */
#pragma once
#include "data/tokenizer.h"
#include "session.h"

/* The words of the requests, as tokens of the model's own tokenizer, into a policy's settings. Without them (a model
 * without text) the context is fed again and nothing asks for it. False (EXIT_INPUT): more than REQUEST_MOST tokens. */
bool replay_requests(PolicyCfg *, const Tokenizer *, Err *);
/* If the policy asks for it, feeds request and chunk after chunk to a copy of the sequence. Costs passes over as many
 * tokens as the context has; the sequence itself does not change. */
bool session_replay(Session *, int seq, Err *);
/* After a pass that brought the sequence to a length at which its policy acts: feeds that prompt, and rows leave. */
bool session_prompt_asked(Session *, int seq, Err *);

static inline Workspace *session_workspace(Session *s) { return s->opts.work ? s->opts.work : &s->own; }
/* Tokens of the document of sequence seq so far; if Session.fed is there. */
static inline int *session_fed(const Session *s, int seq) { return s->fed + (size_t)seq * (size_t)s->opts.max_tokens; }
