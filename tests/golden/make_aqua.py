#!/usr/bin/env python3
"""make_aqua.py: what the codec aqua stores of drawn rows of three slots, and what it reads back, by the paper's rule in
NumPy, in float64: a row is predicted from the row below as it is read back, and the residual is stored.

    python3 tests/golden/make_aqua.py > tests/golden/aqua.txt

Codes are those of make_codecs.py, packed ones or those of pairs, whose elements have drawn signs; rotations are complex
numbers, the Hadamard matrix a Kronecker power.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_codecs import packed, pairs, points  # noqa: E402

ROWS, FIRST, LANES, SLOTS, WIDTH, GROUP = 40, 4090, 2, 3, (8, 4), 32


def drawn(which, row, column):
    x = (which * 65536 + row * 256 + column) * 2654435761 + 12345 & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 2246822519 & 0xFFFFFFFF
    x ^= x >> 13
    return float(np.float32(x / 2**32 - 0.5))


def table(which, rows, columns):
    return np.array([[drawn(which, j, k) for k in range(columns)] for j in range(rows)])


def turned(x, pos, rope, by):
    n, at, interleaved = rope
    y = x.copy()
    for i in range(n // 2):
        a = at + (2 * i if interleaved else i)
        b = a + (1 if interleaved else n // 2)
        z = (x[a] + 1j * x[b]) * np.exp(1j * by * pos * 1000.0**(-2 * i / n))
        y[a], y[b] = z.real, z.imag
    return y


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.kron(h, np.array([[1, 1], [1, -1]]) / np.sqrt(2))
    return h


def mixed(word):
    """splitmix64's finaliser."""
    word &= 2**64 - 1
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    word = (word ^ word >> 27) * 0x94D049BB133111EB & 2**64 - 1
    return word ^ word >> 31


def signs(n):
    golden = 0x9E3779B97F4A7C15
    word = mixed(mixed(0xA90A + golden) + golden)  # of the first 64 elements
    return np.array([-1.0 if word >> k & 1 else 1.0 for k in range(n)])


def read_pairs(code, bits, n):
    scale = np.frombuffer(bytes(2) + code[:2], np.float32)[0].astype(np.float64)
    stream = int.from_bytes(code[4:], "little")
    return (scale * points(bits)[[stream >> i * 2 * bits & 4**bits - 1 for i in range(n // 2)]]).ravel()


def read(code, bits, n):
    """The elements of one group."""
    scale = np.frombuffer(bytes(2) + code[:2], np.float32)[0].astype(np.float64)
    zero = int.from_bytes(code[2:4], "little", signed=True)
    low = 2 if bits == 3 else bits
    words = (n * low + 31) // 32 * 4
    a, b = (int.from_bytes(p, "little") for p in (code[4:4 + words], code[4 + words:]))
    codes = [(a >> i * low & 2**low - 1) + ((b >> i & 1) << 2 if bits == 3 else 0) for i in range(n)]
    return np.array([scale * (zero + c) for c in codes])


def settled(row, predicted, bits, by_pairs):
    """Codes of the heads of a row, and what is read back."""
    width = len(row) // LANES
    h, codes, back = hadamard(width) * (signs(width) if by_pairs else 1), [], predicted.copy()
    for lane in range(LANES):
        part = slice(lane * width, (lane + 1) * width)
        codes.append((pairs if by_pairs else packed)(np.float32(h @ (row - predicted)[part]), bits, GROUP))
        back[part] += h.T @ (read_pairs if by_pairs else read)(codes[-1], bits, width)
    return codes, back


def main():
    K, V = LANES * WIDTH[0], LANES * WIDTH[1]
    for bits, by_pairs, rope in ((4, False, (8, 0, False)), (3, False, (4, 2, True)), (2, False, (8, 0, False)),
                                 (4, True, (4, 2, True)), (3, True, (8, 0, False)), (2, True, (4, 0, False))):
        print("case", bits, int(by_pairs), *[int(v) for v in rope])
        below = None
        for s in range(SLOTS):
            keys, values = 4 * table(10 * s, ROWS, K), 4 * table(10 * s + 1, ROWS, V)
            wk, wv = table(10 * s + 2, K, K) / 2, table(10 * s + 3, V, K + V if s else K) / 2
            bk, bv = table(10 * s + 4, 1, K)[0], table(10 * s + 5, 1, V)[0]
            here = np.zeros((ROWS, K)), np.zeros((ROWS, V))
            for j in range(ROWS):
                plain = np.concatenate([turned(k, FIRST + j, rope, -1) for k in keys[j].reshape(LANES, -1)])
                codes, back = settled(plain, bk + (wk @ below[0][j] if s else 0), bits, by_pairs)
                more, value = settled(values[j], bv + wv @ np.concatenate([back, below[1][j]] if s else [back]), bits,
                                      by_pairs)
                here[0][j], here[1][j] = back, value
                for lane in range(LANES):
                    for part, c in ((0, codes), (1, more)):
                        row = here[part][j].reshape(LANES, -1)[lane]
                        if part == 0:
                            row = turned(row, FIRST + j, rope, 1)
                        print("row", c[lane].hex(), *[f"{x:.12g}" for x in row])
            below = here


main()
