#!/usr/bin/env python3
"""What others make of the same work on the same device: peer.py train|attention|recur [--quick|--full] [--out FILE].

A line of JSON as each figure is found, on stdout and at the end of FILE, so that one that takes too long costs no other.

train: steps of configs/124m.yaml's model (12 layers of width 768, 12 heads, SwiGLU 2048, vocabulary 50304, 4 x 1024 tokens, AdamW)
on random tokens, in f32 without TF32, with it, and under bf16 autocast; eager and compiled. attention: scaled_dot_product_attention
forward and forward with backward at 16 x 1024 rows of 12 heads of 64, causal. recur: flash-linear-attention's chunk kernels at 1 x 8192 rows of 96 heads
of 128. Status 77: PyTorch, its device or that package is not here.
"""
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as e:
    sys.exit((sys.stderr.write(f"PyTorch is not installed ({e})\n"), 77)[1])
if not torch.cuda.is_available():
    sys.exit((sys.stderr.write(f"PyTorch {torch.__version__} sees no device\n"), 77)[1])
dev, quick = "cuda", "--quick" in sys.argv
path = sys.argv[sys.argv.index("--out") + 1] if "--out" in sys.argv else None


def say(**figure):
    line = json.dumps(figure)
    print(line, flush=True)
    if path:
        with open(path, "a") as f:
            f.write(line + "\n")


say(peer=f"PyTorch {torch.__version__}", device=torch.cuda.get_device_name(0))


def median_ms(work, seconds):
    """Median of single runs by events, after three that are not counted."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times, end = [], time.time() + seconds
    while len(times) < 5 or (time.time() < end and len(times) < 500):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        work()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times)


class Block(torch.nn.Module):
    def __init__(self, d, heads, hidden):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = torch.nn.RMSNorm(d), torch.nn.RMSNorm(d)
        self.qkv, self.o = torch.nn.Linear(d, 3 * d, bias=False), torch.nn.Linear(d, d, bias=False)
        self.gate_up, self.down = torch.nn.Linear(d, 2 * hidden, bias=False), torch.nn.Linear(hidden, d, bias=False)

    def forward(self, x, cos, sin):
        B, T, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)

        def turn(a):
            lo, hi = a.chunk(2, -1)
            return (a * cos + torch.cat((-hi, lo), -1) * sin).to(v.dtype)

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, d))
        g, u = self.gate_up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


class Net(torch.nn.Module):
    def __init__(self, d=768, layers=12, heads=12, hidden=2048, vocab=50304, T=1024):
        super().__init__()
        self.embed = torch.nn.Embedding(vocab, d)
        self.blocks = torch.nn.ModuleList(Block(d, heads, hidden) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(d)
        f = 10000 ** (-torch.arange(0, d // heads, 2).float() / (d // heads))
        a = torch.outer(torch.arange(T).float(), f).repeat(1, 2)
        self.register_buffer("cos", a.cos())
        self.register_buffer("sin", a.sin())

    def forward(self, tok, tgt):
        x = self.embed(tok)
        for b in self.blocks:
            x = b(x, self.cos, self.sin)
        return F.cross_entropy(F.linear(self.norm(x), self.embed.weight).flatten(0, 1).float(), tgt.flatten())


def train():
    T, V = 1024, 50304
    # what matters most first: compiling takes a minute
    for B, mode, compiled in ((16, "bf16", False), (4, "bf16", False), (16, "bf16", True), (4, "f32", False),
                              (4, "tf32", False), (4, "f32", True), (4, "tf32", True)):
        tok, tgt = torch.randint(V, (B, T), device=dev), torch.randint(V, (B, T), device=dev)
        if not (quick and compiled):
            torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
            torch.manual_seed(0)
            net = Net().to(dev)
            opt = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
            model = torch.compile(net) if compiled else net

            def step():
                with torch.autocast(dev, torch.bfloat16, enabled=mode == "bf16"):
                    loss = model(tok, tgt)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
                opt.zero_grad(set_to_none=True)

            name = f"{B} x {T}, {mode}" + (", compiled" if compiled else "")
            try:
                ms = median_ms(step, 1 if quick else 3)
                say(**{name: {"step_s": ms / 1e3, "tok_s": B * T / ms * 1e3}})
            except Exception as e:  # one way of running it may fail without the others
                say(**{name: {"failed": str(e)[:200]}})
            del net, opt, model
            torch.cuda.empty_cache()


def attention():
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (torch.randn(16, 12, 1024, 64, device=dev, dtype=dtype, requires_grad=True) for _ in range(3))
        do = torch.randn_like(q)
        forward = median_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), 1)
        both = median_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(do), 1)
        say(**{str(dtype).split(".")[1]: {"forward_s": forward / 1e3, "forward_backward_s": both / 1e3}})


def recur():
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        from fla.ops.kda import chunk_kda
    except ImportError as e:
        sys.exit((sys.stderr.write(f"flash-linear-attention is not installed ({e})\n"), 77)[1])
    B, T, H, D = (1, 128, 2, 64) if quick else (1, 8192, 96, 128)

    def rows(*shape):
        return torch.randn(*shape, device=dev, dtype=torch.bfloat16)

    q, k, v = (F.normalize(rows(B, T, H, D), dim=-1).requires_grad_() for _ in range(3))
    beta, do = torch.rand(B, T, H, device=dev, dtype=torch.bfloat16).requires_grad_(), rows(B, T, H, D)
    for name, op, width in (("kda", chunk_kda, D), ("gdn", chunk_gated_delta_rule, 1)):
        g = -0.1 * torch.rand(*((B, T, H, D) if width > 1 else (B, T, H)), device=dev)
        g.requires_grad_()
        try:
            forward = median_ms(lambda: op(q, k, v, g=g, beta=beta)[0], 1)
            both = median_ms(lambda: op(q, k, v, g=g, beta=beta)[0].backward(do), 1)
            say(**{name: {"forward_s": forward / 1e3, "forward_backward_s": both / 1e3}})
        except Exception as e:
            say(**{name: {"failed": str(e)[:200]}})


{"train": train, "attention": attention, "recur": recur}[sys.argv[1]]()
