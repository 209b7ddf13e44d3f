#!/usr/bin/env python3
"""make_reads.py: which cached rows each query reads, by the rules of Quest (arXiv:2406.10774), RocketKV's second stage
(arXiv:2502.14051, "hybrid"), ShadowKV (arXiv:2410.21465), InfiniGen (arXiv:2406.19707) and TailorKV (arXiv:2505.19586),
typed here from their texts.

Keys and queries are the drawn ones of make_policies.py. After the prompt, each token's query gives every page a score
and reads the pages of the highest; pages that are not full or hold recent rows are read anyway.
tests/layers/test_policy_golden.c compares what the program's attention reads. numpy 2.4.

    python3 tests/golden/make_reads.py > tests/golden/reads.txt
"""
import math
import numpy as np
from make_policies import DIM, GROUP, HEADS, K, LANES, PROMPT, Q, SLOTS, TOKENS, tensor

GUESSED = tensor(3, HEADS)  # the queries that the layer before guesses; nobody guesses those of slot 0


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def quest(pages, q, o):
    """The largest of the heads' bounds sum_d max(q_d low_d, q_d high_d)."""
    low, high = pages.min(axis=1), pages.max(axis=1)
    return np.maximum(q[:, None] * low, q[:, None] * high).sum(axis=-1).max(axis=0)


def hybrid(pages, q, o):
    """Of keys and queries, turned by the sign of the group's summed query, the largest key of each channel; of these the
    channels of the largest queries; softmax with the scale of SparQ; mean over the heads."""
    sign = np.where(q.sum(axis=0) > 0, 1, -1)
    few = np.argsort(-np.abs(q).mean(axis=0), kind="stable")[:int(DIM * o["channels"])]
    top = (pages * sign).max(axis=1)[:, few]
    scale = np.sqrt(DIM * np.abs(q[:, few]).sum(axis=-1) / np.abs(q).sum(axis=-1))
    return softmax((q * sign)[:, few] @ top.T / scale[:, None]).mean(axis=0)


def shadowkv(pages, q, o):
    """The chunks whose least cosine to their mean is the lowest; of the others the largest of the heads' attention."""
    mean = pages.mean(axis=1)
    cosine = np.einsum("prd,pd->pr", pages, mean) / (np.linalg.norm(pages, axis=-1) *
                                                     np.linalg.norm(mean, axis=-1)[:, None])
    order = np.argsort(cosine.min(axis=1), kind="stable")
    score = np.full(len(pages), np.inf)
    rest = np.sort(order[o["uneven"]:])
    if len(rest):
        score[rest] = softmax(q @ mean[rest].T / math.sqrt(DIM)).max(axis=0)
    return score


def infinigen(pages, q, o):
    """Tokens near the largest partial score: each head counts those within `below` of it, the mean of the counts is
    read, those with the least distance of a head."""
    few = np.argsort(-np.abs(q).sum(axis=0), kind="stable")[:int(DIM * o["channels"])]
    s = q[:, few] @ pages.mean(axis=1)[:, few].T / math.sqrt(DIM)
    off = s.max(axis=1, keepdims=True) - s
    score = -off.min(axis=0)
    order = np.argsort(-score, kind="stable")
    score[order[int((off < o["below"]).sum() / len(q)):]] = -np.inf
    return score


def tailorkv(pages, q, o):
    """The mean query of the group times each key, in the channels of the largest |q| max |k|."""
    q, k = q.mean(axis=0), pages.mean(axis=1)
    few = np.argsort(-np.abs(q) * np.abs(k).max(axis=0), kind="stable")[:max(1, int(DIM * o["channels"]))]
    return k[:, few] @ q[few]


def reads(rule, slot, lane, t, o):
    """Positions of the cached rows that the query at position t reads, as bits."""
    page, recent, sinks = o["page"], o["recent"], o.get("sinks", 0)
    if slot < o.get("coded", 0):  # all rows, in few bits
        return (1 << t) - 1
    rows = o["reads"] if o["reads"] > 1 else o["reads"] * (t + 1)
    chosen, older = [], []
    for first in range(0, t, page):
        full = first + page <= t and first + page - 1 < t - recent and first >= sinks
        (older if full else chosen).append(first)
    most = math.ceil(max(0, rows - recent - sinks) / page - 1e-9) + o.get("uneven", 0)
    if older:
        pages = np.array([K[slot, first:first + page, lane] for first in older])
        guesses = rule is infinigen
        if guesses and slot == 0:
            return (1 << t) - 1
        q = GUESSED if guesses else Q
        score = rule(pages, q[slot, t, lane * GROUP:(lane + 1) * GROUP], o)
        chosen += [older[i] for i in np.argsort(-score, kind="stable")[:most] if score[i] > -np.inf]
    return sum(1 << j for first in chosen for j in range(first, min(t, first + page)))


if __name__ == "__main__":
    for spec in ("quest:reads=20,recent=4,page=4", "quest:reads=0.4,recent=6,page=5", "quest:reads=9,recent=3,page=3",
                 "quest:reads=24,recent=8,page=8", "quest:reads=6,recent=6,page=6", "quest:reads=17,recent=1,page=1",
                 "quest:reads=1000,recent=4,page=4", "hybrid:reads=20,recent=4,page=4,channels=0.5",
                 "hybrid:reads=0.3,recent=3,page=3,channels=0.25", "hybrid:reads=17,recent=1,page=1,channels=1",
                 "hybrid:reads=12,recent=2,page=2,channels=0.13", "hybrid:reads=30,recent=5,page=5,channels=0.7",
                 "shadowkv:reads=20,recent=4,page=4,uneven=2", "shadowkv:reads=0.3,recent=3,page=3,uneven=0",
                 "shadowkv:reads=5,recent=5,page=5,uneven=4", "shadowkv:reads=9,recent=2,page=2,uneven=5",
                 "shadowkv:reads=12,recent=8,page=8,uneven=1", "infinigen:reads=20,recent=1,page=1,channels=0.3,below=0.4",
                 "infinigen:reads=0.3,recent=3,page=1,channels=0.5,below=4",
                 "infinigen:reads=1000,recent=2,page=1,channels=1,below=1.5",
                 "infinigen:reads=1000,recent=4,page=4,channels=0.25,below=0.3",
                 "infinigen:reads=12,recent=6,page=2,channels=0.7,below=1",
                 "tailorkv:reads=20,recent=4,page=1,sinks=3,channels=0.25,coded=1,bits=2",
                 "tailorkv:reads=0.3,recent=3,page=1,sinks=0,channels=0.5,coded=0,bits=4",
                 "tailorkv:reads=12,recent=2,page=2,sinks=3,channels=0.13,coded=2,bits=3",
                 "tailorkv:reads=17,recent=1,page=1,sinks=8,channels=1,coded=0,bits=2"):
        name, _, words = spec.partition(":")
        o = {k: float(v) for k, v in (word.split("=") for word in words.split(","))}
        o = {k: int(v) if k not in ("reads", "channels", "below") else v for k, v in o.items()}
        print(spec)
        for t in range(PROMPT, TOKENS):
            print(t, *(format(reads(globals()[name], s, lane, t, o), "x") for s in range(SLOTS)
                       for lane in range(LANES)))
