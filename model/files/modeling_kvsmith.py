"""The models of kvsmith in plain PyTorch, for transformers:

    AutoModelForCausalLM.from_pretrained(DIRECTORY, trust_remote_code=True)

kvsmith writes this file into a model directory whose layout no class of transformers has: shared keys and values
(YOCO, CLA), DMC and DMS, patterns of recurrent layers and attention. It computes what the program computes in
evaluation, for reading and for checks: every position at once, without a cache, the recurrences token by token.
`generate` works and computes the whole text anew for each token; the program's own decoder keeps the compact cache.

Shapes: x (B,T,d_model); q, k, v (B,heads,T,width). Settings are those of `kvsmith config`, names of tensors those of the
files. One row of the batch is one document; padding belongs at its end."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class KvsmithConfig(PretrainedConfig):
    model_type = "kvsmith"

    def __init__(self, kvsmith=None, **kwargs):
        self.kvsmith = kvsmith or {}
        if kvsmith:
            self.vocab_size = kvsmith["vocab"]
            self.hidden_size = kvsmith["d_model"]
            self.num_hidden_layers = kvsmith["layers"]
            self.max_position_embeddings = kvsmith["max_positions"]
        kwargs["tie_word_embeddings"] = False  # a tied head has no tensor here
        kwargs["use_cache"] = False
        super().__init__(**kwargs)


# ---- parts ----------------------------------------------------------------------------------------------------------


def rms(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Norm(nn.Module):
    """RMSNorm, or with `bias` LayerNorm; plus_one: the factor is 1 + weight."""

    def __init__(self, width, eps, bias=False, plus_one=False):
        super().__init__()
        self.eps, self.plus_one = eps, plus_one
        self.weight = nn.Parameter(torch.zeros(width) if plus_one else torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        gain = self.weight + 1 if self.plus_one else self.weight
        if self.bias is not None:
            return F.layer_norm(x, x.shape[-1:], gain, self.bias, self.eps)
        return rms(x, self.eps) * gain


def heads_of(x, n):
    """(B,T,n*D) to (B,n,T,D)."""
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def joined(x):
    """(B,n,T,D) to (B,T,n*D)."""
    return x.transpose(1, 2).flatten(2)


def turns(rope, n, max_positions, length):
    """Radians per position of n/2 pairs, and the factor on cos and sin."""
    kind, theta = rope["type"], rope["theta"]
    L = rope["original_max_positions"] or max_positions
    i = torch.arange(n // 2, dtype=torch.float64)
    if kind == "dynamic":
        theta *= (rope["factor"] * max(rope["length"] or length, L) / L - (rope["factor"] - 1)) ** (n / (n - 2))
    if rope["inclusive"]:
        return theta ** (-i / max(1, n // 2 - 1)), 1.0
    f = theta ** (-2 * i / n)
    if kind == "linear":
        return f / rope["factor"], 1.0
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        wave = 2 * math.pi / f
        t = ((L / wave - low) / (high - low)).clamp(0, 1)
        return (1 - t) * f / rope["factor"] + t * f, 1.0
    if kind == "yarn":

        def pair(count):  # the pair that turns `count` times in L positions
            return n * math.log(L / (count * 2 * math.pi)) / (2 * math.log(theta))

        def grown(m):
            return 1.0 if rope["factor"] <= 1 else 0.1 * m * math.log(rope["factor"]) + 1

        lo, hi = pair(rope["beta_fast"]), pair(rope["beta_slow"])
        if rope["truncate"]:
            lo, hi = math.floor(lo), math.ceil(hi)
        lo, hi = max(lo, 0), min(hi, n - 1)
        if lo == hi:
            hi += 0.001
        ramp = ((i - lo) / (hi - lo)).clamp(0, 1)
        factor = grown(1)
        if rope["mscale"] and rope["mscale_all_dim"]:
            factor = grown(rope["mscale"]) / grown(rope["mscale_all_dim"])
        return f / rope["factor"] * ramp + f * (1 - ramp), rope["attention_factor"] or factor
    if kind == "longrope":
        f = f / torch.tensor(rope["long_factor" if (rope["length"] or length) > L else "short_factor"]).double()
        more = rope["factor"] or max_positions / L
        factor = math.sqrt(1 + math.log(more) / math.log(L)) if more > 1 else 1.0
        return f, rope["attention_factor"] or factor
    return f, 1.0


def rotated(x, rope, max_positions, dims=0):
    """The first `dims` elements of every head (0: all), turned by their row's position."""
    if rope["type"] == "none":
        return x
    n, T = dims or x.shape[-1], x.shape[-2]
    f, factor = turns(rope, n, max_positions, T)
    angle = (torch.arange(T, dtype=torch.float64)[:, None] * f).to(x.device)
    cos, sin = (angle.cos() * factor).to(x.dtype), (angle.sin() * factor).to(x.dtype)
    y, rest = x[..., :n], x[..., n:]
    if rope["interleaved"]:
        a, b = y[..., 0::2], y[..., 1::2]
        y = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        a, b = y.chunk(2, -1)
        y = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return torch.cat((y, rest), -1)


def attend(q, k, v, scale, window=0, sinks=0, cap=0, bias=None, sink_scores=None):
    """Causal attention; head h of q reads head h / (H/G) of k and v. bias: what is added to the scores of a key,
    (B,G,T,T)."""
    H, G, T = q.shape[1], k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
    s = q @ k.transpose(-1, -2) * scale
    if cap:
        s = cap * torch.tanh(s / cap)
    if bias is not None:
        s = s + bias.repeat_interleave(H // G, 1)
    i, j = torch.arange(T, device=q.device)[:, None], torch.arange(T, device=q.device)
    seen = j <= i
    if window:
        seen = seen & ((i - j < window) | (j < sinks))
    s = s.masked_fill(~seen, -math.inf)
    if sink_scores is None:
        return s.softmax(-1) @ v
    sink = sink_scores[None, :, None, None].expand(s.shape[0], H, T, 1)
    return torch.cat((s, sink), -1).softmax(-1)[..., :-1] @ v


class Conv(nn.Module):
    """Causal convolution of every channel by itself, then SiLU."""

    def __init__(self, channels, width, bias):
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.zeros(channels, 1, width))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x):
        x = F.pad(x.transpose(1, 2), (self.width - 1, 0))
        return F.silu(F.conv1d(x, self.weight, self.bias, groups=x.shape[1])).transpose(1, 2)


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def recur(q, k, v, g=None, beta=None, e=None, weigh=None):
    """S <- Diag(e^g) S; S += k beta (v - S^T e)^T, where e is k if only beta is given, and beta 1 if only e; S += k v^T
    without both; o = S^T q.
    q (B,S,T,R,K): R queries a token read each state; k and e (B,S,T,J,K), v (B,S,T,J,V), beta (B,S,T,J): J writes a token, one
    after another; g (B,S,T,K or 1). Returns (B,S,T,R,V).
    weigh (B,S,T,R,n): n states by levels of distance (arXiv:2506.04761). A token writes to level 0. Before token t the
    levels below ctz(t) + 1 move into that one, or into the last; o = sum of weigh_l S_l^T q."""
    n = 1 if weigh is None else weigh.shape[-1]
    none = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=k.dtype, device=k.device)
    states, out = [none] * n, []
    for t in range(q.shape[2]):
        full = min((t & -t).bit_length(), n - 1)
        if full:
            states[: full + 1] = [none] * full + [sum(states[: full + 1])]
        if g is not None:
            states = [g[:, :, t].exp().unsqueeze(-1) * state for state in states]
        for j in range(k.shape[3]):
            key = k[:, :, t, j]
            erase = e[:, :, t, j] if e is not None else key if beta is not None else None
            for l in range(n):
                value = v[:, :, t, j] if l == 0 else 0
                if erase is not None:
                    value = value - (erase.unsqueeze(-2) @ states[l]).squeeze(-2)
                elif l:
                    continue
                if beta is not None:
                    value = beta[:, :, t, j, None] * value
                states[l] = states[l] + key.unsqueeze(-1) * value.unsqueeze(-2)
        read = [q[:, :, t] @ state for state in states]
        out.append(read[0] if weigh is None else sum(weigh[:, :, t, :, l, None] * read[l] for l in range(n)))
    return torch.stack(out, 2)


ACTS = {"silu": F.silu, "sigmoid": torch.sigmoid}

# ---- mixers: forward(x, shared) returns what is added to the stream, and the rows that other layers may read ---------


class Gqa(nn.Module):
    """Grouped-query attention; `reads`: the keys and values are another layer's."""

    def __init__(self, c, m, reads):
        super().__init__()
        self.c, self.m, self.reads, d = c, m, reads, m["d_model"]
        H, D = c["heads"], c["head_dim"] or d // c["heads"]
        self.H, self.G, self.D = H, c["kv_heads"] or H, D
        norm = c.get("qk_norm") or c.get("qk_norm_wide")
        wide, eps, plus_one = c.get("qk_norm_wide"), m["norm_eps"], m["norm_plus_one"]
        if H:
            self.q_proj = nn.Linear(d, H * D, c["qkv_bias"])
            self.o_proj = nn.Linear(H * D, d, c["o_bias"])
            self.q_norm = Norm(H * D if wide else D, eps, plus_one=plus_one) if norm else None
            self.gate_proj = nn.Linear(d, H * D, c["qkv_bias"]) if c.get("out_gate") else None
            self.sinks = nn.Parameter(torch.zeros(H)) if c.get("sink_scores") else None
        if not reads:
            self.k_proj = nn.Linear(d, self.G * D, c["qkv_bias"])
            self.v_proj = nn.Linear(d, self.G * D, c["qkv_bias"])
            self.k_norm = Norm(self.G * D if wide else D, eps, plus_one=plus_one) if norm else None

    def turned(self, x, n, norm):
        if norm is not None:
            x = norm(x) if self.c["qk_norm_wide"] else norm(x.unflatten(-1, (n, -1))).flatten(-2)
        return rotated(heads_of(x, n), self.c["rope"], self.m["max_positions"], self.c.get("rope_dims", 0))

    def rows(self, x):
        return self.turned(self.k_proj(x), self.G, self.k_norm), heads_of(self.v_proj(x), self.G), None

    def forward(self, x, shared):
        k, v, bias = rows = shared if self.reads else self.rows(x)
        if not self.H:
            return None, rows
        c, q = self.c, self.turned(self.q_proj(x), self.H, self.q_norm)
        o = joined(attend(q, k, v, c["scale"] or self.D**-0.5, c["window"], c["sinks"], c["soft_cap"], bias, self.sinks))
        if self.gate_proj is not None:
            o = o * self.gate_proj(x).sigmoid()
        return self.o_proj(o), rows


def gone_mask(u, gain, c):
    """By u (B,lanes,T) row t decides about row t-1, with `governs: itself` by the u before its own: decisions (B,lanes,T),
    and their mask (B,lanes,T,T), -inf where row j is evicted and query i comes more than `delay` positions after it."""
    if c.get("governs") == "itself":
        u = F.pad(u[:, :, :-1], (1, 0))
    alpha = (gain * u > c["offset"]).to(u.dtype)
    alpha[:, :, 0] = 0
    i, j = torch.arange(u.shape[2], device=u.device)[:, None], torch.arange(u.shape[2], device=u.device)
    gone = F.pad(alpha[:, :, 1:], (0, 1))[:, :, None] * (i - j > c["delay"])
    return alpha, torch.zeros_like(gone).masked_fill(gone > 0, -math.inf)


class Dmc(Gqa):
    """Attention whose heads merge a token into its predecessor's row (DMC) or remove that row later (DMS)."""

    def __init__(self, c, m, reads):
        super().__init__({**c, "window": 0, "sinks": 0, "scale": 0, "soft_cap": 0}, m, reads)
        self.merges, self.soft = c["action"] == "merge", c["phase"] == "soft"
        self.lane = self.D - 1 if c["lane"] == "last" else 0
        self.gain, self.last = c["gain"] or (1 if self.merges else 100), c["window"]
        self.decide_proj = nn.Linear(m["d_model"], self.G) if c.get("decide") == "adapter" else None

    def turn(self, x, step):
        """Rotated, with the lane of every step-th head 0 before and, unless the rotation refills it, after."""
        keep = torch.ones(x.shape[1], 1, self.D, dtype=x.dtype, device=x.device)
        keep[::step, :, self.lane] = 0
        x = rotated(x * keep, self.c["rope"], self.m["max_positions"])
        return x if self.c.get("lane_turned") else x * keep

    def mean(self, x, alpha, omega):
        """sum_j p_tj omega_j x_j / z_t, p_tj = alpha_{j+1} .. alpha_t, over the newest `window` rows."""
        T = x.shape[2]
        out = []
        for t in range(T):
            first, weight, weights = max(0, t - self.last + 1) if self.last else 0, torch.ones_like(alpha[:, :, 0]), []
            for j in range(t, first - 1, -1):
                weights.append(weight * omega[:, :, j])
                weight = weight * alpha[:, :, j]
            w = torch.stack(weights[::-1], -1).unsqueeze(-1)
            out.append((w * x[:, :, first : t + 1]).sum(2) / w.sum(2))
        return torch.stack(out, 2)

    def rows(self, x):
        c = self.c
        k, v, bias = heads_of(self.k_proj(x), self.G), heads_of(self.v_proj(x), self.G), None
        if self.decide_proj is not None:
            bias = gone_mask(self.decide_proj(x).transpose(1, 2), self.gain, c)[1]
        elif self.soft:
            q = heads_of(self.q_proj(x), self.H)
            if self.q_norm is not None:
                q = self.q_norm(q)
            lanes = q[..., self.lane].unflatten(1, (self.G, -1))
            alpha, bias = gone_mask(k[..., self.lane] if self.merges else lanes[:, :, 0], self.gain, c)
            if self.merges:
                omega = (lanes.mean(2) + c["offset"]).sigmoid() + 2.0**-7
                k, v = self.mean(k, alpha, omega), self.mean(v, alpha, omega)
        if not self.merges:
            return super().turned(self.k_proj(x), self.G, self.k_norm), v, bias
        return self.turn(k, 1), v, bias

    def turned(self, x, n, norm):
        if self.decide_proj is not None:
            return super().turned(x, n, norm)
        q = heads_of(x, n)
        return self.turn(q if norm is None else norm(q), 1 if self.merges else self.H // self.G)


class Mla(nn.Module):
    """Multi-head latent attention, expanded."""

    def __init__(self, c, m, reads):
        super().__init__()
        self.c, self.m, self.reads, d, H = c, m, reads, m["d_model"], c["heads"]
        self.V, r, rope = c["v_dim"] or c["nope_dim"], c["rope_heads"] * c["rope_dim"], c["rope"]
        self.scale, eps = (c["nope_dim"] + c["rope_dim"]) ** -0.5, 1e-6
        if rope["type"] == "yarn" and rope["mscale_all_dim"] and rope["factor"] > 1:
            self.scale *= (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1) ** 2
        Q = H * (c["nope_dim"] + c["rope_dim"])
        self.q_a_proj = self.q_a_layernorm = self.kv_a_layernorm = None
        if H and c["q_rank"]:
            self.q_a_proj = nn.Linear(d, c["q_rank"], c["a_bias"])
            self.q_a_layernorm = Norm(c["q_rank"], eps) if c["q_latent_norm"] else None
            self.q_b_proj = nn.Linear(c["q_rank"], Q, c["q_bias"])
        elif H:
            self.q_proj = nn.Linear(d, Q, c["q_bias"])
        if not reads:
            self.kv_a_proj_with_mqa = nn.Linear(d, c["kv_rank"] + r, c["a_bias"])
            self.kv_a_layernorm = Norm(c["kv_rank"], eps) if c["latent_norm"] else None
            self.decide_proj = nn.Linear(d, 1) if c.get("evict") else None
        if H:
            self.kv_b_proj = nn.Linear(c["kv_rank"], H * (c["nope_dim"] + self.V), False)
            self.o_proj = nn.Linear(H * self.V, d, c["o_bias"])
            self.g_proj = nn.Linear(d, H, False) if c.get("out_gate") else None

    def turned(self, x):
        return rotated(x, self.c["rope"], self.m["max_positions"])

    def forward(self, x, shared):
        c, H, rows = self.c, self.c["heads"], shared
        if not self.reads:
            u = self.kv_a_proj_with_mqa(x)
            latent, keys = u[..., : c["kv_rank"]], u[..., c["kv_rank"] :]
            if self.kv_a_layernorm is not None:
                latent = self.kv_a_layernorm(latent)
            mask = None
            if self.decide_proj is not None:
                mask = gone_mask(self.decide_proj(x).transpose(1, 2), c["gain"] or 100, c)[1]
            rows = latent, self.turned(heads_of(keys, c["rope_heads"])) if c["rope_dim"] else None, mask
        if not H:
            return None, rows
        latent, keys, mask = rows
        if self.q_a_proj is not None:
            q = self.q_a_proj(x)
            q = self.q_b_proj(self.q_a_layernorm(q) if self.q_a_layernorm is not None else q)
        else:
            q = self.q_proj(x)
        q, up = heads_of(q, H), heads_of(self.kv_b_proj(latent), H)
        k, v = up[..., : c["nope_dim"]], up[..., c["nope_dim"] :]
        if c["rope_dim"]:
            q = torch.cat((q[..., : c["nope_dim"]], self.turned(q[..., c["nope_dim"] :])), -1)
            k = torch.cat((k, keys.repeat_interleave(H // c["rope_heads"], 1)), -1)
        o = attend(q, k, v, self.scale, c["window"], c["sinks"], bias=mask)
        if self.g_proj is not None:
            o = o * torch.sigmoid(self.g_proj(x)).transpose(1, 2).unsqueeze(-1)
        return self.o_proj(joined(o)), rows


class Line(nn.Module):
    """Linear recurrences: gdn and deltanet (with products of householders), gla, retention, gated_retention, linear."""

    NORMS = {"gdn": "o_norm", "deltanet": "o_norm", "gla": "g_norm", "retention": "g_norm"}
    V_PER_K = {"gdn": 2, "gla": 2, "retention": 2}

    def __init__(self, c, m, reads):
        super().__init__()
        self.c, self.m, self.name, d, H = c, m, c["mixer"], m["d_model"], c["heads"]
        self.H, self.G = H, c.get("kv_heads") or H
        self.K = c["head_dim"] or d // H // (2 if self.name == "gla" else 1)
        self.V = c["v_dim"] or self.K * self.V_PER_K.get(self.name, 1)
        self.decay = nn.Parameter(torch.zeros(H)) if c.get("inner_decay") else None
        self.D = nn.Parameter(torch.zeros(H)) if c.get("output_correction") else None
        self.J, self.R = c.get("householders", 1), H // self.G
        out = c.get("v_heads") or H
        self.S, self.delta, self.gate = out // self.R, self.name in ("gdn", "deltanet"), c.get("gate", "none")
        self.gate = {"false": "none", "true": "silu"}.get(self.gate, self.gate)  # older spellings
        Q, K, V = H * self.K, self.J * self.G * self.K, self.J * self.S * self.V
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, n, False) for n in (Q, K, V))
        self.q_conv1d = self.k_conv1d = self.v_conv1d = None
        if c["conv"]:
            self.q_conv1d, self.k_conv1d, self.v_conv1d = (Conv(n, c["conv"], c["conv_bias"]) for n in (Q, K, V))
        if self.name == "gated_retention":
            self.gt_proj = nn.Linear(d, self.S, c["rates"] == "spread")
        if self.name == "gla":
            self.gk_proj = nn.Sequential(nn.Linear(d, c["gate_rank"], False), nn.Linear(c["gate_rank"], self.G * self.K))
        if self.name == "gdn":
            self.a_proj = nn.Linear(d, self.S, False)
            self.A_log, self.dt_bias = nn.Parameter(torch.zeros(self.S)), nn.Parameter(torch.zeros(self.S))
        if self.delta:
            self.b_proj = nn.Linear(d, self.J * self.S, False)
        self.levels = c.get("levels", 0)
        if self.levels:
            self.l_proj, self.L = nn.Linear(d, out * self.levels, False), nn.Parameter(torch.ones(out, self.levels))
        if self.gate != "none":
            self.g_proj = nn.Linear(d, out * self.V, False)
        self.norm = self.NORMS.get(self.name)
        if self.norm == "g_norm" and self.gate == "silu":
            self.norm = "g_norm_swish_gate"
        if self.norm:
            self.add_module(self.norm, Norm(self.V, m["norm_eps"]))
        self.out = "out_proj" if self.name == "gated_retention" else "o_proj"
        self.add_module(self.out, nn.Linear(out * self.V, d, False))

    def decays(self, x):
        """(B,S,T,K or 1), its logarithm."""
        if self.name == "gdn":
            return (-self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias)).transpose(1, 2).unsqueeze(-1)
        if self.name == "gated_retention":
            return (F.logsigmoid(self.gt_proj(x)) / self.c["gate_divisor"]).transpose(1, 2).unsqueeze(-1)
        if self.name == "gla":
            g = heads_of(F.logsigmoid(self.gk_proj(x)) / self.c["gate_divisor"], self.G)
            return g.repeat_interleave(self.S // self.G, 1)
        if self.name == "retention":
            h = torch.arange(self.H, dtype=torch.float64, device=x.device)
            return torch.log1p(-torch.exp2(-5 - h)).to(x.dtype)[None, :, None, None].expand(x.shape[0], -1, x.shape[1], 1)
        return None

    def mapped(self, x, n):
        """Queries or keys as the recurrence reads them: (B,n,T,K)."""
        x = heads_of(x, n)
        if self.delta:
            return unit(x)
        if self.name == "linear":
            return F.elu(x) + 1
        return rotated(x, self.c["rope"], self.m["max_positions"]) if "rope" in self.c else x

    def forward(self, x, shared):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.q_conv1d is not None:
            q, k, v = self.q_conv1d(q), self.k_conv1d(k), self.v_conv1d(v)
        elif self.delta:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        per = self.S // self.G  # states of a key head
        inner = 1 if self.decay is None else self.decay.sigmoid()[:, None, None]  # one householder, as many key heads
        if self.D is not None:
            q = joined(heads_of(q, self.H) - self.D[:, None, None] * inner * heads_of(k, self.H))
        q = self.mapped(q, self.H).unflatten(1, (self.G, self.R)).permute(0, 1, 3, 2, 4).repeat_interleave(per, 1)
        k = self.mapped(k, self.J * self.G).unflatten(1, (self.J, self.G)).permute(0, 2, 3, 1, 4)
        k = k.repeat_interleave(per, 1)
        v = heads_of(v, self.J * self.S).unflatten(1, (self.J, self.S)).permute(0, 2, 3, 1, 4)
        beta = None
        if self.delta:
            beta = self.b_proj(x).sigmoid() * self.c["beta_max"]
            beta = beta.unflatten(-1, (self.J, self.S)).permute(0, 3, 1, 2)
        e = None if self.decay is None else k * inner.repeat_interleave(per, 0).unsqueeze(-1)
        if self.name == "linear":
            o = recur(q, k, torch.cat((v, torch.ones_like(v[..., :1])), -1))
            o = o[..., :-1] / (o[..., -1:] + self.c["eps"])
        else:
            weigh = None
            if self.levels:  # of output head (g, r, state): by state (g, state) and query r
                weigh = F.softplus(self.L * self.l_proj(x).unflatten(-1, self.L.shape))
                weigh = weigh.unflatten(2, (self.G, self.R, per)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
            o = recur(q * self.K**-0.5, k, v, self.decays(x), beta, e, weigh)
        # query r of key head g reads the states g per .. g per + per - 1: heads (g, r, state)
        o = o.unflatten(1, (self.G, per)).permute(0, 3, 1, 4, 2, 5).flatten(2, 4)
        if self.name != "linear":
            o = self.get_submodule(self.norm)(o) if self.norm else rms(o, self.m["norm_eps"])
        o = o.flatten(2)
        if self.gate != "none":
            o = o * ACTS[self.gate](self.g_proj(x))
        return self.get_submodule(self.out)(o), None


class Kda(nn.Module):
    """Kimi Delta Attention, and Gated DeltaNet-2 (erase: channel)."""

    def __init__(self, c, m, reads):
        super().__init__()
        self.c, d, H = c, m["d_model"], c["heads"]
        self.H, self.G, self.K = H, c.get("kv_heads") or H, c["head_dim"] or d // H
        V, self.R = c["v_dim"] or self.K, H // self.G
        self.S = (c["v_heads"] or H) // self.R
        Q, Z, out = H * self.K, self.S * self.K, self.S * self.R * V
        sizes = Q, self.G * self.K, self.S * V
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, n, False) for n in sizes)
        self.q_conv1d = self.k_conv1d = self.v_conv1d = None
        if c["conv"]:
            self.q_conv1d, self.k_conv1d, self.v_conv1d = (Conv(n, c["conv"], c["conv_bias"]) for n in sizes)
        if c["gate_proj"] == "full":
            self.f_proj = nn.Linear(d, Z, False)
        else:
            self.f_a_proj, self.f_b_proj = nn.Linear(d, c["gate_rank"] or V, False), nn.Linear(c["gate_rank"] or V, Z, False)
        self.dt_bias, self.A_log = nn.Parameter(torch.zeros(Z)), nn.Parameter(torch.zeros(self.S))
        self.channels = c.get("erase") == "channel"
        self.b_proj = nn.Linear(d, self.G * self.K if self.channels else self.S, False)
        if self.channels:
            self.w_proj = nn.Linear(d, self.S * V, False)
        self.levels, heads = c.get("levels", 0), self.S * self.R
        if self.levels:
            self.l_proj, self.L = nn.Linear(d, heads * self.levels, False), nn.Parameter(torch.ones(heads, self.levels))
        if c["out_gate"] == "full":
            self.g_proj = nn.Linear(d, out, c["out_bias"])
        elif c["out_gate"] == "low_rank":
            rank = c["out_rank"] or V
            self.g_a_proj, self.g_b_proj = nn.Linear(d, rank, False), nn.Linear(rank, out, c["out_bias"])
        self.o_norm, self.o_proj = Norm(V, m["norm_eps"]), nn.Linear(out, d, False)

    def forward(self, x, shared):
        c = self.c
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.q_conv1d is not None:
            q, k, v = self.q_conv1d(q), self.k_conv1d(k), self.v_conv1d(v)
        else:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        z = self.f_proj(x) if c["gate_proj"] == "full" else self.f_b_proj(self.f_a_proj(x))
        z, rate = heads_of(z + self.dt_bias, self.S), self.A_log.exp()[:, None, None]
        g = c["bound"] * torch.sigmoid(rate * z) if c["gate"] == "lower_bound" else -rate * F.softplus(z)
        b, per, e = c["beta_max"] * self.b_proj(x).sigmoid(), self.S // self.G, None
        q = unit(heads_of(q, self.H)).unflatten(1, (self.G, self.R)).permute(0, 1, 3, 2, 4).repeat_interleave(per, 1)
        k = unit(heads_of(k, self.G)).repeat_interleave(per, 1).unsqueeze(3)
        if self.channels:
            e, b = heads_of(b, self.G).repeat_interleave(per, 1).unsqueeze(3) * k, None
            v = v * self.w_proj(x).sigmoid()
        else:
            b = b.transpose(1, 2).unsqueeze(-1)
        weigh = None
        if self.levels:  # as in Line
            weigh = F.softplus(self.L * self.l_proj(x).unflatten(-1, self.L.shape))
            weigh = weigh.unflatten(2, (self.G, self.R, per)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        o = recur(q * self.K**-0.5, k, heads_of(v, self.S).unsqueeze(3), g, b, e, weigh)
        o = o.unflatten(1, (self.G, per)).permute(0, 3, 1, 4, 2, 5).flatten(2, 4)  # as in Line
        o = self.o_norm(o).flatten(2)
        if c["out_gate"] != "none":
            o = o * ACTS[c["out_act"]](self.g_proj(x) if c["out_gate"] == "full" else self.g_b_proj(self.g_a_proj(x)))
        return self.o_proj(o), None


class Mamba2(nn.Module):
    def __init__(self, c, m, reads):
        super().__init__()
        self.c, d = c, m["d_model"]
        self.H = c["heads"] or 2 * d // c["head_dim"]
        self.d, self.bc = self.H * c["head_dim"], c["groups"] * c["state_size"]
        self.levels = c.get("levels", 0)
        self.in_proj = nn.Linear(d, 2 * self.d + 2 * self.bc + self.H * (1 + self.levels), c["bias"])
        self.conv1d = Conv(self.d + 2 * self.bc, c["conv"], c["conv_bias"]) if c["conv"] else None
        self.A_log, self.D, self.dt_bias = (nn.Parameter(torch.zeros(self.H)) for _ in range(3))
        self.L = nn.Parameter(torch.ones(self.H, self.levels)) if self.levels else None
        self.norm = Norm(self.d, m["norm_eps"])
        self.out_proj = nn.Linear(self.d, d, c["bias"])

    def forward(self, x, shared):
        c = self.c
        sizes = self.d, self.d + 2 * self.bc, self.H, self.H * self.levels
        z, xbc, dt, delta = self.in_proj(x).split(sizes, -1)
        xbc = self.conv1d(xbc) if self.conv1d is not None else F.silu(xbc)
        u, B, C = xbc.split((self.d, self.bc, self.bc), -1)
        step = F.softplus(dt + self.dt_bias).transpose(1, 2).unsqueeze(-1)
        u, per = heads_of(u, self.H), self.H // c["groups"]
        B, C = (heads_of(a, c["groups"]).repeat_interleave(per, 1).unsqueeze(3) for a in (B, C))
        g = -self.A_log.exp()[:, None, None] * step
        weigh = None
        if self.levels:
            weigh = F.softplus(self.L * delta.unflatten(-1, self.L.shape)).transpose(1, 2).unsqueeze(3)
        o = recur(C, B, (step * u).unsqueeze(3), g, weigh=weigh).squeeze(3) + self.D[:, None, None] * u
        o = joined(o) * ACTS[c["gate"]](z)
        o = rms(o.unflatten(-1, (c["groups"], -1)), self.norm.eps).flatten(-2) * self.norm.weight
        return self.out_proj(o), None


class NoMixer(nn.Module):
    def __init__(self, c, m, reads):
        super().__init__()

    def forward(self, x, shared):
        return torch.zeros_like(x), None


MIXERS = {"gqa": Gqa, "dmc": Dmc, "mla": Mla, "kda": Kda, "mamba2": Mamba2, "none": NoMixer}
MIXERS.update(dict.fromkeys(("gdn", "deltanet", "gla", "retention", "gated_retention", "linear"), Line))

# ---- feed-forward parts ---------------------------------------------------------------------------------------------


class Gated(nn.Module):
    def __init__(self, d, hidden, act=F.silu, bias=False, limit=0, alpha=1):
        super().__init__()
        self.act, self.limit, self.alpha = act, limit, alpha
        self.gate_proj, self.up_proj = nn.Linear(d, hidden, bias), nn.Linear(d, hidden, bias)
        self.down_proj = nn.Linear(hidden, d, bias)

    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.limit:
            gate = gate.clamp(max=self.limit)
            return self.down_proj((up.clamp(-self.limit, self.limit) + 1) * gate * torch.sigmoid(self.alpha * gate))
        return self.down_proj(self.act(gate) * up)


class Gelu(nn.Module):
    def __init__(self, d, c):
        super().__init__()
        self.tanh = c["act"] == "tanh"
        self.up_proj, self.down_proj = nn.Linear(d, c["hidden"], c["bias"]), nn.Linear(c["hidden"], d, c["bias"])

    def forward(self, x):
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh" if self.tanh else "none"))


class Relu2(nn.Module):
    def __init__(self, d, hidden, bias=False):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(d, hidden, bias), nn.Linear(hidden, d, bias)

    def forward(self, x):
        return self.down_proj(F.relu(self.up_proj(x)).square())


class Router(nn.Module):
    def __init__(self, d, c):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(c["experts"], d))
        self.bias = nn.Parameter(torch.zeros(c["experts"])) if c["router_bias"] else None
        self.e_score_correction_bias = nn.Parameter(torch.zeros(c["experts"])) if c["bias_balance"] else None


class Moe(nn.Module):
    def __init__(self, d, c):
        super().__init__()
        self.c, self.gate = c, Router(d, c)
        part, seen = Relu2 if c["act"] == "relu2" else Gated, c["latent"] or d
        unit = {} if part is Relu2 else dict(bias=c["expert_bias"], limit=c["limit"], alpha=c["alpha"])
        self.experts = nn.ModuleList(part(seen, c["hidden"], **unit) for _ in range(c["experts"]))
        self.shared_experts = self.shared_expert_gate = None
        if c["latent"]:
            self.fc1_latent_proj, self.fc2_latent_proj = nn.Linear(d, seen, False), nn.Linear(seen, d, False)
        if c["shared"]:
            self.shared_experts = part(d, c["shared"] * (c["shared_hidden"] or c["hidden"]))
        if c["shared_gate"]:
            self.shared_expert_gate = nn.Linear(d, 1, False)

    def weights(self, x):
        """(.., experts): 0 for those that are not chosen."""
        c, s = self.c, F.linear(x, self.gate.weight, self.gate.bias)
        p = s.sigmoid() if c["router"] == "sigmoid" else s.softmax(-1)
        choice = p if self.gate.e_score_correction_bias is None else p + self.gate.e_score_correction_bias
        if 0 < c["top_groups"] < c["groups"]:
            by = choice.unflatten(-1, (c["groups"], -1))
            best = by.topk(min(2, by.shape[-1]) if c["router"] == "sigmoid" else 1, -1).values.sum(-1)
            may = torch.zeros_like(best).scatter(-1, best.topk(c["top_groups"], -1).indices, 1).unsqueeze(-1)
            choice = by.masked_fill(may == 0, -math.inf).flatten(-2)
        chosen = torch.zeros_like(p).scatter(-1, choice.topk(c["top_k"], -1).indices, 1) * p
        return c["scale"] * (chosen / (chosen.sum(-1, keepdim=True) + 1e-20) if c["norm_topk"] else chosen)

    def forward(self, x):
        w, seen = self.weights(x), self.fc1_latent_proj(x) if self.c["latent"] else x
        y = torch.zeros_like(seen)
        for e, expert in enumerate(self.experts):
            rows = w[..., e] != 0
            if rows.any():
                y[rows] += w[..., e][rows].unsqueeze(-1) * expert(seen[rows])
        if self.c["latent"]:
            y = self.fc2_latent_proj(y)
        if self.shared_experts is None:
            return y
        more = self.shared_experts(x)
        return y + (more if self.shared_expert_gate is None else more * self.shared_expert_gate(x).sigmoid())


def feed_forward(c, d):
    if c["kind"] == "swiglu":
        return Gated(d, c["hidden"])
    if c["kind"] == "geglu":
        return Gated(d, c["hidden"], lambda x: F.gelu(x, approximate="tanh" if c["act"] == "tanh" else "none"))
    if c["kind"] == "relu2":
        return Relu2(d, c["hidden"], c["bias"])
    return {"gelu": Gelu, "moe": Moe}[c["kind"]](d, c)


# ---- the model ------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, m, kind, ffn, reads):
        super().__init__()
        d, eps, layer = m["d_model"], m["norm_eps"], m["norm"] == "layer"
        self.m, self.publishes = m, kind["mixer"] in ("gqa", "dmc", "mla") and not kind["heads"]
        self.place, self.feeds = m["norm_place"], ffn["kind"] != "none" and not self.publishes
        pre, post = self.place != "post", self.place != "pre"

        def norm():
            return Norm(d, eps, layer, m["norm_plus_one"])

        self.reads = pre and kind["mixer"] != "none"
        if self.reads:
            self.input_layernorm = norm()
        self.self_attn = MIXERS[kind["mixer"]](kind, m, reads)
        if (post and not self.publishes) or (pre and not post and self.feeds):
            self.post_attention_layernorm = norm()
        if self.feeds:
            self.mlp = feed_forward(ffn, d)
            if pre and post:
                self.pre_feedforward_layernorm = norm()
            if post:
                self.post_feedforward_layernorm = norm()

    def forward(self, x, shared):
        pre, post, scale = self.place != "post", self.place != "pre", self.m["residual_scale"]
        mixed, rows = self.self_attn(self.input_layernorm(x) if self.reads else x, shared)
        if self.publishes:
            return x, rows
        mid = x + scale * (self.post_attention_layernorm(mixed) if post else mixed)
        if not self.feeds:
            return mid, rows
        read = x if self.m["parallel"] else mid
        if pre:
            read = (self.pre_feedforward_layernorm if post else self.post_attention_layernorm)(read)
        fed = self.mlp(read)
        return mid + scale * (self.post_feedforward_layernorm(fed) if post else fed), rows


class Stack(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m, names = m, list(m["kinds"])
        pattern = m.get("pattern") or names[:1]
        ffn = m["ffn"]
        by_layer = m.get("ffn_pattern") or (list(ffn) if isinstance(ffn, dict) and "kind" not in ffn else None)
        if by_layer:
            parts = [{"kind": "none"} if name == "none" else ffn[name] for name in by_layer]
        else:
            parts = [ffn] if isinstance(ffn, dict) else ffn
        self.reads = {int(reader): owner for reader, owner in (m.get("kv_from") or {}).items()}
        self.embed_tokens = nn.Embedding(m["vocab"], m["d_model"])
        self.embed_positions = nn.Embedding(m["max_positions"], m["d_model"]) if m["positions"] == "learned" else None
        self.layers = nn.ModuleList(
            Block(m, m["kinds"][pattern[i % len(pattern)]], parts[i % len(parts)], i in self.reads)
            for i in range(m["layers"])
        )
        self.norm = Norm(m["d_model"], m["norm_eps"], m["norm"] == "layer", m["norm_plus_one"])

    def forward(self, ids):
        x, rows = self.embed_tokens(ids) * self.m["embed_scale"], {}
        if self.embed_positions is not None:
            x = x + self.embed_positions.weight[: ids.shape[1]]
        for i, layer in enumerate(self.layers):
            x, rows[i] = layer(x, rows.get(self.reads.get(i)))
            if i in self.reads:
                rows[i] = rows[self.reads[i]]
        return self.norm(x)


class KvsmithForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = KvsmithConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        m = config.kvsmith
        self.model = Stack(m)
        self.lm_head = None if m["tied"] else nn.Linear(m["d_model"], m["vocab"], False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(self, input_ids, attention_mask=None, labels=None, **_):
        if attention_mask is not None and not attention_mask[:, 0].all():
            raise ValueError("padding at the beginning of a row is not supported: set padding_side='right'")
        m, x = self.config.kvsmith, self.model(input_ids)
        logits = (F.linear(x, self.model.embed_tokens.weight) if self.lm_head is None else self.lm_head(x))
        logits = logits / m["logits_divisor"]
        if m["logits_cap"]:
            logits = m["logits_cap"] * torch.tanh(logits / m["logits_cap"])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)
