"""The Volta backward: right by the gate on every fault that users reported, its order of sums, its shared memory."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from harness.ops import OPS
from harness.verify import Gate
from impl.cuda import emulator
from impl.cuda.steps import run
from impl.spark_attention import reference
from impl.spark_attention.kernels.backward import attention_backward
from impl.spark_attention.kernels.backward_sm70 import backward_steps
from impl.spark_attention.kernels.call import Backward
from impl.spark_attention.kernels.sm70 import BACKWARD
from tests.impl.spark_attention.backends import LAYOUTS, each_layout, emulated, gpu, sequences_far_apart
from tests.impl.spark_attention.distortions import DISTORTIONS
from tests.impl.spark_attention.gradients import MANY_TILES

OP = OPS["attention"]
NAMES = ("dq", "dk", "dv")
everywhere = pytest.mark.parametrize("device", [pytest.param("cpu", marks=emulated), pytest.param("cuda", marks=gpu)])
each_head_dim = pytest.mark.parametrize("head_dim", [64, 59, 128, 111])


def case(**fields):
    return OP.Params(**{"direction": "backward", "batch": 1, "num_heads": 2, "head_dim": 64, **fields})


def forward(inputs: dict[str, Tensor], causal: bool) -> dict[str, Tensor]:
    """The arguments of a backward by position, from the inputs and the reference's forward; out is laid out as q."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    contiguous = (t.contiguous() for t in (q, k, v))  # torch's own sums depend on strides
    out, lse = reference.attention_forward(*contiguous, causal=causal, softmax_scale=q.shape[-1] ** -0.5)
    return {"dout": inputs["dout"], "q": q, "k": k, "v": v, "out": torch.empty_like(q).copy_(out), "lse": lse}


def steps_of(tensors: dict[str, Tensor], causal: bool) -> tuple[list, dict[str, Tensor]]:
    """The launches and the outputs that they will fill, NaN before."""
    gradients = {name: torch.full_like(tensors[name[1]], math.nan).contiguous() for name in NAMES}
    scale = tensors["q"].shape[-1] ** -0.5
    return backward_steps(Backward(*tensors.values(), *gradients.values(), causal, scale)), gradients


def backward(inputs: dict[str, Tensor], causal: bool = False, **options) -> dict[str, Tensor]:
    """dq, dk, dv on the inputs' device; `options` are the emulator's."""
    steps, gradients = steps_of(forward(inputs, causal), causal)
    if inputs["q"].is_cuda:
        from impl.cuda.launch import launch
    else:
        launch = functools.partial(emulator.launch, **options)
    run(steps, launch)
    return gradients


def check(params, inputs: dict[str, Tensor], **options) -> dict[str, Tensor]:
    """Hold the gradients of these inputs to the gate, and return them."""
    gradients = backward(inputs, params.causal, **options)
    verdict = Gate(OP, params, inputs).check(gradients)
    assert verdict.passed, verdict.reason
    return gradients


def check_case(device: str, **fields) -> None:
    params = case(**fields)
    check(params, dict(OP.inputs(params, device)))


@everywhere
@pytest.mark.parametrize("lengths", [(2, 5), (5, 2), (130, 67), (67, 130)])
def test_causal_is_aligned_bottom_right(device, lengths):
    params = case(seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)
    gradients = check(params, dict(OP.inputs(params, device)))
    assert not gradients["dq"][:, :, : max(0, lengths[0] - lengths[1])].any()


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [(2048, 1024), (1023, 1024), (600, 300)])
def test_causal_with_long_lengths(lengths):
    check_case("cuda", seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)


@everywhere
def test_one_token(device):
    params = case(num_heads=1, seqlen=1, head_dim=16)
    inputs = {name: 3 * tensor for name, tensor in OP.inputs(params, device).items()}
    gradients = backward(inputs)
    assert not gradients["dq"].any()
    assert not gradients["dk"].any()
    assert torch.equal(gradients["dv"], inputs["dout"])


@everywhere
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("seqlen", [1, 2, 31, 33, 63, 65, 113, 127, 129])
def test_lengths_off_the_tile(device, seqlen, causal):
    heads = 3 if seqlen > 2 else 32  # the largest error of a few rows of plain fp16 is a matter of luck
    check_case(device, seqlen=seqlen, num_heads=heads, causal=causal, head_dim=128 if seqlen % 4 == 1 else 64)


@everywhere
@pytest.mark.parametrize("lengths", MANY_TILES)
def test_many_tiles_and_what_is_left_over(device, lengths):
    check_case(device, seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seqlen", [1023, 1025, 2925, 4250])
def test_long_lengths_off_the_tile(seqlen, head_dim, causal):
    check_case("cuda", seqlen=seqlen, head_dim=head_dim, causal=causal)


@everywhere
@pytest.mark.parametrize("head_dim", [40, 59, 72, 80, 88, 96, 100, 111])
def test_head_dims_off_the_tile(device, head_dim):
    check_case(device, seqlen=70, head_dim=head_dim, causal=True)


@everywhere
@pytest.mark.parametrize("heads", [(4, 2), (4, 1), (6, 1)])
def test_grouped_heads_sum_their_gradients(device, heads):
    check_case(device, num_heads=heads[0], num_heads_kv=heads[1], seqlen=40, batch=2, causal=True)


@everywhere
@pytest.mark.parametrize("head_dim", [64, 128])
def test_large_activations_stay_finite(device, head_dim):
    """lse is in the millions, so its own rounding shifts probabilities: finite, and dv a mean of dout's size."""
    inputs = {name: 1000 * tensor for name, tensor in OP.inputs(case(seqlen=65, head_dim=head_dim), device).items()}
    inputs["dout"] = inputs["dout"] / 1000
    gradients = backward(inputs)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert (gradients["dv"].abs() <= inputs["dout"].abs().sum(2, keepdim=True) * 1.001).all()


@everywhere
@pytest.mark.parametrize("distort", DISTORTIONS)
def test_inputs_far_from_normal(device, distort):
    params = case(seqlen=130, causal=True)
    check(params, {name: distort(tensor) for name, tensor in OP.inputs(params, device).items()})


@everywhere
def test_sequences_do_not_interfere(device):
    params = case(batch=2, seqlen=70)
    inputs = dict(OP.inputs(params, device))
    for tensor in inputs.values():
        tensor[1] = 0
    gradients = check(params, inputs)
    assert not any(gradient[1].any() for gradient in gradients.values())


@everywhere
@each_layout
def test_strided_inputs_equal_contiguous_ones(device, layout):
    inputs = dict(zip(("q", "k", "v", "dout"), LAYOUTS[layout](4, device=device), strict=True))
    params = case(batch=2, num_heads=3, seqlen=70)
    gradients = check(params, inputs)
    contiguous = backward({name: tensor.contiguous() for name, tensor in inputs.items()})
    assert all(torch.equal(gradients[name], contiguous[name]) for name in NAMES)


@everywhere
def test_the_gradient_of_a_sum_has_no_strides(device):
    params = case(seqlen=40)
    inputs = {**OP.inputs(params, device)}
    inputs["dout"] = torch.ones((), device=device, dtype=torch.float16).expand_as(inputs["q"])
    if device == "cuda":
        from impl.cuda.launch import launch
    else:
        launch = emulator.launch
    options = {"causal": False, "softmax_scale": params.head_dim**-0.5, "launch": launch, "arch": "sm_70"}
    gradients = attention_backward(*forward(inputs, causal=False).values(), **options)
    verdict = Gate(OP, params, inputs).check(dict(zip(NAMES, gradients, strict=True)))
    assert verdict.passed, verdict.reason


@pytest.mark.gpu
def test_same_bits_in_thirty_runs():
    inputs = dict(OP.inputs(case(seqlen=333, causal=True), "cuda"))
    first = backward(inputs, causal=True)
    for _ in range(29):
        again = backward(inputs, causal=True)
        assert all(torch.equal(first[name], again[name]) for name in NAMES)


@everywhere
def test_offsets_past_32_bits(device):
    inputs = sequences_far_apart(4, device)
    check(case(batch=2, seqlen=70), dict(zip(("q", "k", "v", "dout"), inputs, strict=True)))


@emulated
@each_head_dim
def test_no_races_and_the_same_bits_in_any_order(head_dim):
    params = case(seqlen=130, head_dim=head_dim, causal=True, num_heads=2, num_heads_kv=1)
    inputs = dict(OP.inputs(params, "cpu"))
    first = check(params, inputs, check_races=True)
    for seed in (1, 2):
        again = backward(inputs, causal=True, seed=seed)
        assert all(torch.equal(first[name], again[name]) for name in NAMES)


@emulated
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles_meet_no_bank_conflicts(head_dim):
    inputs = dict(OP.inputs(case(seqlen=128, head_dim=head_dim), "cpu"))
    steps, _ = steps_of(forward(inputs, causal=False), causal=False)
    for step in steps:
        counts = emulator.count(step.kernel, step.grid, step.arguments)
        wide = [c for c in counts if c.bytes == 16 and c.instruction in ("ld.shared", "st.shared")]
        assert {c.instruction for c in wide} == {"ld.shared", "st.shared"}
        assert [c for c in wide if c.wavefronts != c.ideal_wavefronts] == []


def test_head_dim_and_alignment_choose_among_all_kernels():
    chosen = set()
    for head_dim in (64, 59, 128, 111):
        tensors = forward({name: torch.randn(1, 1, 1, head_dim).half() for name in ("q", "k", "v", "dout")}, False)
        chosen |= {step.kernel for step in steps_of(tensors, causal=False)[0]}
    assert chosen == set(BACKWARD)


@emulated
def test_without_keys_or_queries_nothing_is_launched_for_them():
    q, k = torch.randn(1, 1, 5, 64).half(), torch.randn(1, 1, 0, 64).half()
    options = {"causal": False, "softmax_scale": 0.125, "launch": emulator.launch, "arch": "sm_70"}
    lse = torch.full((1, 1, 5), -math.inf)
    dq, dk, dv = attention_backward(q, q, k, k, torch.zeros_like(q), lse, **options)
    assert not dq.any()
    assert dk.shape == dv.shape == k.shape
    dq, dk, dv = attention_backward(k, k, q, q, k, lse[:, :, :0], **options)
    assert dq.shape == k.shape
    assert not dk.any()
    assert not dv.any()


def test_the_gate_sees_two_rows_exchanged():
    params = case(seqlen=64)
    inputs = dict(OP.inputs(params, "cpu"))
    options = {"causal": False, "softmax_scale": 0.125}
    gradients = dict(zip(NAMES, reference.attention_backward(*forward(inputs, False).values(), **options), strict=True))
    gradients["dk"][:, :, [10, 11]] = gradients["dk"][:, :, [11, 10]]
    assert not Gate(OP, params, inputs).check(gradients).passed
