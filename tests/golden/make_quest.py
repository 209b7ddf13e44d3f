#!/usr/bin/env python3
"""make_quest.py: which cached rows each query reads by Quest, by the rule of arXiv:2406.10774, typed here from its text.

Keys and queries are the drawn ones of make_policies.py. After the prompt, each token's query bounds every page from
above by sum_d max(q_d low_d, q_d high_d) and reads the pages of the highest bounds; pages that are not full or hold
recent rows are read anyway; of the query heads of a lane the largest bound counts.
tests/layers/test_policy_golden.c compares what the program's attention reads. numpy 2.4.

    python3 tests/golden/make_quest.py > tests/golden/quest.txt
"""
import math
import numpy as np
from make_policies import GROUP, K, LANES, PROMPT, Q, SLOTS, TOKENS


def reads(slot, lane, t, o):
    """Positions of the cached rows that the query at position t reads, as bits."""
    page, recent = o["page"], o["recent"]
    rows = o["reads"] if o["reads"] > 1 else o["reads"] * (t + 1)
    chosen, bound = [], {}
    for first in range(0, t, page):
        keys = K[slot, first:min(t, first + page), lane]
        if len(keys) < page or first + page - 1 >= t - recent:
            chosen.append(first)
            continue
        low, high = keys.min(axis=0), keys.max(axis=0)
        bound[first] = max(np.maximum(q * low, q * high).sum() for q in Q[slot, t, lane * GROUP:(lane + 1) * GROUP])
    most = math.ceil(max(0, rows - recent) / page - 1e-9)
    chosen += sorted(bound, key=lambda first: -bound[first])[:most]
    return sum(1 << j for first in chosen for j in range(first, min(t, first + page)))


if __name__ == "__main__":
    for spec in ("quest:reads=20,recent=4,page=4", "quest:reads=0.4,recent=6,page=5", "quest:reads=9,recent=3,page=3",
                 "quest:reads=24,recent=8,page=8", "quest:reads=6,recent=6,page=6", "quest:reads=17,recent=1,page=1",
                 "quest:reads=1000,recent=4,page=4"):
        o = {k: float(v) for k, v in (word.split("=") for word in spec.partition(":")[2].split(","))}
        o = {k: int(v) if k != "reads" else v for k, v in o.items()}
        print(spec)
        for t in range(PROMPT, TOKENS):
            print(t, *(format(reads(s, lane, t, o), "x") for s in range(SLOTS) for lane in range(LANES)))
