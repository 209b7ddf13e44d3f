"""Golden vectors of one DMC or DMS layer, from the equations alone (numpy 2, float64; python make_dmc.py in this folder).

DMC: arXiv:2403.09636 with the conventions of its released code (decision shifted by one, running mean before the
rotation, stolen lane zeroed before and after it). DMS: arXiv:2506.05345, the form that borrows a query's number;
`itself` and `turned` as FastDMS serves it: token t decides about row t, and the lane is zeroed before the rotation alone.
Nothing is shared with the C sources. The attention is a full T x T matrix, the mean a triple loop; the recurrent
decoder below is written from the running sums and a ring, and must agree with the parallel form to 1e-12 before a file
is written. Gradients are complex steps through the forward: exact to rounding, no derivation.

File: lines `name n0 n1 ...` followed by the numbers; `settings` first.
"""
import numpy as np

EPS = 2.0 ** -7
STEP = 1e-30


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def softplus(z):
    return np.where(z.real > 0, z, 0) + np.log(1 + np.exp(np.where(z.real > 0, -z, z)))


def turn(v, positions, c):
    """v (T, heads, D) turned by position: pair (i, i+D/2), or (2i, 2i+1) when interleaved."""
    D = v.shape[-1]
    out = v.copy()
    for i in range(D // 2):
        a, b = (2 * i, 2 * i + 1) if c["interleaved"] else (i, i + D // 2)
        angle = positions * c["theta"] ** (-2.0 * i / D)
        co, si = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out[:, :, a] = v[:, :, a] * co - v[:, :, b] * si
        out[:, :, b] = v[:, :, a] * si + v[:, :, b] * co
    return out


def lane_of(c):
    return c["head_dim"] - 1 if c["lane"] == "last" else 0


def dead(v, c, heads, m=0.0):
    v = v.copy()
    v[:, heads, lane_of(c)] *= m
    return v


def turn_dead(v, positions, c, heads, m=0.0):
    turned = turn(dead(v, c, heads, m), positions, c)
    return turned if c["turned"] else dead(turned, c, heads, m)


def project(c, w, x):
    T = len(x)
    H, G, D = c["heads"], c["kv_heads"], c["head_dim"]
    return ((x @ w["wq"].T).reshape(T, H, D), (x @ w["wk"].T).reshape(T, G, D), (x @ w["wv"].T).reshape(T, G, D))


def logits(c, q, k):
    """l (T, G): who decides, before any noise."""
    n, G = lane_of(c), c["kv_heads"]
    per = c["heads"] // G
    if c["evict"]:
        u = np.stack([q[:, g * per, n] for g in range(G)], 1)
    else:
        u = k[:, :, n]
    return (c["gain"] * u - c["offset"]) / c["tau"]


def importance(c, q):
    n, G = lane_of(c), c["kv_heads"]
    per = c["heads"] // G
    mean = np.stack([q[:, g * per:(g + 1) * per, n].mean(1) for g in range(G)], 1)
    return sigmoid(mean + c["offset"]) + EPS


def softmax_rows(s):
    s = s - s.real.max(1, keepdims=True)
    e = np.exp(s)
    return e / e.sum(1, keepdims=True)


def layer(c, w, x, mode):
    """mode 'soft' (no noise), 'hard' or 'zero'. Returns y (T, d), decisions (T, G)."""
    T = len(x)
    H, G, D = c["heads"], c["kv_heads"], c["head_dim"]
    per = H // G
    positions = np.arange(T)
    q, k, v = project(c, w, x)
    borrowed_q = [g * per for g in range(G)] if c["evict"] else list(range(H))
    borrowed_k = [] if c["evict"] else list(range(G))
    bias = np.zeros((T, G), dtype=x.dtype)
    if mode == "zero":
        m = max(0.0, 1 - c["progress"] / 0.8)
        a = np.zeros((T, G))
        q, k = turn_dead(q, positions, c, borrowed_q, m), turn_dead(k, positions, c, borrowed_k, m)
    else:
        l = logits(c, q, k)
        a = sigmoid(l) if mode == "soft" else (l.real > 0).astype(float)
        a = a.copy()
        bias = bias + 0 * l
        if c["itself"]:  # every row carries its own decision; `a` says it of the row before, and of the last to nobody
            bias = -softplus(l) if mode == "soft" else np.where(a > 0, -np.inf, 0) + 0 * l
            a[1:] = a[:-1].copy()
        a[0] = 0
        for j in range(0 if c["itself"] else T - 1):
            bias[j] = -softplus(l[j + 1]) if mode == "soft" else np.where(a[j + 1] > 0, -np.inf, 0)
        if not c["evict"]:
            o = importance(c, q)
            ks, vs = np.zeros_like(k), np.zeros_like(v)
            for g in range(G):
                for t in range(T):
                    nk, nv, z = 0, 0, 0
                    first = max(0, t - c["window"] + 1) if c["window"] else 0
                    for j in range(first, t + 1):
                        p = np.prod(a[j + 1:t + 1, g])
                        nk, nv, z = nk + p * o[j, g] * k[j, g], nv + p * o[j, g] * v[j, g], z + p * o[j, g]
                    ks[t, g], vs[t, g] = nk / z, nv / z
            k, v = ks, vs
        q, k = turn_dead(q, positions, c, borrowed_q), turn_dead(k, positions, c, borrowed_k)
    out = np.zeros((T, H, D), dtype=x.dtype)
    delay = c["delay"]
    for h in range(H):
        s = q[:, h] @ k[:, h // per].T / np.sqrt(D)
        for i in range(T):
            for j in range(T):
                if j > i:
                    s[i, j] = -np.inf
                elif i - j > delay:
                    s[i, j] = s[i, j] + bias[j, h // per]
        out[:, h] = softmax_rows(s) @ v[:, h // per]
    return out.reshape(T, H * D) @ w["wo"].T, a


def decode(c, w, x):
    """Token by token, as an inference engine would: running sums with a ring, or slots that are written over."""
    T = len(x)
    H, G, D = c["heads"], c["kv_heads"], c["head_dim"]
    per = H // G
    q, k, v = project(c, w, x)
    l, o = logits(c, q, k), importance(c, q)
    borrowed = [g * per for g in range(G)] if c["evict"] else list(range(H))
    slots = [[] for _ in range(G)]
    sums = [None] * G
    ring = [[] for _ in range(G)]
    y, lengths = [], []
    for t in range(T):
        at = np.array([t])
        qt = turn_dead(q[t:t + 1], at, c, borrowed)[0]
        row = np.zeros((H, D))
        for g in range(G):
            gone = t > 0 and l[t, g] > 0
            if c["evict"]:
                if gone and not c["itself"]:
                    slots[g][-1]["gone"] = True
                kt = turn(k[t:t + 1, g:g + 1], at, c)[0, 0]
                slots[g].append({"k": kt, "v": v[t, g], "t": t, "gone": c["itself"] and l[t, g] > 0})
                slots[g] = [s for s in slots[g] if not (s["gone"] and t - s["t"] > c["delay"])]
            else:
                if not gone:
                    sums[g], ring[g] = np.zeros(2 * D + 1), []
                e = np.concatenate([o[t, g] * k[t, g], o[t, g] * v[t, g], [o[t, g]]])
                sums[g] = sums[g] + e
                ring[g].append(e)
                if c["window"] and len(ring[g]) > c["window"]:
                    sums[g] = sums[g] - ring[g].pop(0)
                mean = sums[g][:2 * D] / sums[g][2 * D]
                kt = turn_dead(mean[None, None, :D], at, c, [0])[0, 0]
                if gone:
                    slots[g].pop()
                slots[g].append({"k": kt, "v": mean[D:], "t": t})
            for h in range(g * per, (g + 1) * per):
                s = np.array([qt[h] @ z["k"] for z in slots[g]]) / np.sqrt(D)
                p = np.exp(s - s.max())
                row[h] = (p / p.sum()) @ np.array([z["v"] for z in slots[g]])
        y.append(row.reshape(-1) @ w["wo"].T)
        lengths.append([len(s) for s in slots])
    return np.array(y), np.array(lengths)


def loss(c, w, x, dy, dstat, mode):
    y, a = layer(c, w, x, mode)
    return (y * dy).sum() + dstat * a.sum() * (mode == "soft")


def gradients(c, w, x, dy, dstat, mode):
    out = {}
    for name, t in dict(w, x=x).items():
        g = np.zeros(t.shape)
        for i in np.ndindex(t.shape):
            z = t.astype(complex)
            z[i] += STEP * 1j
            ws = {n: (z if n == name else u) for n, u in w.items()}
            g[i] = loss(c, ws, z if name == "x" else x.astype(complex), dy, dstat, mode).imag / STEP
        out["d" + name] = g
    return out


CASES = {
    "merge": dict(heads=4, kv_heads=2, head_dim=4),
    "window": dict(heads=4, kv_heads=2, head_dim=4, window=3),
    "first-lane": dict(heads=3, kv_heads=1, head_dim=6, window=2, lane="first", interleaved=1),
    "alone": dict(heads=2, kv_heads=2, head_dim=6, window=12, lane="last"),
    "evict": dict(heads=4, kv_heads=2, head_dim=4, evict=1, delay=2, gain=2.0),
    "evict-at-once": dict(heads=2, kv_heads=1, head_dim=6, evict=1, lane="first", gain=3.0),
    "zero": dict(heads=4, kv_heads=2, head_dim=4, progress=0.3),
    "zero-evict": dict(heads=4, kv_heads=2, head_dim=4, evict=1, progress=0.5, interleaved=1),
    "evict-itself": dict(heads=4, kv_heads=2, head_dim=4, evict=1, delay=2, gain=2.0, itself=1, turned=1),
    "evict-itself-at-once": dict(heads=3, kv_heads=1, head_dim=6, evict=1, lane="first", gain=3.0, itself=1),
    "evict-turned": dict(heads=4, kv_heads=2, head_dim=4, evict=1, delay=1, gain=2.0, interleaved=1, turned=1),
}
SETTINGS = ["heads", "kv_heads", "head_dim", "window", "lane", "evict", "delay", "interleaved", "theta", "tau", "offset",
            "gain", "progress", "itself", "turned"]
DEFAULTS = dict(window=0, lane="last", evict=0, delay=0, interleaved=0, theta=50.0, tau=0.4, offset=0.2, gain=1.0,
                progress=1.0, itself=0, turned=0)
T, WIDTH = 11, 6


def write(f, name, a):
    a = np.asarray(a, dtype=float)
    f.write(name + "".join(f" {n}" for n in a.shape) + "\n")
    f.write(" ".join("%.17g" % z for z in a.reshape(-1)) + "\n")


def main():
    for number, (name, given) in enumerate(CASES.items()):
        c = dict(DEFAULTS, **given)
        for draw in range(1000):  # until both decisions are taken and none is close
            rng = np.random.default_rng([number, draw])
            H, G, D = c["heads"], c["kv_heads"], c["head_dim"]
            x = rng.normal(size=(T, WIDTH))
            w = {"wq": rng.normal(size=(H * D, WIDTH)) * 0.5, "wk": rng.normal(size=(G * D, WIDTH)) * 0.5,
                 "wv": rng.normal(size=(G * D, WIDTH)) * 0.5, "wo": rng.normal(size=(WIDTH, H * D)) * 0.5}
            q, k, _ = project(c, w, x)
            l = logits(c, q, k)
            taken = (l[1:] > 0).mean()
            if np.abs(l).min() * c["tau"] > 0.02 and 0.3 < taken < 0.7 and np.abs(l).max() < 12:
                break
        else:
            raise SystemExit(name + ": no draw will do")
        dy, dstat = rng.normal(size=(T, WIDTH)), 0.7
        mode = "zero" if name.startswith("zero") else "soft"
        y, a = layer(c, w, x, mode)
        grad = gradients(c, w, x, dy, dstat, mode)
        with open(name + ".txt", "w") as f:
            write(f, "settings", [0 if c[s] == "last" else 1 if c[s] == "first" else c[s] for s in SETTINGS])
            write(f, "x", x)
            for n, t in w.items():
                write(f, n, t)
            write(f, "dy", dy)
            write(f, "dstat", [dstat])
            write(f, "y", y)
            for n, t in grad.items():
                write(f, n, t)
            if mode == "soft":
                hard, h = layer(c, w, x, "hard")
                again, lengths = decode(c, w, x)
                assert np.abs(hard - again).max() < 1e-12, name
                write(f, "alpha", a)
                write(f, "hard", hard)
                write(f, "decisions", h)
                write(f, "lengths", lengths)
        print(name, "taken", round(float(taken), 2), "y", np.abs(y).max())


main()
