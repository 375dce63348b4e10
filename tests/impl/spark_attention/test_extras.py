"""Masks and dropout, forward and backward on every kernel, against float64 with the same mask and dropped scores."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from harness.verify import max_error, poisoned_call, ulp_of_max
from impl.cuda import emulator
from impl.spark_attention import reference
from impl.spark_attention.dropout import kept
from impl.spark_attention.extras import Extras
from impl.spark_attention.kernels.backward import attention_backward
from impl.spark_attention.kernels.forward import attention_forward, source_arch
from tests.impl.spark_attention.backends import CPU, EMULATED_SM70, EMULATED_SM80, GPU, device_of

everywhere = pytest.mark.parametrize("backend", [*CPU, EMULATED_SM70, EMULATED_SM80, *GPU])
NAMES = ("out", "dq", "dk", "dv")


@dataclass(frozen=True)
class Case:
    """Tensors of one attention, and its mask as [batch, heads, seqlen_q, seqlen_k], whole or not."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    mask: Tensor | None = None
    dropout_p: float = 0.0
    seed: Tensor | None = None
    causal: bool = False

    @property
    def extras(self) -> Extras:
        mask = None if self.mask is None else self.mask.expand(*self.q.shape[:3], self.k.shape[2])
        return Extras(mask, self.dropout_p, self.seed)

    @property
    def options(self) -> dict:
        return {"causal": self.causal, "softmax_scale": self.q.shape[-1] ** -0.5, "extras": self.extras}


def case(backend, batch=1, heads=2, heads_kv=2, seqlen_q=40, seqlen_k=70, head_dim=64, dtype=torch.float16, **fields):
    device = device_of(backend)
    shapes = [(batch, heads, seqlen_q), *[(batch, heads_kv, seqlen_k)] * 2, (batch, heads, seqlen_q)]
    q, k, v, dout = (torch.randn(*shape, head_dim, device=device).to(dtype) for shape in shapes)
    fields = {name: f.to(device) if isinstance(f, Tensor) else f for name, f in fields.items()}
    if fields.get("dropout_p"):
        fields.setdefault("seed", torch.randint(2**62, (), device=device))
    return Case(q, k, v, dout, **fields)


def run(backend: str, c: Case) -> dict[str, Tensor]:
    """out, lse and gradients of `backend`; allocations are NaN before kernels run."""
    if backend == "reference":
        out, lse = reference.attention_forward(c.q, c.k, c.v, **c.options)
        gradients = reference.attention_backward(c.dout, c.q, c.k, c.v, out, lse, **c.options)
        return dict(zip((*NAMES, "lse"), (out, *gradients, lse), strict=True))
    launch = emulator.launch
    if c.q.is_cuda:
        from impl.cuda.launch import launch
    arch = source_arch(c.q.device) if backend == "native" else backend.removeprefix("emulated ")

    def kernels() -> dict[str, Tensor]:
        out, lse = attention_forward(c.q, c.k, c.v, launch, accumulate="fp32", kernel_arch=arch, **c.options)
        gradients = attention_backward(c.dout, c.q, c.k, c.v, out, lse, launch=launch, arch=arch, **c.options)
        return dict(zip((*NAMES, "lse"), (out, *gradients, lse), strict=True))

    return poisoned_call(kernels)


def plain(c: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """Unfused attention in `dtype` and its gradients by autograd."""
    group = c.q.shape[1] // c.k.shape[1]
    leaves = [t.detach().to(dtype).requires_grad_() for t in (c.q, c.k, c.v)]
    q, k, v = leaves[0], *(t.repeat_interleave(group, 1) for t in leaves[1:])
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if c.mask is not None:
        scores = scores.masked_fill(~c.mask, -math.inf) if c.mask.dtype == torch.bool else scores + c.mask.to(dtype)
    seqlen_q, seqlen_k = scores.shape[2:]
    if c.causal:
        hidden = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device).triu(1 + seqlen_k - seqlen_q)
        scores = scores.masked_fill(hidden, -math.inf)
    empty = scores.isneginf().all(-1, keepdim=True)
    p = scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
    if c.dropout_p:
        every = (slice(0, seqlen_q), slice(0, seqlen_k))
        p = p * kept(c.seed, c.extras.dropped, *p.shape[:2], *every) / (1 - c.extras.dropped / 2**16)
    out = p @ v
    gradients = torch.autograd.grad(out, leaves, c.dout.to(dtype))
    return dict(zip(NAMES, (out.detach(), *gradients), strict=True))


def check(backend: str, c: Case) -> dict[str, Tensor]:
    """Hold `backend` to the gate: 2 (outputs) or 3 (gradients) times plain 16-bit attention's own error."""
    got, right, rounded = run(backend, c), plain(c, torch.float64), plain(c, c.q.dtype)
    for name in NAMES:
        factor = 2 if name == "out" else 3
        limit = max(factor * max_error(rounded[name], right[name]), ulp_of_max(right[name], c.q.dtype))
        assert max_error(got[name], right[name]) <= limit, name
    return got


def random_mask(*shape: int) -> Tensor:
    return torch.rand(shape) < 0.7


MASKS = {
    "boolean": (64, lambda: random_mask(2, 2, 40, 70)),
    "one for all heads": (128, lambda: random_mask(2, 1, 40, 70)),
    "padding": (128, lambda: (torch.arange(70) < torch.tensor([[37], [70]])).view(2, 1, 1, 70)),
    "added, fp16": (128, lambda: torch.randn(1, 2, 40, 70).half()),
    "added, fp32, -inf": (64, lambda: torch.randn(40, 70).masked_fill(~random_mask(40, 70), -math.inf)),
    "strided": (64, lambda: random_mask(2, 2, 40, 141)[..., 1:71]),
}


@everywhere
@pytest.mark.parametrize("mask", MASKS)
def test_masks(backend, mask):
    head_dim, make = MASKS[mask]
    check(backend, case(backend, batch=2, mask=make(), head_dim=head_dim, causal=mask == "boolean"))


@everywhere
def test_rows_without_keys_are_zero_and_leave_others_alone(backend):
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[4:] = False
    c = case(backend, batch=1, heads=1, heads_kv=1, seqlen_q=8, seqlen_k=8, head_dim=8, mask=mask)
    got = check(backend, c)
    assert not got["out"][:, :, 4:].any()
    assert not got["dq"][:, :, 4:].any()
    assert got["lse"][:, :, 4:].eq(-math.inf).all()
    assert got["lse"][:, :, :4].isfinite().all()


@everywhere
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_row_of_the_lowest_number_is_uniform(backend, dtype):
    mask = torch.zeros(3, 3, dtype=dtype)
    mask[1] = torch.finfo(dtype).min
    c = case(backend, batch=1, heads=4, heads_kv=4, seqlen_q=3, seqlen_k=3, mask=mask)
    got = run(backend, c)
    uniform = c.v.double().mean(2)
    assert max_error(got["out"][:, :, 1], uniform) <= ulp_of_max(uniform, torch.float16)
    alone = replace(c, q=c.q[:, :, 1:2], dout=c.dout[:, :, 1:2], mask=c.mask[1:2])
    shares = (alone.dout.double() / 3).expand_as(c.v)
    assert max_error(run(backend, alone)["dv"], shares) <= ulp_of_max(shares, torch.float16)


@everywhere
def test_first_tiles_masked_and_later_ones_not(backend):
    mask = torch.arange(441) >= 128
    check(backend, case(backend, batch=1, heads=1, heads_kv=1, seqlen_q=33, seqlen_k=441, mask=mask))


@everywhere
def test_offsets_of_a_mask_past_32_bits(backend):
    """Rows of the mask 2**25 bytes apart, so that the last of 70 lie past 2**31."""
    mask = torch.empty(70 * 2**25, dtype=torch.bool, device=device_of(backend)).as_strided((70, 70), (2**25, 1))
    mask.copy_(random_mask(70, 70))
    check(backend, case(backend, seqlen_q=70, mask=mask))


@everywhere
@pytest.mark.parametrize("seqlen_k", [65, 128, 300])
def test_dropout_is_the_same_in_forward_and_backward(backend, seqlen_k):
    check(backend, case(backend, batch=2, seqlen_q=65, seqlen_k=seqlen_k, dropout_p=0.1, causal=True))


@everywhere
@pytest.mark.parametrize("head_dim", [59, 128])
def test_all_at_once(backend, head_dim):
    fields = {"heads": 4, "heads_kv": 2, "seqlen_q": 70, "seqlen_k": 150, "head_dim": head_dim}
    check(backend, case(backend, **fields, mask=random_mask(1, 1, 70, 150), dropout_p=0.3, causal=True))


@pytest.mark.parametrize("backend", [*CPU, EMULATED_SM80, pytest.param("native", marks=pytest.mark.gpu)])
def test_bfloat16(backend):
    fields = {"dtype": torch.bfloat16, "mask": torch.randn(40, 70).bfloat16(), "dropout_p": 0.2}
    check(backend, case(backend, **fields))


@pytest.mark.parametrize("backend", GPU)
def test_the_same_bits_every_time(backend):
    fields = {"heads": 4, "seqlen_q": 700, "seqlen_k": 900}
    c = case(backend, **fields, mask=random_mask(700, 900), dropout_p=0.3, causal=True)
    first = run(backend, c)
    for _ in range(10):
        assert all(torch.equal(first[name], tensor) for name, tensor in run(backend, c).items())


@pytest.mark.parametrize("backend", [EMULATED_SM70, EMULATED_SM80])
def test_no_races(backend):
    c = case(backend, mask=random_mask(40, 70), dropout_p=0.3)
    launch = functools.partial(emulator.launch, check_races=True)
    arch = backend.removeprefix("emulated ")
    out, lse = attention_forward(c.q, c.k, c.v, launch, accumulate="fp32", kernel_arch=arch, **c.options)
    attention_backward(c.dout, c.q, c.k, c.v, out, lse, launch=launch, arch=arch, **c.options)


def test_other_lengths_drop_the_same_scores():
    """Values of one at one key each say which scores count: the same for a shorter matrix of scores."""
    longer = case("emulated sm_80", batch=1, heads=1, heads_kv=1, seqlen_q=64, seqlen_k=64, dropout_p=0.5)
    ones = replace(longer, q=longer.q * 0, v=torch.eye(64)[None, None].half())
    whole = run("reference", ones)["out"] > 0
    rows, keys = (..., slice(0, 37), slice(None)), (..., slice(0, 41), slice(None))
    part = replace(ones, q=ones.q[rows], k=ones.k[keys], v=ones.v[keys], dout=ones.dout[rows])
    assert torch.equal(run("reference", part)["out"] > 0, whole[:, :, :37] & (torch.arange(64) < 41))
