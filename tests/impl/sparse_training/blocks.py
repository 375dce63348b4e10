"""Block-sparse attention by each of its backends, and the dense formula that they are held to."""

from __future__ import annotations

import functools

import pytest
import torch

from impl.cuda import emulator
from impl.sparse_training.api import block_sparse_attention
from impl.sparse_training.block_pattern import BlockPattern
from impl.sparse_training.kernels import attention

SOFTMAX = ["renormalised", "pruned_as_zero"]
emulated = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
EMULATED = pytest.param("emulated sm_80", marks=emulated)
GPU, GPU_SM80 = (pytest.param(name, marks=pytest.mark.gpu) for name in ("gpu", "gpu sm_80"))  # the op; those kernels
KERNELS = [EMULATED, GPU]
everywhere = pytest.mark.parametrize("backend", ["reference", *KERNELS])


def random_inputs(seqlen, heads=3, heads_kv=None, head_dim=24, batch=2, dtype=torch.float16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    counts = (heads, heads_kv or heads, heads_kv or heads, heads)
    return [torch.randn(batch, h, seqlen, head_dim, generator=generator).to(dtype) for h in counts]  # q, k, v, dout


def random_pattern(seqlen, block, heads=1, density=0.4, seed=0):
    blocks = -(-seqlen // block)
    return torch.rand(heads, blocks, blocks, generator=torch.Generator().manual_seed(seed)) < density


def masked_dense(q, k, v, pattern, block, causal=False, softmax="renormalised", lengths=None):
    """Logits of pruned entries set to 0 or -inf, one softmax over the row, pruned weights dropped. In q's dtype."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    seqlen = q.shape[2]
    kept = pattern.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :seqlen, :seqlen]
    visible = torch.ones(len(q), 1, seqlen, seqlen, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    if lengths is not None:
        visible = visible & (torch.arange(seqlen) < lengths[:, None, None, None])
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~kept, 0.0 if softmax == "pruned_as_zero" else -torch.inf)
    p = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return p.masked_fill(~(kept & visible), 0) @ v


def with_gradients(function, tensors, dout):
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def attend(backend, tensors, dout, pattern, block, causal=False, softmax="renormalised", lengths=None, **emulation):
    """out, dq, dk, dv of `backend`, on the CPU. What kernels leave unwritten is NaN."""
    device = "cuda" if backend.startswith("gpu") else "cpu"
    tensors, dout, pattern = [t.to(device) for t in tensors], dout.to(device), pattern.to(device)
    lengths = None if lengths is None else lengths.to(device)
    if backend in ("reference", "gpu"):
        options = {"pattern": pattern, "block": block, "causal": causal, "softmax": softmax, "lengths": lengths}
        results = with_gradients(lambda q, k, v: block_sparse_attention(q, k, v, **options), tensors, dout)
        return [t.cpu() for t in results]

    where, arch = backend.split()
    lists = BlockPattern.of(pattern, block)
    lengths = None if lengths is None else lengths.int()
    options = {"block": block, "causal": causal, "launch": _launcher(where, emulation), "arch": arch}
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors with NaN
    try:
        out, lse = attention.forward(*tensors, lists.rows, lengths, softmax=softmax, **options)
        saved = (out, lse, lists.rows, lists.columns, lengths)
        return [t.cpu() for t in (out, *attention.backward(dout, *tensors, *saved, **options))]
    finally:
        torch.use_deterministic_algorithms(False)


def _launcher(where, emulation):
    if where == "emulated":
        return functools.partial(emulator.launch, **emulation)
    from impl.cuda.launch import launch

    return launch


def assert_gate(backend, tensors, dout, pattern, block, check_races=False, **dense):
    """Errors against float64 at most 2x (out) and 3x (gradients) plain half precision's own, one ulp at least."""
    dense = {"pattern": pattern, "block": block, **dense}
    emulation = {"check_races": True} if check_races else {}
    wide = [t.double() for t in tensors]
    reference = with_gradients(lambda q, k, v: masked_dense(q, k, v, **dense), wide, dout.double())
    plain = with_gradients(lambda q, k, v: masked_dense(q, k, v, **dense), tensors, dout)
    ours = attend(backend, tensors, dout, **dense, **emulation)
    for name, factor, r, p, o in zip(("out", "dq", "dk", "dv"), (2, 3, 3, 3), reference, plain, ours, strict=True):
        assert o.shape == r.shape
        assert o.dtype == tensors[0].dtype
        largest = torch.tensor(r.abs().max().item(), dtype=o.dtype)
        ulp = torch.nextafter(largest, torch.tensor(torch.inf, dtype=o.dtype)) - largest
        limit = max(factor * (p.double() - r).abs().max().item(), ulp.item())
        error = (o.double() - r).abs().max().item()
        assert error <= limit, f"{name}: error {error:.3g}, limit {limit:.3g}"
    return ours
