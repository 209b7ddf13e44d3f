"""Golden numbers of distillation by torch: torch.nn.functional.cross_entropy and kl_div, gradients by autograd.

    python tests/golden/make_distill.py > tests/golden/distill.txt

Made with torch 2.15.0 on a CPU, in f64. Inputs are a formula of their place, so that the file holds results only. Each
line is a set of weights: lm kl rkl temperature, then of 5 rows (row 2 has no target) the losses lm, kl, rkl, then the
gradients by the rows x (5,4) and by the head w (7,4) of sum_i g_i (lm nll_i + kl KL_i + rkl RKL_i).
"""
import math
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
N, D, E, V = 5, 4, 3, 7


def wave(rows, cols, a, b):
    return torch.tensor([[2 * math.sin(a * (i * cols + k) + b) for k in range(cols)] for i in range(rows)])


tgt = torch.tensor([3, 0, -100, 6, 1])
g = torch.tensor([0.2 + 0.1 * i for i in range(N)])
for lm, kl, rkl, T in [(1, 0, 0, 1), (0, 1, 0, 1), (0, 1, 0, 2), (0, 0, 1, 1), (0, 0, 1, 0.5), (0.5, 1.5, 0.25, 2)]:
    x, w = wave(N, D, 1.3, 0.2).requires_grad_(), wave(V, D, 0.9, 1.0).requires_grad_()
    z, u = x @ w.T, wave(N, E, 1.7, 0.5) @ wave(V, E, 1.1, 0.3).T
    p, q = F.log_softmax(z / T, -1), F.log_softmax(u / T, -1)
    has = (tgt >= 0).double()
    nll = F.cross_entropy(z, tgt, reduction="none")
    fwd = has * T * T * F.kl_div(p, q, reduction="none", log_target=True).sum(-1)
    rev = has * T * T * F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    (g * (lm * nll + kl * fwd + rkl * rev)).sum().backward()
    out = [lm, kl, rkl, T] + [v for t in (nll, fwd, rev, x.grad, w.grad) for v in t.flatten().tolist()]
    print(" ".join("%.17g" % v for v in out))
