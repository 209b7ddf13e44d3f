"""flash-linear-attention's models in plain PyTorch: its own classes, configurations and state dictionaries, with the leaves
that are Triton kernels replaced, so that they run on a CPU and in float64. Importing this module replaces them and
registers the classes with transformers (its mamba2, too). The recurrences are the package's naive.py; everything else
that is replaced is typed here from the definitions: norms, gates, short convolution, rotation, softmax attention.
Needs torch, transformers, einops, flash-linear-attention and fla-core 0.6.0.
"""
import sys
import types

import torch
import torch.nn.functional as F

flash = types.ModuleType("flash_attn")  # its absence is an error when attention layers are made
flash.flash_attn_func = flash.flash_attn_varlen_func = None
flash.__spec__ = types.SimpleNamespace(loader=None, origin=None, submodule_search_locations=None)
sys.modules.setdefault("flash_attn", flash)
import fla.layers.attn as attn_layer
import fla.layers.delta_net as delta_layer
import fla.layers.gated_deltanet as gated_layer
import fla.layers.gla as gla_layer
import fla.layers.kda as kda_layer
import fla.layers.mamba2 as mamba_layer
import fla.layers.multiscale_retention as retention_layer
import fla.models
import fla.modules.mlp as mlp
from fla.modules import FusedRMSNormGated, RMSNorm, ShortConvolution
from fla.modules.rotary import RotaryEmbedding
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.retention.naive import naive_retention

del sys.modules["flash_attn"]  # nothing else is to find it


def rms(x, weight, eps):
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x if weight is None else x * weight


def norm(self, x, residual=None, prenorm=False, residual_in_fp32=False):
    if residual is not None:
        x = x + residual
    y = rms(x, self.weight, self.eps)
    return (y, x) if prenorm else y


def gate(g, name):
    return g.sigmoid() if name == "sigmoid" else g * g.sigmoid()


def gated_norm(self, x, g, residual=None, prenorm=False, residual_in_fp32=False):
    return rms(x, self.weight, self.eps) * gate(g, self.activation)


def mamba_norm(self, x, z=None):
    assert not self.norm_before_gate
    x = (x * gate(z, "silu")).unflatten(-1, (-1, self.group_size))
    return rms(x, None, self.eps).flatten(-2) * self.weight


def conv(x, weight, bias, activation):
    taps = weight.shape[-1]
    y = F.conv1d(F.pad(x.transpose(1, 2), (taps - 1, 0)), weight[:, None], bias, groups=x.shape[-1]).transpose(1, 2)
    return gate(y, "silu") if activation else y


def short_conv(self, x, **_):
    return conv(x, self.weight.squeeze(1), self.bias, self.activation), None


def one_conv(x, weight, bias=None, activation=None, **_):
    return conv(x, weight, bias, activation), None


def rotate(self, q, k, **_):
    assert not self.interleaved and self.scale is None
    turns = self.base ** -(torch.arange(0, self.dim, 2, dtype=q.dtype) / self.dim)
    angle = torch.outer(torch.arange(q.shape[1], dtype=q.dtype), turns)[:, None]
    cos, sin = angle.cos(), angle.sin()

    def turned(x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return turned(q), turned(k)


def attention(q, k, v, causal, window_size):
    t = torch.arange(q.shape[1])
    far = t[:, None] - t
    seen = (far >= 0) & ((far <= window_size[0]) if window_size[0] >= 0 else True)
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


def unit(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def kda(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, lower_bound, **_):
    g = g.unflatten(-1, (v.shape[2], -1)) if g.dim() == 3 else g
    g = (naive_kda_gate(g, A_log, dt_bias, output_dtype=v.dtype) if lower_bound is None else
         naive_kda_lowerbound_gate(g, A_log, dt_bias, lower_bound, output_dtype=v.dtype))
    return naive_recurrent_kda(unit(q), unit(k), v, g, beta.sigmoid() * (1 + allow_neg_eigval))


def gated_delta_rule(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, **_):
    q, k = (unit(x).repeat_interleave(v.shape[2] // q.shape[2], 2) for x in (q, k))
    g = -A_log.exp() * F.softplus(g + dt_bias)
    return naive_recurrent_gated_delta_rule(q, k, v, beta.sigmoid() * (1 + allow_neg_eigval), g)


def delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel, **_):
    assert use_qk_l2norm_in_kernel
    o, _ = delta_rule_recurrence(*(x.transpose(1, 2) for x in (unit(q), unit(k), v)), beta.transpose(1, 2))
    return o.transpose(1, 2), None


def gla(q, k, v, gk=None, g=None, **_):
    return naive_recurrent_gla(q, k, v, g if gk is None else gk)


def retention(q, k, v, **_):
    return naive_retention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), None


RMSNorm.forward, FusedRMSNormGated.forward = norm, gated_norm
ShortConvolution.forward, gated_layer.causal_conv1d = short_conv, one_conv
RotaryEmbedding.forward, attn_layer.flash_attn_func = rotate, attention
mamba_layer.RMSNormGated.forward = mamba_norm
for table in (mamba_layer.ACT2FN, gla_layer.ACT2FN):
    table["silu"] = table["swish"] = F.silu
mlp.swiglu = lambda gate, y: F.silu(gate) * y
mlp.swiglu_linear = lambda gate, y, weight, bias: F.linear(F.silu(gate) * y, weight, bias)
for mode in ("chunk", "fused_recurrent"):
    setattr(kda_layer, mode + "_kda", kda)
    setattr(gated_layer, mode + "_gated_delta_rule", gated_delta_rule)
    setattr(delta_layer, mode + "_delta_rule", delta_rule)
    setattr(gla_layer, mode + "_gla", gla)
    setattr(retention_layer, mode + "_retention", retention)
