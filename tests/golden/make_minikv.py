#!/usr/bin/env python3
"""make_minikv.py: MiniKV (arXiv:2411.18077) over drawn keys, values and queries: which rows of a prompt stay, and the
bytes of the blocks that these become, by the rules alone, in float64. numpy 2.4.

Queries read earlier blocks of 64 rows in 2 bits and their own block as computed. Where the prompt ends, half of the
budget goes to the newest rows, half to those with the most attention of all queries; 64 rows that stay, oldest first,
are coded together.

    python3 tests/golden/make_minikv.py > tests/golden/minikv.txt
"""
import math

import numpy as np

from make_codecs import packed

HEADS, LANES, DIM, PROMPT, BLOCK, BITS, GROUP = 4, 2, 8, 200, 64, 2, 32


def number(kind, token, head, dim):
    """A number in [-2, 2) that C computes alike."""
    x = (((kind * 256 + token) * HEADS + head) * DIM + dim) * 2654435761 + 12345 & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 2246822519 & 0xFFFFFFFF
    x ^= x >> 13
    return np.float32((x / 2**32 - 0.5) * 4)


Q, K, V = (np.array([[[number(kind, t, h, d) for d in range(DIM)] for h in range(heads)] for t in range(PROMPT)])
           for kind, heads in ((0, HEADS), (1, LANES), (2, LANES)))


def decoded(piece, n):
    """The numbers in a packed piece."""
    out = []
    for first in range(0, n, GROUP):
        count = min(GROUP, n - first)
        size = 4 + (count * BITS + 31) // 32 * 4
        part, piece = piece[:size], piece[size:]
        scale = np.frombuffer(b"\0\0" + part[:2], np.float32)[0]
        zero = int.from_bytes(part[2:4], "little", signed=True)
        codes = int.from_bytes(part[4:], "little")
        out += [float(scale) * (zero + (codes >> BITS * i & 2**BITS - 1)) for i in range(count)]
    return out


def block(lane, rows):
    """The pieces of 64 rows: an element of all keys each, then the value of each row."""
    return ([packed(K[rows, lane, d], BITS, GROUP) for d in range(DIM)] +
            [packed(V[j, lane], BITS, GROUP) for j in rows])


def attention(lane):
    """What all queries of the prompt gave to each row."""
    sums = np.zeros(PROMPT)
    for first in range(0, PROMPT, BLOCK):
        keys = K[:, lane].astype(np.float64)
        for b in range(0, first, BLOCK):
            pieces = block(lane, np.arange(b, b + BLOCK))
            for d in range(DIM):
                keys[b:b + BLOCK, d] = decoded(pieces[d], BLOCK)
        for t in range(first, min(PROMPT, first + BLOCK)):
            for h in range(lane * HEADS // LANES, (lane + 1) * HEADS // LANES):
                e = np.exp(keys[:t + 1] @ Q[t, h].astype(np.float64) / math.sqrt(DIM))
                sums[:t + 1] += e / e.sum()
    return sums


if __name__ == "__main__":
    for budget in (0.64, 0.5, 0.75):
        print(budget)
        for lane in range(LANES):
            rows, sums = math.ceil(budget * PROMPT - 1e-9), attention(lane)
            newest = list(range(PROMPT - rows // 2, PROMPT))
            heavy = sorted(range(PROMPT - rows // 2), key=lambda j: -sums[j])[:rows - rows // 2]
            stay = sorted(heavy) + newest
            print(lane, len(stay), *stay)
            for b in range(0, rows - BLOCK + 1, BLOCK):
                print(b"".join(block(lane, np.array(stay[b:b + BLOCK]))).hex())
