"""Golden numbers of AdamW and of the global norm by torch: torch.optim.AdamW, torch.nn.utils.get_total_norm.

    python tests/golden/make_adamw.py > tests/golden/adamw.txt

Made with torch 2.15.0 on a CPU, in f64. Two tensors: "matrix" (3,4) is decayed, "gain" (5) is not. Gradients are a
formula of (step, tensor, index), so that the file holds results only. Each line: step, lr, norm before clipping, then
the 17 weights.
"""
import math
import torch

MAX_NORM, DECAY, BETAS, EPS, STEPS = 1.25, 0.1, (0.9, 0.95), 1e-8, 6
torch.set_default_dtype(torch.float64)


def start(k, i):
    return math.sin(1.0 + 0.7 * i + 3.0 * k)


def grad(step, k, i):
    return 0.9 * math.cos(0.3 * step + 1.1 * i + 2.0 * k) / (1 + step)


def lr(step):
    return 0.02 / (1 + step)


sizes = [(3, 4), (5,)]
params = [torch.nn.Parameter(torch.tensor([start(k, i) for i in range(math.prod(s))]).reshape(s))
          for k, s in enumerate(sizes)]
opt = torch.optim.AdamW(
    [{"params": params[:1], "weight_decay": DECAY}, {"params": params[1:], "weight_decay": 0.0}],
    lr=1.0, betas=BETAS, eps=EPS, foreach=False, fused=False)
for step in range(STEPS):
    for k, p in enumerate(params):
        p.grad = torch.tensor([grad(step, k, i) for i in range(p.numel())]).reshape(p.shape)
    # torch divides by norm + 1e-6; the golden run scales by max/norm itself, with torch's norm.
    norm = torch.nn.utils.get_total_norm([p.grad for p in params])
    if norm > MAX_NORM:
        for p in params:
            p.grad.mul_(MAX_NORM / norm)
    for g in opt.param_groups:
        g["lr"] = lr(step)
    opt.step()
    row = [lr(step), norm.item()] + [x for p in params for x in p.detach().flatten().tolist()]
    print(step, *(f"{x:.17g}" for x in row))
