"""Golden vectors of a layer of latent attention whose latents are evicted, from the equations alone (numpy 2, float64;
python make_latents.py in this folder).

Latents: arXiv:2405.04434, section 2.1. Eviction: arXiv:2506.05345, decided by a projection of the layer's input, one
decision a token, because all heads read one row. Nothing is shared with the C sources. `layer` builds the keys and
values of every head and a full T x T matrix; `decode` never builds them: it reads a list of stored latents with absorbed
queries and deletes entries. Both must agree to 1e-12 before a file is written. Gradients are complex steps.

File: lines `name n0 n1 ...` followed by the numbers; `settings` first.
"""
import numpy as np

STEP = 1e-30
T, WIDTH = 11, 8


def softplus(z):
    return np.where(z.real > 0, z, 0) + np.log(1 + np.exp(np.where(z.real > 0, -z, z)))


def turn(v, positions, theta):
    """v (T, D): pair (i, i + D/2) turned by positions theta^(-2i/D)."""
    half = v.shape[-1] // 2
    angle = positions[:, None] * theta ** (-np.arange(half) / half)
    a, b = v[:, :half], v[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], 1)


def latents(c, w, x, positions):
    u = x @ w["wa"].T
    r, n = c["kv_rank"], c["rope_dim"]
    z = u[:, :r]
    z = z / np.sqrt((z * z).mean(1, keepdims=True) + 1e-6) * w["nkv"]
    return z, [turn(u[:, r + g * n:r + (g + 1) * n], positions, c["theta"]) for g in range(c["rope_heads"])]


def queries(c, w, x, positions):
    """A list over heads of (T, nope), (T, rope)."""
    q, n, m = x @ w["wq"].T, c["nope_dim"], c["nope_dim"] + c["rope_dim"]
    return [(q[:, h * m:h * m + n], turn(q[:, h * m + n:(h + 1) * m], positions, c["theta"])) for h in range(c["heads"])]


def up(c, w, h):
    n = c["nope_dim"] + c["v_dim"]
    rows = w["wb"][h * n:(h + 1) * n]
    return rows[:c["nope_dim"]], rows[c["nope_dim"]:]


def decisions(c, w, x):
    return (c["gain"] * (x @ w["wd"][0] + w["bd"][0]) - c["offset"]) / c["tau"]


def layer(c, w, x, soft):
    """y (T, d), alpha (T)."""
    t, at = len(x), np.arange(len(x))
    z, keys = latents(c, w, x, at)
    l = decisions(c, w, x)
    alpha = 1 / (1 + np.exp(-l)) if soft else (l.real > 0) * (1 + 0 * l)
    alpha = np.concatenate([[0], alpha[1:]])
    out = []
    for h, (qn, qr) in enumerate(queries(c, w, x, at)):
        wk, wv = up(c, w, h)
        s = qn @ (z @ wk.T).T + qr @ keys[h // (c["heads"] // c["rope_heads"])].T
        s = s / np.sqrt(c["nope_dim"] + c["rope_dim"])
        for i in range(t):
            for j in range(t):
                if j > i:
                    s[i, j] = -np.inf
                elif i - j > c["delay"]:
                    s[i, j] = s[i, j] - softplus(l[j + 1]) if soft else (-np.inf if l[j + 1].real > 0 else s[i, j])
        e = np.exp(s - s.real.max(1, keepdims=True))
        out.append(e / e.sum(1, keepdims=True) @ (z @ wv.T))
    return np.concatenate(out, 1) @ w["wo"].T, alpha


def decode(c, w, x):
    """Token by token over a list of latents, with queries that are carried into their space."""
    rows, y, lengths = [], [], []
    l = decisions(c, w, x)
    for t in range(len(x)):
        at = np.array([t])
        z, keys = latents(c, w, x[t:t + 1], at)
        if t and l[t] > 0:
            rows[-1]["leaves"] = t - 1 + c["delay"]
        rows.append({"z": z[0], "k": [k[0] for k in keys], "leaves": None})
        rows = [o for o in rows if o["leaves"] is None or t <= o["leaves"]]
        head = []
        for h, (qn, qr) in enumerate(queries(c, w, x[t:t + 1], at)):
            wk, wv = up(c, w, h)
            absorbed = wk.T @ qn[0]
            s = np.array([absorbed @ o["z"] + qr[0] @ o["k"][h // (c["heads"] // c["rope_heads"])] for o in rows])
            p = np.exp(s / np.sqrt(c["nope_dim"] + c["rope_dim"]))
            head.append(wv @ (p @ np.array([o["z"] for o in rows]) / p.sum()))
        y.append(np.concatenate(head) @ w["wo"].T)
        lengths.append(len(rows))
    return np.array(y), np.array(lengths)


def gradients(c, w, x, dy, dstat):
    out = {}
    for name, t in dict(w, x=x).items():
        g = np.zeros(t.shape)
        for i in np.ndindex(t.shape):
            z = t.astype(complex)
            z[i] += STEP * 1j
            y, a = layer(c, {n: z if n == name else v for n, v in w.items()}, z if name == "x" else x.astype(complex), True)
            g[i] = ((y * dy).sum() + dstat * a.sum()).imag / STEP
        out["d" + name] = g
    return out


SETTINGS = ["heads", "kv_rank", "nope_dim", "rope_dim", "v_dim", "rope_heads", "delay", "theta", "tau", "offset", "gain"]
CASES = {
    "latents": dict(heads=3, kv_rank=5, nope_dim=4, rope_dim=2, v_dim=3, rope_heads=1, delay=2, gain=2.0),
    "latents-at-once": dict(heads=4, kv_rank=6, nope_dim=2, rope_dim=4, v_dim=5, rope_heads=2, delay=0, gain=1.5),
}


def write(f, name, a):
    a = np.asarray(a, dtype=float)
    f.write(name + "".join(f" {n}" for n in a.shape) + "\n")
    f.write(" ".join("%.17g" % z for z in a.reshape(-1)) + "\n")


for number, (name, given) in enumerate(CASES.items()):
    c = dict(given, theta=50.0, tau=0.4, offset=0.2)
    for draw in range(1000):  # until both decisions are taken and none is close
        rng = np.random.default_rng([77, number, draw])
        H, r, ropes = c["heads"], c["kv_rank"], c["rope_heads"] * c["rope_dim"]
        sizes = {"wq": (H * (c["nope_dim"] + c["rope_dim"]), WIDTH), "wa": (r + ropes, WIDTH),
                 "wb": (H * (c["nope_dim"] + c["v_dim"]), r), "wo": (WIDTH, H * c["v_dim"]), "wd": (1, WIDTH)}
        x = rng.normal(size=(T, WIDTH))
        w = {n: rng.normal(size=s) * 0.5 for n, s in sizes.items()}
        w["nkv"], w["bd"] = 1 + 0.3 * rng.normal(size=r), 0.3 * rng.normal(size=1)
        l = decisions(c, w, x)
        taken = (l[1:] > 0).mean()
        if np.abs(l).min() * c["tau"] > 0.02 and 0.3 < taken < 0.7 and np.abs(l).max() < 12:
            break
    else:
        raise SystemExit(name + ": no draw will do")
    dy, dstat = rng.normal(size=(T, WIDTH)), 0.7
    y, a = layer(c, w, x, True)
    hard, h = layer(c, w, x, False)
    again, lengths = decode(c, w, x)
    assert np.abs(hard - again).max() < 1e-12, name
    with open(name + ".txt", "w") as f:
        write(f, "settings", [c[s] for s in SETTINGS])
        write(f, "x", x)
        for n, t in w.items():
            write(f, n, t)
        for n, t in dict(dy=dy, dstat=[dstat], y=y, **gradients(c, w, x, dy, dstat)).items():
            write(f, n, t)
        for n, t in dict(alpha=a, hard=hard, decisions=h, lengths=lengths).items():
            write(f, n, t)
    print(name, "taken", round(float(taken), 2), "y", np.abs(y).max(), "lengths", lengths)
