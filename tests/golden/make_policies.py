#!/usr/bin/env python3
"""make_policies.py: which rows each policy of the cache keeps, by the rules of the papers, typed here from their text.

Attention over drawn queries and keys is computed row by row in float64, with the rows that are still there; nothing of
the program is used. tests/layers/test_policy_golden.c feeds the same numbers to the program's cache. numpy 2.4.

    python3 tests/golden/make_policies.py > tests/golden/policies.txt
"""
import math
import numpy as np

SLOTS, HEADS, LANES, DIM, PROMPT, TOKENS = 3, 4, 2, 8, 48, 60
GROUP = HEADS // LANES
MASK = (1 << 64) - 1


def number(kind, slot, token, head, dim):
    """A number in [-2, 2) that C computes alike."""
    x = ((((kind * SLOTS + slot) * 64 + token) * HEADS + head) * DIM + dim) * 2654435761 + 12345 & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 2246822519 & 0xFFFFFFFF
    x ^= x >> 13
    return np.float64(np.float32((x / 2**32 - 0.5) * 4))


def tensor(kind, heads):
    return np.array([[[[number(kind, s, t, h, d) for d in range(DIM)] for h in range(heads)] for t in range(TOKENS)]
                     for s in range(SLOTS)])


Q, K, V = tensor(0, HEADS), tensor(1, LANES), tensor(2, LANES)
Q_AGAIN, K_AGAIN = tensor(3, HEADS), tensor(4, LANES)  # of the tokens when they are repeated
NOVELTY = [number(5, 0, t, 0, 0) for t in range(TOKENS)]  # -log P of each token, as far as a policy asks for it
# Pair i of the first and second half of a head turns by position * TURN[i], as far as a policy asks for it.
TURN = np.array([1, 0.1, 0.01, 0.001])


def rotation(pos):
    """The matrix that turns a column vector at a position."""
    c, s = np.diag(np.cos(pos * TURN)), np.diag(np.sin(pos * TURN))
    return np.block([[c, -s], [s, c]])


def splitmix(x):
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def mix(key, word):
    step = 0x9E3779B97F4A7C15
    return splitmix(splitmix(key + step & MASK) + word + step & MASK)


def uniform(key, counter):
    return ((mix(key, counter) >> 11) + 0.5) * 2.0**-53


class Text:
    """One sequence: the positions that each lane has, and the attention of every query so far."""

    def __init__(self):
        self.kept = [[[] for _ in range(LANES)] for _ in range(SLOTS)]
        self.p = [[{} for _ in range(HEADS)] for _ in range(SLOTS)]

    def token(self, t):
        for s in range(SLOTS):
            for lane in range(LANES):
                self.kept[s][lane].append(t)
            for h in range(HEADS):
                rows = self.kept[s][h // GROUP]
                score = np.array([Q[s, t, h] @ K[s, j, h // GROUP] for j in rows]) / math.sqrt(DIM)
                e = np.exp(score - score.max())
                self.p[s][h][t] = dict(zip(rows, e / e.sum()))

    def attention(self, s, h, queries):
        """Sum over the queries of what head h gave to each row that its lane still has."""
        return {j: sum(self.p[s][h][i].get(j, 0) for i in queries) for j in self.kept[s][h // GROUP]}

    def of_lane(self, s, lane, queries):
        heads = [self.attention(s, h, queries) for h in range(lane * GROUP, (lane + 1) * GROUP)]
        return {j: sum(a[j] for a in heads) for j in self.kept[s][lane]}


def budget_rows(o, n):
    b = o.get("budget", 0)
    most = math.floor(b) if b > 1 else math.ceil(b * n - 1e-9)
    return min(n, max(o["window"] + o["sinks"], most))


def keep_top(rows, score, n, o, budget):
    fixed = [j for j in rows if j < o["sinks"] or j >= n - o["window"]]
    rest = sorted((j for j in rows if j not in fixed), key=lambda j: (-score[j], j))
    return sorted(fixed + rest[:max(0, budget - len(fixed))])


def pyramid(s, rows, o, layers, n):
    """Rows of slot s where the mean is `rows`."""
    mean = rows - o["window"]
    least = int(mean / layers["share"])
    most = 2 * mean - least
    if most > n - o["window"]:
        most, least = n - o["window"], 2 * mean - (n - o["window"])
    if least < max(o["window"], o["sinks"]):
        return rows
    return min(n, most - s * (most - least) // (SLOTS - 1) + o["window"])


def repeated(text, slot, lane, o, n):
    """The largest attention that each row gets while the chunk of its token is repeated."""
    rows = text.kept[slot][lane]
    score = {}
    for lo in range(0, n, o["chunk"]):
        chunk = range(lo, min(n, lo + o["chunk"]))
        for h in range(lane * GROUP, (lane + 1) * GROUP):
            for i in chunk:
                keys = np.array([K[slot, j, lane] for j in rows] + [K_AGAIN[slot, j, lane] for j in range(lo, i + 1)])
                e = np.exp(keys @ Q_AGAIN[slot, i, h] / math.sqrt(DIM))
                for j, p in zip(rows, e / e.sum()):
                    if j in chunk:
                        score[j] = max(score.get(j, 0), p)
    return score


def evict_together(text, o, n):
    """KVzip: rows of all slots and lanes compete."""
    rivals, left = [], 0
    for s in range(SLOTS):
        for lane in range(LANES):
            score = repeated(text, s, lane, o, n)
            rivals += [(-p, j, s, lane) for j, p in score.items() if j >= o["sinks"]]
            left += budget_rows(o, n) - o["sinks"]
            text.kept[s][lane] = text.kept[s][lane][:o["sinks"]]
    for _, j, s, lane in sorted(rivals)[:left]:
        text.kept[s][lane].append(j)
    for lanes in text.kept:
        for rows in lanes:
            rows.sort()


def four_bits(x):
    """How far x is from its nearest codes of 4 bits, the zero among them."""
    scale = max(x.max() - x.min(), 1e-5) / 15
    zero = np.clip(-np.round(x.min() / scale), 0, 15)
    return np.linalg.norm((np.clip(np.round(x / scale) + zero, 0, 15) - zero) * scale - x)


def unit(lanes):
    """Values of the rows of all lanes, scaled to 0..1."""
    low, high = (f(v for lane in lanes for v in lane.values()) for f in (min, max))
    return [{j: (v - low) / (high - low) for j, v in lane.items()} for lane in lanes]


def evict(text, name, o, n, layers=None, lanes=None):
    """The rule of policy `name` at a length of n; settings of those that divide rows among layers and lanes."""
    if name == "kvzip":
        evict_together(text, o, n)
        return
    for s in range(SLOTS):
        budget = [budget_rows(o, n)] * LANES
        score = [{j: 0.0 for j in text.kept[s][lane]} for lane in range(LANES)]
        newest = range(max(0, n - o.get("queries", 1)), n)
        for lane in range(LANES):
            rows = text.kept[s][lane]
            if name == "knorm":
                score[lane] = {j: -np.linalg.norm(K[s, j, lane]) for j in rows}
            if name == "random":
                key = mix(mix(o["seed"], s), lane)
                score[lane] = {j: uniform(key, j) for j in rows}
            if name in ("h2o", "vatp", "qhitter", "minikv"):
                score[lane] = text.of_lane(s, lane, range(n))
            if name == "vatp":
                score[lane] = {j: a * np.abs(V[s, j, lane]).sum() for j, a in score[lane].items()}
            if name == "scissorhands":
                for h in range(lane * GROUP, (lane + 1) * GROUP):
                    for i in newest:
                        p = text.p[s][h][i]
                        for j in rows:
                            score[lane][j] += p.get(j, 0) > 1 / len(p)
            if name == "tova":
                score[lane] = {j: np.mean([text.p[s][h][n - 1].get(j, 0) for h in range(HEADS)]) for j in rows}
            if name in ("snapkv", "pyramidkv", "adakv", "rocketkv"):
                a = text.of_lane(s, lane, range(n - o["window"], n))
                old = [j for j in rows if j < n - o["window"]]
                padded = np.pad([a[j] for j in old], o["pool"] // 2)
                pool = np.max if o.get("peak") else np.mean
                score[lane].update({j: pool(padded[i:i + o["pool"]]) for i, j in enumerate(old)})
            group = range(lane * GROUP, (lane + 1) * GROUP)
            if name == "rocketkv":
                ratio = n / budget[lane]
                budget[lane] = max(budget[lane], int(n / ratio**min(0.2 + 0.06 * math.log2(ratio), 0.8) + 1e-9))
            if name == "morphkv":
                old = [j for j in rows if j < n - o["window"]]
                for i in range(max(0, n - o["window"]), n):
                    q = sum(Q[s, i, h] for h in group) / math.sqrt(DIM)
                    e = np.exp([q @ K[s, j, lane] for j in old])
                    for j, p in zip(old, e / e.sum()):
                        score[lane][j] = max(score[lane][j], p) if o.get("peak") else score[lane][j] + p
            if name == "hashevict":
                way = np.array([[math.sqrt(-2 * math.log(uniform(mix(o["seed"], r), 2 * d))) *
                                 math.cos(2 * math.pi * uniform(mix(o["seed"], r), 2 * d + 1)) for d in range(DIM)]
                                for r in range(o["bits"])])
                for j in rows:
                    score[lane][j] = -sum(((way @ K[s, j, lane] >= 0) != (way @ Q[s, i, h] >= 0)).sum()
                                          for i in newest for h in group)
            if name == "expected":
                old = [j for j in rows if j >= o["sinks"]]
                ahead = np.mean([rotation(p) for p in range(n, n + o["ahead"])], axis=0)
                for h in group:
                    q = np.array([rotation(-i) @ Q[s, i, h] for i in newest if i >= o["sinks"]])
                    mean, cov = ahead @ q.mean(axis=0), ahead @ np.cov(q.T, bias=True) @ ahead.T
                    k = K[s, old, lane]
                    e = np.exp(k @ mean / math.sqrt(DIM) + np.einsum("ja,ab,jb->j", k, cov, k) / (2 * DIM))
                    for j, p in zip(old, e / e.sum()):
                        score[lane][j] += p / GROUP * np.linalg.norm(V[s, j, lane])
            if name == "fastgen":
                near, heavy = math.ceil(o["local"] * n - 1e-9), math.ceil(o["heavy"] * n - 1e-9)
                a = text.of_lane(s, lane, newest)
                first = {j for j in rows if j < o["sinks"] or j >= n - o["window"]}
                hitters = set(sorted((j for j in rows if j not in first), key=lambda j: (-a[j], j))[:heavy])
                window = {j for j in rows if j >= n - near}
                for kept, band in ((first, 0), (first | hitters, 0), (first | hitters, near), (set(rows), 0)):
                    mass = sum(p for h in group for i in newest for j, p in text.p[s][h][i].items()
                               if j in rows and (j in kept or i - j < band))
                    if kept == set(rows) or (o["share"] < 1 and mass >= o["share"] * len(newest) * GROUP):
                        break
                stay = kept | (window if band else set())
                budget[lane] = len(stay)
                score[lane] = {j: float(j in stay) for j in rows}
            if layers:
                budget[lane] = pyramid(s, budget_rows(o, n), o, layers, n)
            if name == "minikv":
                newest = sorted(rows)[len(rows) - int(o["share"] * budget[lane] + 1e-9):]
                score[lane].update({j: math.inf for j in newest})
            if name == "infinipot":
                a = text.of_lane(s, lane, range(n - o["window"], n))
                fixed = [j for j in rows if j < o["sinks"] or j >= n - o["window"]]
                novel = sorted((j for j in rows if j not in fixed), key=lambda j: (-NOVELTY[j], j))
                novel = novel[:max(0, int(o["share"] * (budget[lane] - len(fixed)) + 1e-9))]
                score[lane] = {j: math.inf if j in novel else a[j] for j in rows}
            if name == "nacl":
                a = text.of_lane(s, lane, newest)
                fixed = [j for j in rows if j < o["sinks"] or j >= n - o["window"]]
                free = budget[lane] - len(fixed)
                sure = len(fixed) + int((1 - o["share"]) * free + 1e-9)
                top = keep_top(rows, a, n, o, sure)
                key = mix(mix(o["seed"], s), lane)
                score[lane] = {j: math.inf if j in top else a[j] - math.log(-math.log(uniform(key, j))) for j in rows}
        if name == "qhitter":
            error = [[{j: four_bits(x[s, j, lane]) for j in text.kept[s][lane]} for lane in range(LANES)] for x in (K, V)]
            a, k, v = (unit(x) for x in (score, *error))
            for lane in range(LANES):
                fixed = [j for j in text.kept[s][lane] if j < o["sinks"] or j >= n - o["window"]]
                heavy = sorted((j for j in text.kept[s][lane] if j not in fixed), key=lambda j: (-score[lane][j], j))
                heavy = heavy[:max(0, int(o["heavy"] * (budget[lane] - len(fixed)) + 1e-9))]
                score[lane] = {j: math.inf if j in heavy else o["share"] * a[lane][j] +
                               (1 - o["share"]) * (2 - k[lane][j] - v[lane][j]) / 2 for j in text.kept[s][lane]}
        if lanes:
            fixed = [sum(j < o["sinks"] or j >= n - o["window"] for j in text.kept[s][lane]) for lane in range(LANES)]
            free = sum(budget) - sum(fixed)
            rivals = sorted(((-score[lane][j], j, lane) for lane in range(LANES) for j in text.kept[s][lane]
                             if o["sinks"] <= j < n - o["window"]))
            there = [sum(r[2] == lane for r in rivals) for lane in range(LANES)]
            free = max(0, min(free, len(rivals)))
            won = [sum(r[2] == lane for r in rivals[:free]) for lane in range(LANES)]
            even = lanes["share"]
            got = [min(there[lane], math.floor(even * free / LANES + (1 - even) * w + 1e-9))
                   for lane, w in enumerate(won)]
            lane = 0
            while sum(got) < free:
                got[lane] += got[lane] < there[lane]
                lane = (lane + 1) % LANES
            budget = [g + f for g, f in zip(got, fixed)]
        if name == "simlayerkv":
            near = np.mean([sum(text.p[s][h][i].get(j, 0) for j in range(n) if j < o["sinks"] or j >= n - o["window"])
                            for h in range(HEADS) for i in newest])
            budget = [o["window"] + o["sinks"] if near > o["share"] else n] * LANES
        for lane in range(LANES):
            text.kept[s][lane] = keep_top(text.kept[s][lane], score[lane], n, o, budget[lane])


def run(spec):
    parts = {}
    for part in spec.split("+"):
        name, _, words = part.partition(":")
        parts[name] = {k: float(v) if "." in v else int(v) for k, v in (w.split("=") for w in words.split(",") if w)}
    rest = [p for p in parts if p not in ("pyramidkv", "adakv")]
    name = rest[0] if rest else "pyramidkv" if "pyramidkv" in parts else "adakv"
    o = {"window": 0, "every": 0} | parts[name]
    text = Text()
    for t in range(TOKENS):
        text.token(t)
        if (o["every"] and (t + 1) % o["every"] == 0) or (not o["every"] and t + 1 == PROMPT):
            evict(text, name, o, t + 1, parts.get("pyramidkv"), parts.get("adakv"))
    print(spec)
    for s in range(SLOTS):
        for lane in range(LANES):
            print(s, lane, len(text.kept[s][lane]), *text.kept[s][lane])


SPECS = (
        "window:window=7,sinks=3,every=8",
        "window:window=7,sinks=3,every=0",
        "random:budget=0.4,window=3,sinks=2,every=6,seed=3",
        "random:budget=15,window=3,sinks=2,every=0,seed=1",
        "knorm:budget=0.4,window=3,sinks=2,every=6",
        "knorm:budget=15,window=3,sinks=2,every=0",
        "h2o:budget=0.4,window=4,sinks=0,every=6",
        "h2o:budget=14,window=4,sinks=1,every=1",
        "h2o:budget=0.3,window=5,sinks=0,every=0",
        "qhitter:budget=0.4,window=3,sinks=2,every=6,share=0.5,heavy=0.35",
        "qhitter:budget=0.5,window=1,sinks=0,every=0,share=0.5,heavy=0.35",
        "qhitter:budget=17,window=2,sinks=1,every=5,share=0.2,heavy=0.0",
        "qhitter:budget=17,window=2,sinks=1,every=5,share=1.0,heavy=0.5",
        "qhitter:budget=0.5,window=4,sinks=0,every=0,share=0.5,heavy=0.5+pyramidkv:share=3",
        "vatp:budget=0.4,window=4,sinks=2,every=6",
        "vatp:budget=0.4,window=5,sinks=2,every=0",
        "scissorhands:budget=0.4,window=4,sinks=0,every=10,queries=10",
        "scissorhands:budget=0.3,window=4,sinks=0,every=0,queries=400",
        "tova:budget=0.4,window=1,sinks=0,every=5,queries=1",
        "tova:budget=12,window=1,sinks=0,every=1,queries=1",
        "tova:budget=0.3,window=1,sinks=0,every=0,queries=1",
        "snapkv:budget=0.4,window=6,sinks=0,every=0,pool=5",
        "snapkv:budget=20,window=4,sinks=0,every=0,pool=1",
        "snapkv:budget=0.4,window=6,sinks=0,every=12,pool=3",
        "pyramidkv:budget=0.5,window=4,sinks=0,every=0,pool=5,share=4",
        "pyramidkv:budget=0.7,window=3,sinks=0,every=0,pool=3,share=20",
        "pyramidkv:budget=0.3,window=8,sinks=0,every=0,pool=3,share=20",
        "adakv:budget=0.4,window=6,sinks=0,every=0,pool=5,share=0.2",
        "adakv:budget=0.4,window=6,sinks=0,every=0,pool=5,share=1",
        "adakv:budget=17,window=5,sinks=0,every=16,pool=3,share=0.5",
        "adakv:budget=17,window=3,sinks=0,every=4,pool=3,share=0.2",
        "snapkv:budget=0.4,window=6,sinks=0,every=0,pool=7,peak=1",
        "adakv:budget=0.4,window=6,sinks=2,every=0,pool=7,peak=1,share=0.2",
        "knorm:budget=0.4,window=3,sinks=2,every=6+adakv:share=0.2",
        "h2o:budget=0.5,window=4,sinks=0,every=6+pyramidkv:share=4.0",
        "adakv:share=0.1+h2o:budget=0.3,window=4,sinks=1,every=1",
        "adakv:share=0.5+pyramidkv:budget=0.5,window=4,sinks=0,every=0,pool=5,share=4",
        "pyramidkv:share=3+snapkv:budget=0.5,window=4,sinks=0,every=12,pool=3+adakv:share=0.0",
        "nacl:budget=0.5,window=3,sinks=2,every=0,queries=8,share=0.4,seed=1+pyramidkv:share=3",
        "tova:budget=0.4,window=2,sinks=0,every=5,queries=1+pyramidkv:share=2",
        "morphkv:budget=0.4,window=6,sinks=0,every=0",
        "morphkv:budget=17,window=4,sinks=1,every=5,peak=1",
        "morphkv:budget=15,window=3,sinks=0,every=1",
        "hashevict:budget=0.4,window=4,sinks=2,every=6,queries=1,bits=16,seed=1",
        "hashevict:budget=20,window=3,sinks=0,every=0,queries=3,bits=24,seed=5",
        "fastgen:window=1,sinks=4,every=0,queries=8,share=0.55,heavy=0.3,local=0.3",
        "fastgen:window=1,sinks=2,every=0,queries=16,share=0.7,heavy=0.2,local=0.4",
        "fastgen:window=2,sinks=4,every=0,queries=4,share=0.4,heavy=0.3,local=0.2",
        "fastgen:window=2,sinks=4,every=0,queries=4,share=1,heavy=0.3,local=0.2",
        "expected:budget=0.4,window=1,sinks=4,every=0,queries=512,ahead=20",
        "expected:budget=0.4,window=3,sinks=2,every=8,queries=12,ahead=3",
        "rocketkv:budget=0.2,window=4,sinks=0,every=0,pool=7,peak=1",
        "rocketkv:budget=10,window=4,sinks=2,every=16,pool=3,peak=0",
        "expected:budget=0.4,window=1,sinks=4,every=0,queries=40,ahead=20+adakv:share=0.2",
        "morphkv:budget=0.5,window=4,sinks=0,every=0+pyramidkv:share=4",
        "simlayerkv:window=8,sinks=4,every=0,queries=3,share=0.22",
        "simlayerkv:window=8,sinks=4,every=0,queries=8,share=0.2",
        "nacl:budget=0.4,window=3,sinks=2,every=0,queries=8,share=0.4,seed=1",
        "nacl:budget=0.4,window=3,sinks=2,every=12,queries=5,share=0.5,seed=9",
        "kvzip:budget=0.4,sinks=2,chunk=48",
        "kvzip:budget=13,sinks=0,chunk=20",
        "kvzip:budget=0.2,sinks=4,chunk=7",
        "infinipot:budget=0.4,window=4,sinks=0,every=6,share=0.5",
        "infinipot:budget=16,window=3,sinks=2,every=8,share=0.3",
        "infinipot:budget=0.4,window=6,sinks=1,every=0,share=1",
        "infinipot:budget=18,window=4,sinks=0,every=12,share=0.0",
        "infinipot:budget=0.5,window=4,sinks=0,every=12,share=0.5+pyramidkv:share=4",
        "minikv:budget=0.5,sinks=0,share=0.5",
        "minikv:budget=0.3,sinks=2,share=0.25",
        "minikv:budget=17,sinks=0,share=0.0",
)
if __name__ == "__main__":
    for spec in SPECS:
        run(spec)
