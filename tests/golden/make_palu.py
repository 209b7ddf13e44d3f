#!/usr/bin/env python3
"""make_palu.py: what the codec palu stores of drawn rows, by the paper's rule in NumPy: directions from numpy's
singular value decomposition of the rows, rotations as complex numbers, coefficients in bf16. First each head has
directions of its own, then two groups of two heads have them together, of rows that are one head's after the other's;
head i stores coefficients i rank to (i + 1) rank - 1.

    python3 tests/golden/make_palu.py > tests/golden/palu.txt

The rule once more, as the paper has it: the weight W of a projection becomes the one of rank r that is nearest by
||X W - X W'||, X the inputs of a text. `whitened` computes that from a singular value decomposition of the whitened
weight (section 3.2) and checks that its rows are those that the codec gives.
"""
import numpy as np

ROWS, FIRST, LANES, WIDTH, RANK = 24, 4090, 4, (6, 5), (3, 2)


def element(which, row, lane, k):
    x = (which * 65536 + row * 64 + lane * 16 + k) * 2654435761 + 12345 & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 2246822519 & 0xFFFFFFFF
    x ^= x >> 13
    return float(np.float32((x / 2**32 - 0.5) * 4 * (1 + k) / (1 + lane)))


def rows(which):
    return np.array([[[element(which, j, h, k) for k in range(WIDTH[which])] for h in range(LANES)] for j in range(ROWS)])


def turned(x, pos, rope, by):
    """Elements in pairs as complex numbers, times e^(i by pos f)."""
    n, at, interleaved = rope
    y = x.copy()
    for i in range(n // 2):
        a = at + (2 * i if interleaved else i)
        b = a + (1 if interleaved else n // 2)
        z = (x[a] + 1j * x[b]) * np.exp(1j * by * pos * frequency(i, n))
        y[a], y[b] = z.real, z.imag
    return y


def frequency(i, n):
    return 1000.0**(-2 * i / n)


def bf16(x):
    u = np.array(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint32)


def whitened(n, width, rank):
    """The rows that the best weight of this rank makes of n inputs are those of the codec."""
    rng = np.random.default_rng(5)
    inputs = rng.standard_normal((n, 9)) @ rng.standard_normal((9, 9))
    weight = rng.standard_normal((width, 9))
    s = np.linalg.cholesky(inputs.T @ inputs)
    u, d, vt = np.linalg.svd(weight @ s)
    low = (u[:, :rank] * d[:rank]) @ vt[:rank] @ np.linalg.inv(s)
    out = inputs @ weight.T
    values, vectors = np.linalg.eigh(out.T @ out)
    lead = vectors[:, ::-1][:, :rank]
    off = np.abs(inputs @ low.T - out @ lead @ lead.T).max() / np.abs(out).max()
    assert off < 1e-10, off


for rope in ((6, 0, False), (4, 2, True)):
    print("rope", *[int(v) for v in rope])
    keys, values = rows(0), rows(1)
    for j in range(ROWS):
        for h in range(LANES):
            keys[j, h] = turned(keys[j, h], FIRST + j, rope, -1)
    for heads, part in ((1, 0), (1, 1), (2, 0), (2, 1)):
        width, rank = heads * WIDTH[part], heads * RANK[part]
        whitened(ROWS, width, rank)
        for group in (keys, values)[part].reshape(ROWS, LANES // heads, width).swapaxes(0, 1):
            _, val, vec = np.linalg.svd(group)
            vec *= np.array([np.sign(v[np.abs(v).argmax()]) for v in vec])[:, None]
            print("eigenvalues", *[f"{v:.15g}" for v in val**2 / ROWS])
            for v in vec:
                print("direction", *[f"{c:.15g}" for c in v])
            for j in range(ROWS):
                codes = bf16(vec[:rank] @ group[j])
                back = (codes << 16).astype(np.uint32).view(np.float32).astype(np.float64) @ vec[:rank]
                if part == 0:
                    back = np.concatenate([turned(k, FIRST + j, rope, 1) for k in back.reshape(heads, -1)])
                print("row", *[f"{c:x}" for c in codes], *[f"{b:.15g}" for b in back])
for pos in (0, 1, 63, 64, 4095, 4096, 100000, 200000000):
    print("turn", pos, *[f"{v:.15g}" for v in turned(np.arange(1.0, 7), pos, (6, 0, False), 1)])
