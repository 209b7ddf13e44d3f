#!/usr/bin/env python3
"""make_pairs.py: layers/cache/pairs.h, the points by which the codec aqua stores two elements of a residual: those with
the least mean squared distance from two independent normal numbers, for 16, 64 and 256 points.

    python3 tests/golden/make_pairs.py > layers/cache/pairs.h     some minutes; the errors go to stderr

Lloyd's algorithm: each point moves to the mean of the numbers that are nearest to it. Means are integrals over columns
of the plane: in a column each point has one interval, whose mass and mean have a closed form. Of several beginnings
(hexagonal lattices, stretched to the density of the points of an optimal quantiser, exp(-r^2 / 4)) the best stays.
"""
import math
import sys

import numpy as np

UNIT, FAR = 2048, 7.0
erf = np.vectorize(math.erf, otypes=[float])


def moments(points, step):
    """Mass and first moments of the numbers nearest to each point."""
    columns = np.arange(-FAR + step / 2, FAR, step)
    mass, mean = np.zeros(len(points)), np.zeros((len(points), 2))
    px, py = points.T
    rise = py[None, :] - py[:, None]  # of j over i
    for some in np.array_split(columns, len(columns) // 16):
        c = (some[:, None] - px)**2 + py**2
        with np.errstate(divide="ignore", invalid="ignore"):
            cross = (c[:, None, :] - c[:, :, None]) / (2 * rise)  # i is nearer than j below it, where j is higher
        high = np.where(rise > 0, cross, np.inf).min(2)
        low = np.where(rise < 0, cross, -np.inf).max(2)
        high, low = np.clip(high, -9, 9), np.clip(low, -9, 9)
        none = (high <= low) | ((rise == 0) & (c[:, None, :] < c[:, :, None])).any(2)
        weight = np.exp(-some**2 / 2)[:, None] / math.sqrt(2 * math.pi) * step
        m = np.where(none, 0, (erf(high / math.sqrt(2)) - erf(low / math.sqrt(2))) / 2) * weight
        y = np.where(none, 0, np.exp(-low**2 / 2) - np.exp(-high**2 / 2)) / math.sqrt(2 * math.pi) * weight
        mass += m.sum(0)
        mean += np.stack([(m * some[:, None]).sum(0), y.sum(0)], 1)
    return mass, mean


def error(points, mass, mean):
    """The mean squared error of an element."""
    return (2 - 2 * (points * mean).sum() + ((points**2).sum(1) * mass).sum()) / 2


def lloyd(points, step, rounds, goes_on):
    """With momentum (Polyak): slow modes, such as a turn of a part of the points, need hundreds of rounds else."""
    moved = np.zeros_like(points)
    for _ in range(rounds):
        mass, mean = moments(points, step)
        moved = mean / np.maximum(mass, 1e-300)[:, None] - points + goes_on * moved
        points = points + moved
    return points


def lattice(n, draw):
    """n points of a hexagonal lattice, moved and turned, whose density becomes that of exp(-r^2 / 4)."""
    reach = np.arange(-40, 41)
    i, j = [v.ravel() for v in np.meshgrid(reach, reach)]
    at = np.stack([i + j / 2, j * math.sqrt(3) / 2], 1) + draw.uniform(-0.5, 0.5, 2)
    turn = draw.uniform(0, math.pi / 3)
    at = at @ np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    r = np.hypot(*at.T)
    near = np.argsort(r)[:n]
    share = (np.arange(n) + 0.5) / n
    return at[near] / r[near, None] * (2 * np.sqrt(-np.log(1 - share)))[:, None]


def grid(n):
    draw, best, least = np.random.default_rng(n), None, np.inf
    for _ in range(60 if n == 16 else 24 if n == 64 else 8):
        points = lloyd(lattice(n, draw), 0.1, 60 if n < 256 else 30, 0.5)
        e = error(points, *moments(points, 0.1))
        if e < least:
            best, least = points, e
    for step, rounds, by in ((0.05, 1000 if n < 256 else 250, 0.88), (0.01, 40, 0.8), (0.004, 8, 0.3)):
        best = lloyd(best, step, rounds, by)
    whole = np.rint(best * UNIT).astype(int)
    whole = whole[np.lexsort((whole[:, 1], whole[:, 0]))]
    mass, mean = moments(whole / UNIT, 0.004)
    off = np.abs(mean / mass[:, None] - whole / UNIT).max()
    print(f"{n} points: error {error(whole / UNIT, mass, mean):.6f}, {off:.1e} from means, up to "
          f"{np.hypot(*whole.T).max() / UNIT:.2f}", file=sys.stderr)
    return whole


def main():
    print("/* pairs.h: what pairs.c stores two elements by: points with the least mean squared distance from two "
          "independent normal\n * numbers, in units of 1/2048. Made by tests/golden/make_pairs.py. */\n#pragma once\n\n"
          f"enum {{ PAIRS_UNIT = {UNIT} }};\n/* clang-format off */")
    for n in (16, 64, 256):
        print(f"static const short pairs{n}[{n}][2] = {{")
        words = [f"{{{x}, {y}}}," for x, y in grid(n)]
        line = "   "
        for word in words:
            if len(line) + 1 + len(word) > 118:
                print(line)
                line = "   "
            line += " " + word
        print(line + "\n};")
    print("/* clang-format on */")


main()
