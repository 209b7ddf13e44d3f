#!/usr/bin/env python3
"""make_minicache.py: blocks of two layers that the codec minicache merges, by the rules of layers/cache/minicache.c and
ops/merged.h, typed here in NumPy.

    python3 tests/golden/make_minicache.py > tests/golden/minicache.txt

A line has the settings, the number of a shape, a lane, a block, and the bytes of the lower and of the upper layer's.
"""
import sys

import numpy as np
from make_codecs import int8, packed
from make_zipcache import bf16, drawn

ROWS, BLOCKS = 64, 1
SHAPES = ((2, 5, 12), (1, 6, 0))  # lanes, elements of a key, of a value; 0: they are the first ones of the key
SETTINGS = ((0.6, 0.1, 16, 32), (0.6, 0.1, 8, 32), (0.6, 0.1, 4, 32), (0.3, 0.5, 4, 64), (0.5, 0, 8, 32), (0.6, 1, 16, 32), (0, 0.02, 32, 32),
            (1, 0.25, 32, 32), (0.6, 0.1, 32, 64))  # t, apart, bits, group


def row(which, layer, lane, at, width):
    """Keys (0) or values (1): the upper layer's resemble the lower one's more or less from row to row."""
    x = np.array([drawn(4 * which, lane, at, k) for k in range(width)], np.float32)
    y = np.array([drawn(4 * which + 1, lane, at, k) for k in range(width)], np.float32)
    if at % ROWS == 20 or (at % ROWS == 5 and layer == 0):
        return np.zeros(width, np.float32)
    if layer == 0 or at % ROWS == 9:
        return x
    if at % ROWS == 11:
        return -x / np.float32(2)
    return (np.float32(0.5) * x + np.float32((0.125, 0.25, 0.5, 1)[at % 4]) * y).astype(np.float32)


def piece(x, bits, group):
    if bits == 32:
        return x.astype(np.float32).tobytes()
    if bits == 16:
        half = b"".join(bf16(v).to_bytes(2, "little") for v in x)
        return half + bytes(-len(half) % 4)
    if bits == 8:
        return int8(x) if np.any(x) else bytes(4 + (len(x) + 3) // 4 * 4)
    out = b""
    for g in range(0, len(x), group):
        part = x[g:g + group]
        out += packed(part, bits, group) if np.any(part) else bytes(4 + (len(part) * bits + 31) // 32 * 4)
    return out


def merged(lower, upper, t, apart, bits, group, by_element):
    """The bytes of a part, lower and upper, and how many rows are merged through their angle."""
    a, b = lower.astype(np.float64), upper.astype(np.float64)
    norms = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    zero = (norms[0] == 0) | (norms[1] == 0)
    with np.errstate(all="ignore"):
        units = np.nan_to_num(a / norms[0][:, None]), np.nan_to_num(b / norms[1][:, None])
    cosine = np.where(zero, 1.0, np.clip((units[0] * units[1]).sum(axis=1), -1, 1))
    order = np.argsort(cosine, kind="stable")
    count = int(apart * ROWS + 0.5)
    if 0 < count < ROWS:
        assert cosine[order[count]] - cosine[order[count - 1]] > 1e-9, "too close"
    far = sorted(order[:count].tolist())
    near = [j for j in range(ROWS) if j not in far]
    e, turned = np.zeros(a.shape), 0
    for j in near:
        angle = np.arccos(cosine[j])
        weights = 1 - t, t
        if np.sin(angle) > 1e-6:
            weights = np.sin((1 - t) * angle) / np.sin(angle), np.sin(t * angle) / np.sin(angle)
            turned += 1
        if norms[0][j] == 0:
            weights = 0, 1
        elif norms[1][j] == 0:
            weights = 1, 0
        e[j] = weights[0] * units[0][j] + weights[1] * units[1][j]
    e = e.astype(np.float32)
    both = [sum(1 << j for j in far).to_bytes(8, "little"), b""]
    if near:
        both[0] += b"".join(piece(e[:, k], bits, group) for k in range(e.shape[1])) if by_element else b"".join(piece(e[j], bits, group) for j in near)
    for of, x in enumerate((lower, upper)):
        norm = norms[of][near].astype(np.float32)
        both[of] += piece(norm, 32 if bits == 32 else 16, group) if near else b""
        both[of] += b"".join(piece(x[j], max(bits, 8), group) for j in far)
    return both, turned


def main():
    turned = 0
    for t, apart, bits, group in SETTINGS:
        for number, (lanes, D, Dv) in enumerate(SHAPES):
            for lane in range(lanes):
                for b in range(BLOCKS):
                    out = [b"", b""]
                    for which, width in enumerate((D, Dv)):
                        if not width:
                            continue
                        x = [np.array([row(which, layer, lane, at, width) for at in range(b * ROWS, (b + 1) * ROWS)]) for layer in range(2)]
                        part, n = merged(*x, t, apart, bits, group, which == 0)
                        turned += n
                        out = [out[0] + part[0], out[1] + part[1]]
                    print(f"t={t},apart={apart},bits={bits},group={group}", number, lane, b, out[0].hex(), out[1].hex() or "-")
    assert turned > 1000
    print(f"{turned} rows are merged through their angle", file=sys.stderr)


if __name__ == "__main__":
    main()
