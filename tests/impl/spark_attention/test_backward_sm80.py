"""The sm_80 backward, emulated and on a GPU: against float64 through the gate, and what is special to its kernel."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from harness.verify import Gate
from impl.cuda import emulator
from impl.spark_attention.kernels.backward import attention_backward
from impl.spark_attention.kernels.backward_sm80 import backward_steps
from impl.spark_attention.kernels.call import Backward
from impl.spark_attention.kernels.sm80 import BACKWARD
from tests.impl.spark_attention.backends import LAYOUTS, each_layout, emulated, gpu, sequences_far_apart
from tests.impl.spark_attention.distortions import DISTORTIONS
from tests.impl.spark_attention.gradients import (
    GRADIENTS,
    MANY_TILES,
    OP,
    case,
    launcher,
    saved_by_forward,
    steps_and_gradients,
)
from tests.impl.spark_attention.gradients import check as check_gradients
from tests.impl.spark_attention.gradients import gradients as gradients_of

EMULATED, GPU = pytest.param("cpu", marks=emulated), pytest.param("cuda", marks=gpu)
everywhere = pytest.mark.parametrize("device", [EMULATED, GPU])
on_gpu = pytest.mark.parametrize("device", [GPU])
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def gradients(inputs, causal: bool, **options) -> dict[str, Tensor]:
    return gradients_of(backward_steps, inputs, causal, **options)


def check(params, inputs, **options) -> dict[str, Tensor]:
    return check_gradients(backward_steps, params, inputs, **options)


def check_case(device, **fields) -> None:
    params = case(**fields)
    check(params, OP.inputs(params, device))


@everywhere
@pytest.mark.parametrize("lengths", [(2, 5), (5, 2), (130, 67), (67, 130), (70, 260)])
def test_causal_is_aligned_bottom_right(device, lengths):
    seqlen_q, seqlen_k = lengths
    params = case(seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=True)
    dq = check(params, OP.inputs(params, device))["dq"]
    assert not dq[:, :, : max(seqlen_q - seqlen_k, 0)].any()


@everywhere
def test_one_token(device):
    params = case(num_heads=1, seqlen=1, head_dim=16)
    inputs = {name: 3 * tensor for name, tensor in OP.inputs(params, device).items()}
    got = check(params, inputs)
    assert not got["dq"].any()
    assert not got["dk"].any()
    assert torch.equal(got["dv"], inputs["dout"])


@everywhere
@causal_or_not
@pytest.mark.parametrize("seqlen", [1, 2, 31, 33, 63, 65, 113, 127, 129])
def test_lengths_off_the_tile(device, seqlen, causal):
    heads = 3 if seqlen > 2 else 32  # the largest error of a few rows of plain fp16 is a matter of luck
    check_case(device, seqlen=seqlen, num_heads=heads, causal=causal, seed=seqlen)


@everywhere
@pytest.mark.parametrize("lengths", MANY_TILES)
def test_many_tiles_and_what_is_left_over(device, lengths):
    check_case(device, seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)


@on_gpu
@causal_or_not
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seqlen", [1023, 1025, 2925, 4250])
def test_long_lengths_off_the_tile(device, seqlen, head_dim, causal):
    check_case(device, batch=2, num_heads=3, seqlen=seqlen, head_dim=head_dim, causal=causal)


@on_gpu
@pytest.mark.parametrize("lengths", [(2048, 1024), (1023, 1024)])
def test_causal_with_long_lengths(device, lengths):
    check_case(device, seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)


@everywhere
@pytest.mark.parametrize("head_dim", [40, 59, 72, 80, 88, 96, 100, 111, 128])
def test_head_dims_off_the_tile(device, head_dim):
    check_case(device, seqlen=70, head_dim=head_dim, causal=True)


@on_gpu
@pytest.mark.parametrize("head_dim", [1, 8, 127])
def test_more_head_dims(device, head_dim):
    check_case(device, seqlen=150, head_dim=head_dim)


@everywhere
@pytest.mark.parametrize("heads", [(4, 2), (4, 1), (6, 1)])
def test_grouped_heads_sum_their_gradients(device, heads):
    check_case(device, num_heads=heads[0], num_heads_kv=heads[1], seqlen=70, batch=2, causal=True)


@everywhere
@pytest.mark.parametrize("head_dim", [64, 128])
def test_bfloat16(device, head_dim):
    check_case(device, seqlen=100, head_dim=head_dim, causal=True, dtype="bfloat16")


@everywhere
@pytest.mark.parametrize("distort", DISTORTIONS)
def test_inputs_far_from_normal(device, distort):
    params = case(seqlen=130, causal=True)
    check(params, {name: distort(tensor) for name, tensor in OP.inputs(params, device).items()})


@everywhere
def test_large_activations(device):
    """Each row has one key that counts. dv is exact although the lse, 5e6, has no bit below 0.5.

    dq and dk are to be 0; they are what the rounding of `out` in 16 bits leaves of dp - delta, but finite.
    """
    params = case(seqlen=130, causal=True)
    inputs = OP.inputs(params, device)
    inputs = {name: tensor if name == "dout" else 1000 * tensor for name, tensor in inputs.items()}
    got = gradients(inputs, params.causal)
    assert all(gradient.isfinite().all() for gradient in got.values())
    reference = Gate(OP, params, inputs).expectations["dv"]
    assert (got["dv"].double() - reference.reference).abs().max() <= reference.limit


@everywhere
def test_keys_past_the_end_have_no_probability(device):
    """Their score is 0, which against an lse of -196 would be an infinite one, times k = 0."""
    params = case(seqlen=70)
    inputs = OP.inputs(params, device)
    inputs = {**inputs, "q": torch.full_like(inputs["q"], 5.0), "k": torch.full_like(inputs["k"], -5.0)}
    check(params, inputs)


@everywhere
def test_sequences_do_not_interfere(device):
    params = case(batch=2, seqlen=70)
    inputs = OP.inputs(params, device)
    for tensor in inputs.values():
        tensor[1] = 0
    assert not any(gradient[1].any() for gradient in check(params, inputs).values())


@everywhere
@each_layout
def test_strided_inputs_equal_contiguous_ones(device, layout):
    strided = dict(zip(("q", "k", "v", "dout"), LAYOUTS[layout](4, device=device), strict=True))
    contiguous = gradients({name: t.contiguous() for name, t in strided.items()}, causal=True)
    for name, gradient in gradients(strided, causal=True).items():
        atol = 2e-3 if layout == "odd_rows" else 0  # another forward kernel saved its lse
        torch.testing.assert_close(gradient, contiguous[name], rtol=0, atol=atol)


@everywhere
def test_gradient_of_a_sum(device):
    """Autograd hands over one number expanded to dout's shape, all strides 0."""
    q, k, v = (torch.randn(1, 2, 40, 64, device=device).half() for _ in range(3))
    saved = saved_by_forward(q, k, v, causal=False)
    options = {"causal": False, "softmax_scale": 0.125, "launch": launcher(device)}
    expanded, whole = (
        attention_backward(dout, q, k, v, *saved, **options)
        for dout in (q.new_ones(()).expand(q.shape), torch.ones_like(q))
    )
    assert all(map(torch.equal, expanded, whole))


@everywhere
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(0, 40), (40, 0)])
def test_nothing_to_sum_gives_zero(device, seqlen_q, seqlen_k):
    q, dout = (torch.randn(1, 2, seqlen_q, 64, device=device).half() for _ in range(2))
    k, v = (torch.randn(1, 2, seqlen_k, 64, device=device).half() for _ in range(2))
    got = gradients({"q": q, "k": k, "v": v, "dout": dout}, causal=False)
    assert all(gradient.eq(0).all() for gradient in got.values())


@emulated
@pytest.mark.parametrize("head_dim", [64, 59, 128, 111])
def test_no_races_and_the_same_bits_in_any_order(head_dim):
    """Three key blocks hand dq on to each other, for heads of two groups."""
    params = case(num_heads=4, num_heads_kv=2, seqlen_q=70, seqlen_k=300, head_dim=head_dim)
    inputs = OP.inputs(params, "cpu")
    first = check(params, inputs, check_races=True)
    for seed in (1, 2):
        again = gradients(inputs, params.causal, seed=seed)
        assert all(torch.equal(first[name], again[name]) for name in GRADIENTS)


@on_gpu
@causal_or_not
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_same_bits_in_30_runs(device, head_dim, causal):
    """With more blocks than an H200 holds at once, and fewer heads, so that blocks do wait for each other."""
    params = case(batch=2, num_heads=6, seqlen=4096, head_dim=head_dim, causal=causal)
    inputs = OP.inputs(params, device)
    first = check(params, inputs)
    for _ in range(30):
        again = gradients(inputs, causal)
        assert all(torch.equal(first[name], again[name]) for name in GRADIENTS)


@on_gpu
@pytest.mark.parametrize("heads", [(2, 1), (10, 5)])
def test_long_chains_of_blocks(device, heads):
    check_case(device, batch=4, num_heads=heads[0], num_heads_kv=heads[1], seqlen=3000, causal=True)


@everywhere
def test_offsets_past_32_bits(device):
    inputs = sequences_far_apart(4, device)
    check(case(batch=2, seqlen=70), dict(zip(("q", "k", "v", "dout"), inputs, strict=True)))


@emulated
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles_meet_no_bank_conflicts(head_dim):
    inputs = OP.inputs(case(seqlen=128, num_heads=1, head_dim=head_dim), "cpu")
    (prepare, backward), _ = steps_and_gradients(backward_steps, inputs, causal=True)
    emulator.launch(prepare.kernel, prepare.grid, prepare.arguments)
    counts = emulator.count(backward.kernel, backward.grid, backward.arguments)
    shared = [c for c in counts if c.ideal_wavefronts]
    assert {c.instruction for c in shared} >= {"cp.async, to shared", "ldmatrix.x4", "ldmatrix.x4.trans", "st.shared"}
    assert [c for c in shared if c.wavefronts != c.ideal_wavefronts] == []


def test_head_dim_alignment_and_type_choose_among_all_kernels():
    chosen = set()
    for head_dim, dtype in itertools.product([8, 59, 64, 72, 111, 128], [torch.float16, torch.bfloat16]):
        dout, q, k, v, out, *into = (torch.zeros(1, 1, 1, head_dim, dtype=dtype) for _ in range(8))
        lse = torch.zeros(1, 1, 1)
        steps = backward_steps(Backward(dout, q, k, v, out, lse, *into, causal=True, softmax_scale=1.0))
        chosen.update(step.kernel for step in steps)
    assert chosen == set(BACKWARD)
