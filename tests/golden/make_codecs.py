#!/usr/bin/env python3
"""make_codecs.py: the bytes in which the cache's codecs store rows, by the rules that their headers state, typed here
in NumPy with another arithmetic: float64 sums, nearest numbers found in a list, bits put together as whole numbers.

    python3 tests/golden/make_codecs.py > tests/golden/codecs.txt
    python3 tests/golden/make_codecs.py blocks > tests/golden/blocks.txt
"""
import os
import re
import sys

import numpy as np

WIDTHS, KINDS, TIES = (5, 32, 48, 128), 4, 4


def drawn(kind, width):
    """Numbers that C draws alike: plain, far from zero, with one outlier, and all the same but one."""
    out = []
    for i in range(width):
        x = ((kind * 8 + WIDTHS.index(width)) * 128 + i) * 2654435761 + 12345 & 0xFFFFFFFF
        x ^= x >> 16
        x = x * 2246822519 & 0xFFFFFFFF
        x ^= x >> 13
        y = (x / 2**32 - 0.5) * 4
        y = [y, 37 + y / 8, y * 90 if i == width // 2 else y / 3, -1.7 if i else 1.9][kind]
        out.append(np.float32(y))
    return np.array(out, np.float32)


def halfway(width):
    """Halfway between neighbours of fp8, whose scale is 1 because 448 is the largest: ties go to the even code."""
    mean = [(E4M3[i * 29 % 125] + E4M3[i * 29 % 125 + 1]) / 2 * (-1) ** i for i in range(width)]
    return np.array([448.0] + mean[1:], np.float32)


def round_up(x, bits):
    """The least number of so many significant bits that is not below x > 0."""
    m, e = np.frexp(np.float64(x))
    return float(np.ldexp(np.ceil(m * 2**bits), e - bits))


def number_bytes(x):
    return np.float32(x).tobytes()


def padded(codes):
    return bytes(codes) + bytes(-len(codes) % 4)


def int8(x):
    s = round_up(np.float32(max(abs(x)) / np.float32(127)), 16)
    codes = [int(np.rint(np.float32(v / np.float32(s)))) & 255 for v in x]
    return number_bytes(s) + padded(codes)


# every non-negative e4m3 number by its code: 0.. 126
E4M3 = [(m / 8) * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0**(e - 7) for e in range(16) for m in range(8)][:127]


def fp8(x):
    s = round_up(np.float32(max(abs(x)) / np.float32(448)), 16)
    codes = []
    for v in x:
        y = float(np.float32(v / np.float32(s)))
        off = [abs(abs(y) - c) for c in E4M3]
        best = [i for i in range(127) if off[i] == min(off)]
        codes.append(([i for i in best if i % 2 == 0] + best)[0] + (128 if np.signbit(y) else 0))
    return number_bytes(s) + padded(codes)


def packed(x, bits, group):
    out, top = b"", 2**bits - 1
    for g in range(0, len(x), group):
        part = [float(v) for v in x[g:g + group]]
        least, most = min(part), max(part)
        size = max(abs(least), abs(most))
        s = round_up(np.float32(np.float32(most - least) / np.float32(top)), 8) if most > least else 0.0
        if s and size <= s * 2**14:
            z = round(float(np.float32(least / s)))
            codes = [top if v == most else min(top, max(0, round(float(np.float32(v / s))) - z)) for v in part]
        else:
            s = 2.0**(np.floor(np.log2(size)) - 13)
            z = int((most if abs(most) == size else least) / s)
            codes = [0] * len(part)
        out += number_bytes(s)[2:] + int(z).to_bytes(2, "little", signed=True)
        for low, width in ((0, 2), (2, 1)) if bits == 3 else ((0, bits),):
            all_bits = sum((c >> low & 2**width - 1) << i * width for i, c in enumerate(codes))
            out += all_bits.to_bytes((len(codes) * width + 31) // 32 * 4, "little")
    return out


LEVELS = {4: [14, 41, 70, 99, 130, 164, 203, 247], 3: [28, 85, 148, 227], 2: [54, 178]}


def levels(bits):
    """Means of clusters of normal numbers, 64 at a time without the one furthest from the others, scaled to -1..1."""
    x = np.sort(np.random.default_rng(1).standard_normal((20000, 64)), axis=1)
    x = np.where((x[:, -1] - x[:, -2] > x[:, 1] - x[:, 0])[:, None], x[:, :-1], x[:, 1:])
    x = np.abs((x - (x[:, :1] + x[:, -1:]) / 2) / ((x[:, -1:] - x[:, :1]) / 2)).ravel()  # the same on both sides of 0
    means = (np.arange(2**(bits - 1)) + 0.5) / 2**(bits - 1)
    for _ in range(1000):
        cluster = np.searchsorted((means[1:] + means[:-1]) / 2, x)
        means = np.array([x[cluster == i].mean() for i in range(len(means))])
    return np.rint(means * 256).astype(int).tolist()


def kvquant(x, bits, group, apart):
    out, level = b"", [-v for v in LEVELS[bits][::-1]] + LEVELS[bits]
    for g in range(0, len(x), group):
        part = [np.float32(v) for v in x[g:g + group]]
        up = sorted(part)
        leaves = -1
        if apart:
            top = len(part) == 1 or up[-1] - up[-2] >= up[1] - up[0]
            leaves = part.index(up[-1] if top else up[0])
        rest = [v for i, v in enumerate(part) if i != leaves]
        s, z = np.float32(0), 0
        if rest:
            middle, half = np.float32((min(rest) + max(rest)) * np.float32(0.5)), np.float32((max(rest) - min(rest)) * np.float32(0.5))
            s = np.float32(round_up(max(half, np.float32(abs(middle) / np.float32(128))), 8))
            z = round(float(np.float32(middle / s) * 64)) if s else 0
        codes = [0] * len(part)
        for i, v in enumerate(part):
            if i != leaves and s:
                at = float(np.float32(np.float32(v / s) * np.float32(256)) - np.float32(4 * z))
                codes[i] = min(range(2**bits), key=lambda q: (abs(at - level[q]), q))
        out += number_bytes(s)[2:] + int(z).to_bytes(2, "little", signed=True)
        if apart:
            value = np.array([part[leaves]], np.float32).view(np.uint32).astype(np.uint64)
            value = (value + 0x7fff + (value >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
            out += leaves.to_bytes(2, "little") + int(value[0]).to_bytes(2, "little")
        for low, width in ((0, 2), (2, 1)) if bits == 3 else ((0, bits),):
            all_bits = sum((c >> low & 2**width - 1) << i * width for i, c in enumerate(codes))
            out += all_bits.to_bytes((len(codes) * width + 31) // 32 * 4, "little")
    return out


def points(bits):
    """The grid of layers/cache/pairs.h, which make_pairs.py makes."""
    text = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../layers/cache/pairs.h")).read()
    table = re.search(r"pairs%d\[\d+\]\[2\] = \{(.*?)\};" % 4**bits, text, re.S).group(1)
    grid = np.array([[int(v) for v in pair] for pair in re.findall(r"\{(-?\d+), (-?\d+)\}", table)])
    assert grid.shape == (4**bits, 2)
    return grid / 2048


def bf16(x):
    """The nearest one, ties to even."""
    word = int(np.array([x], np.float32).view(np.uint32)[0])
    word = word + 0x7fff + (word >> 16 & 1) >> 16 << 16
    return float(np.array([word], np.uint32).view(np.float32)[0])


def pairs_nearest(x, grid, s):
    codes = []
    for i in range(0, len(x), 2):
        off = (x[i] / s - grid[:, 0])**2 + ((x[i + 1] / s - grid[:, 1])**2 if i + 1 < len(x) else 0)
        codes.append(int(np.argmin(off)))
    return codes


def pairs_read(s, codes, grid, n):
    return (s * grid[codes]).ravel()[:n]


def pairs_again(x, grid):
    """Scale and codes of elements that are a scale times points."""
    first = int(np.flatnonzero(x)[0])
    for by in grid[:, first % 2]:
        s = x[first] / by if by else 0
        if s >= 2.0**-100 and bf16(s) == s:
            codes = pairs_nearest(x, grid, s)
            if (pairs_read(s, codes, grid, len(x)) == x).all():
                return s, codes
    return None


def pairs_group(x, grid):
    x = np.array(x, np.float32).astype(np.float64)
    none = 0.0, [0] * ((len(x) + 1) // 2)
    found = pairs_again(x, grid) if x.any() else none
    if found:
        return found
    s = bf16(np.sqrt((x**2).mean()))
    if s < 2.0**-100:
        return none
    codes = pairs_nearest(x, grid, s)
    for _ in range(2):
        p = pairs_read(1, codes, grid, len(x))
        s = bf16((p @ x) / (p @ p))
        codes = pairs_nearest(x, grid, s)
    return pairs_again(pairs_read(s, codes, grid, len(x)), grid)


def pairs(x, bits, group):
    grid, heads, codes = points(bits), b"", []
    for g in range(0, len(x), group):
        s, some = pairs_group(x[g:g + group], grid)
        heads += number_bytes(s)[2:]
        codes += some
    stream = sum(c << i * 2 * bits for i, c in enumerate(codes))
    return padded(heads) + stream.to_bytes((len(codes) * 2 * bits + 31) // 32 * 4, "little")


ROWS, KEYS, VALUES, ANGLE = 64, 3, 40, 0.3


def block(piece, turned=False):
    """64 rows: keys by their elements, one of which is far from zero and larger than the others; values by rows. Turned:
    the first two elements of key j by -j ANGLE."""
    def element(which, j, k):
        x = (which * 4096 + j * 64 + k) * 2654435761 + 12345 & 0xFFFFFFFF
        x ^= x >> 16
        x = x * 2246822519 & 0xFFFFFFFF
        x ^= x >> 13
        y = (x / 2**32 - 0.5) * 4
        return np.float32(20 + 9 * y if which == 0 and k == 1 else y)

    keys = np.array([[element(0, j, k) for k in range(KEYS)] for j in range(ROWS)], np.float32)
    values = np.array([[element(1, j, k) for k in range(VALUES)] for j in range(ROWS)], np.float32)
    if turned:
        c, s = (f(ANGLE * np.arange(ROWS)).astype(np.float32) for f in (np.cos, np.sin))
        x, y = keys[:, 0].copy(), keys[:, 1].copy()
        keys[:, 0], keys[:, 1] = c * x + s * y, c * y - s * x
    return b"".join(piece(x) for x in [*keys.T, *values])


def print_blocks():
    for bits in (4, 3, 2):
        for group in (32, 64):
            print(f"kivi{bits}:group={group}", block(lambda x: packed(x, bits, group)).hex())
    for bits in (4, 3, 2):
        for group in (32, 64):
            for apart in (True, False):
                for turned in (True, False):
                    how = f"group={group},apart={'yes' if apart else 'no'},turned={'yes' if turned else 'no'}"
                    print(f"kvquant{bits}:{how}", block(lambda x: kvquant(x, bits, group, apart), turned).hex())


def print_rows():
    assert all(levels(bits) == LEVELS[bits] for bits in LEVELS)
    for width in WIDTHS:
        for kind in range(KINDS):
            row = drawn(kind, width)
            print("int8", width, kind, int8(row).hex())
            print("fp8", width, kind, fp8(row).hex())
            for bits in (4, 3, 2):
                for group in (32, 64):
                    print(f"int{bits}:group={group}", width, kind, packed(row, bits, group).hex())
                    print(f"aqua:pairs=yes,bits={bits},group={group}", width, kind, pairs(row, bits, group).hex())
        print("fp8", width, TIES, fp8(halfway(width)).hex())


if __name__ == "__main__":
    print_blocks() if sys.argv[1:] == ["blocks"] else print_rows()
