#!/usr/bin/env python3
"""make_zipcache.py: blocks of the codec zipcache, by the rules of ops/salient.h and layers/cache/salient.c, typed here
in NumPy: which queries are asked, what they say about rows, which rows are salient, and the bytes.

    python3 tests/golden/make_zipcache.py > tests/golden/zipcache.txt

A line has the settings, the number of a shape, a lane, a block, and its bytes.
"""
import sys

import numpy as np
from make_codecs import packed

ROWS, BLOCKS = 64, 2
# lanes, query heads, elements of a key, elements of a value; 0: they are the first ones of the key
SHAPES = ((2, 4, 5, 12), (1, 3, 6, 0))
# bits, salient_bits, share, probes
SETTINGS = ((2, 4, 0.6, 8), (2, 4, 0.5, 64), (3, 4, 0.25, 3), (2, 3, 0.9, 1), (2, 4, 0.0, 8), (2, 4, 1.0, 8))
WORD = 2**64 - 1


def drawn(which, lane, row, k):
    """A number that C draws alike, of -2..2."""
    x = (((which * 8 + lane) * 256 + row) * 32 + k) * 2654435761 + 12345 & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 2246822519 & 0xFFFFFFFF
    x ^= x >> 13
    return np.float32((x / 2**32 - 0.5) * 4)


def finalise(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def mixed(key, word):
    golden = 0x9E3779B97F4A7C15
    return finalise((finalise(key + golden & WORD) + word + golden) & WORD)


def probes_of(block, probes):
    """Places in the block: the newest ones, and of those before them the ones with the smallest draws."""
    older = ROWS - (probes + 1) // 2
    key = mixed(0x5A11E47, block)
    order = sorted(range(older), key=lambda j: mixed(key, j))
    return sorted(order[:probes // 2]) + list(range(older, ROWS))


def salient(keys, queries, lse, asked, count):
    """keys (64,D), queries (64,heads,D), lse (64,heads) of one lane. The rows with the highest scores, and those that
    sums without a divisor would choose."""
    sums, seen = np.zeros(ROWS), np.zeros(ROWS)
    for i in asked:
        p = np.exp(queries[i].astype(float) @ keys[:i + 1].T.astype(float) - lse[i][:, None].astype(float))
        sums[:i + 1] += p.sum(axis=0)
        seen[:i + 1] += 1
    score = sums / seen
    best = np.argsort(-score, kind="stable")
    if 0 < count < ROWS:
        assert score[best[count - 1]] > score[best[count]] * (1 + 1e-4), "too close for f32"
    return set(best[:count].tolist()), set(np.argsort(-sums, kind="stable")[:count].tolist())


def bf16(x):
    bits = int(np.float32(x).view(np.uint32))
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def number(half):
    return np.uint32(half << 16).view(np.float32)


def group(x, bits):
    return packed(x, bits, len(x)) if len(x) else b""


def block(keys, values, stay, bits, salient_bits):
    first, others = sorted(stay), [j for j in range(ROWS) if j not in stay]
    out = sum(1 << j for j in stay).to_bytes(8, "little")
    for k in range(keys.shape[1]):
        out += group(keys[first, k], salient_bits) + group(keys[others, k], bits)
    if values is None:
        return out
    scales = [bf16(np.sqrt(np.float32(max(abs(values[:, k]))))) for k in range(values.shape[1])]
    halves = b"".join(s.to_bytes(2, "little") for s in scales)
    out += halves + bytes(-len(halves) % 4)
    even = values / np.array([number(s) for s in scales], np.float32)
    assert even.dtype == np.float32
    for rows, b in ((first, salient_bits), (others, bits)):
        for j in rows:
            out += group(even[j], b)
    return out


def main():
    differ = 0
    for bits, salient_bits, share, probes in SETTINGS:
        for number_of, (lanes, heads, D, Dv) in enumerate(SHAPES):
            for lane in range(lanes):
                for b in range(BLOCKS):
                    rows, each = range(b * ROWS, (b + 1) * ROWS), heads // lanes
                    keys = np.array([[drawn(0, lane, r, k) * np.float32(1 + 3 * (k == 1)) for k in range(D)] for r in rows])
                    values = np.array([[drawn(1, lane, r, k) * np.float32(1 + 20 * (k == 3)) for k in range(Dv)]
                                       for r in rows]) if Dv else None
                    own = range(lane * each, lane * each + each)
                    queries = np.array([[[drawn(2, h, r, k) for k in range(D)] for h in own] for r in rows])
                    lse = np.array([[drawn(3, h, r, 0) + np.float32(4) for h in own] for r in rows])
                    count = int(share * ROWS + 0.5)
                    stay, summed = salient(keys, queries, lse, probes_of(b, probes), count)
                    differ += stay != summed
                    print(f"bits={bits},salient_bits={salient_bits},share={share},probes={probes}", number_of, lane, b,
                          block(keys, values, stay, bits, salient_bits).hex())
    assert differ > 5, "sums without a divisor choose the same rows"
    print(f"{differ} blocks have other salient rows than sums would choose", file=sys.stderr)


if __name__ == "__main__":
    main()
