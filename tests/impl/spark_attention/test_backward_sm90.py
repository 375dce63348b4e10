"""The sm_90a backward against float64 through the gate, on the emulator and on a Hopper GPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from impl.cuda import emulator
from impl.spark_attention.kernels import sm90
from impl.spark_attention.kernels.backward import attention_backward
from impl.spark_attention.kernels.backward_sm90 import backward_steps, takes
from impl.spark_attention.kernels.call import Backward
from tests.impl.spark_attention.backends import LAYOUTS, emulated, sequences_far_apart
from tests.impl.spark_attention.distortions import DISTORTIONS
from tests.impl.spark_attention.gradients import GRADIENTS, MANY_TILES, OP, case, saved_by_forward, steps_and_gradients
from tests.impl.spark_attention.gradients import check as check_gradients
from tests.impl.spark_attention.gradients import gradients as gradients_of

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(
            torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
        ),
    ],
)
everywhere = pytest.mark.parametrize("device", [pytest.param("cpu", marks=emulated), GPU])
on_gpu = pytest.mark.parametrize("device", [GPU])
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
each_head_dim = pytest.mark.parametrize("head_dim", [64, 128])


def gradients(inputs, causal: bool, **options) -> dict[str, Tensor]:
    assert takes(*(inputs[name] for name in ("q", "k", "v")))
    return gradients_of(backward_steps, inputs, causal, **options)


def check(device, change=lambda inputs: inputs, **fields) -> dict[str, Tensor]:
    params = case(**fields)
    return check_gradients(backward_steps, params, change({**OP.inputs(params, device)}))


@everywhere
@causal_or_not
@each_head_dim
@pytest.mark.parametrize("seqlen", [65, 200])
def test_lengths_off_the_tile(device, seqlen, head_dim, causal):
    check(device, seqlen=seqlen, head_dim=head_dim, causal=causal, num_heads=1)


@everywhere
@causal_or_not
@pytest.mark.parametrize("seqlen", [1, 2, 31, 33, 63, 113, 127, 129])
def test_more_lengths_off_the_tile_of_several_heads(device, seqlen, causal):
    heads = 3 if seqlen > 2 else 32  # the largest error of a few rows of plain fp16 is a matter of luck
    check(device, seqlen=seqlen, num_heads=heads, causal=causal, head_dim=128 if seqlen % 4 == 1 else 64)


@everywhere
@each_head_dim
@pytest.mark.parametrize("lengths", MANY_TILES)
def test_many_tiles_and_what_is_left_over(device, lengths, head_dim):
    check(device, seqlen_q=lengths[0], seqlen_k=lengths[1], head_dim=head_dim, causal=True)


@everywhere
@pytest.mark.parametrize("lengths", [(2, 5), (5, 2), (260, 67), (67, 330)])
def test_causal_is_aligned_bottom_right(device, lengths):
    seqlen_q, seqlen_k = lengths
    dq = check(device, seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=True)["dq"]
    assert not dq[:, :, : max(seqlen_q - seqlen_k, 0)].any()


@everywhere
@each_head_dim
def test_one_token(device, head_dim):
    params = case(num_heads=1, seqlen=1, head_dim=head_dim)
    inputs = {name: 3 * tensor for name, tensor in OP.inputs(params, device).items()}
    got = gradients(inputs, causal=False)
    assert not got["dq"].any()
    assert not got["dk"].any()
    assert torch.equal(got["dv"], inputs["dout"])


@everywhere
@pytest.mark.parametrize("head_dim", [8, 40, 72, 80, 88, 96])
def test_head_dims_off_the_tile(device, head_dim):
    check(device, seqlen=70, head_dim=head_dim, causal=True)


@everywhere
@pytest.mark.parametrize("heads", [(4, 2), (4, 1), (6, 1)])
def test_grouped_heads_sum_their_gradients(device, heads):
    check(device, num_heads=heads[0], num_heads_kv=heads[1], seqlen=140, batch=2, causal=True)


@everywhere
@each_head_dim
def test_bfloat16(device, head_dim):
    check(device, seqlen=150, head_dim=head_dim, causal=True, dtype="bfloat16")


@everywhere
@pytest.mark.parametrize("distort", DISTORTIONS)
def test_inputs_far_from_normal(device, distort):
    check(device, lambda inputs: {name: distort(t) for name, t in inputs.items()}, seqlen=130, causal=True)


@everywhere
def test_large_activations_stay_finite(device):
    params = case(seqlen=130, causal=True)
    inputs = {name: t if name == "dout" else 1000 * t for name, t in OP.inputs(params, device).items()}
    assert all(gradient.isfinite().all() for gradient in gradients(inputs, params.causal).values())


@everywhere
def test_keys_past_the_end_have_no_probability(device):
    """Their score is 0, which against an lse of -196 would be an infinite one, times k = 0."""
    check(
        device,
        lambda inputs: inputs | {"q": torch.full_like(inputs["q"], 5.0), "k": torch.full_like(inputs["k"], -5.0)},
        seqlen=70,
    )


@everywhere
def test_sequences_do_not_interfere(device):
    def silence(inputs):
        for tensor in inputs.values():
            tensor[1] = 0
        return inputs

    assert not any(gradient[1].any() for gradient in check(device, silence, batch=2, seqlen=70).values())


@everywhere
@pytest.mark.parametrize("layout", ["qkv_unbind", "transposed", "gradient of a sum"])
def test_strided_inputs_equal_contiguous_ones(device, layout):
    tensors = LAYOUTS.get(layout, LAYOUTS["transposed"])(4, device=device)
    strided = dict(zip(("q", "k", "v", "dout"), tensors, strict=True))
    if layout == "gradient of a sum":
        strided["dout"] = strided["q"].new_ones(()).expand(strided["q"].shape)
    contiguous = gradients({name: t.contiguous() for name, t in strided.items()}, causal=True)
    for name, gradient in gradients(strided, causal=True).items():
        assert torch.equal(gradient, contiguous[name])


@on_gpu
@causal_or_not
@each_head_dim
@pytest.mark.parametrize("seqlen", [441, 1023, 1025, 2925, 4250])
def test_long_lengths_off_the_tile(device, seqlen, head_dim, causal):
    check(device, batch=2, num_heads=3, seqlen=seqlen, head_dim=head_dim, causal=causal)


@on_gpu
@pytest.mark.parametrize("lengths", [(2048, 1024), (1023, 1024)])
def test_causal_with_long_lengths(device, lengths):
    check(device, seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)


@on_gpu
@causal_or_not
@each_head_dim
def test_the_same_bits_in_30_runs(device, head_dim, causal):
    """With more blocks than an H200 holds at once, and fewer heads, so that blocks do wait for each other."""
    params = case(batch=2, num_heads=6, seqlen=4096, head_dim=head_dim, causal=causal)
    inputs = OP.inputs(params, device)
    first = check_gradients(backward_steps, params, inputs)
    for _ in range(30):
        again = gradients(inputs, causal)
        assert all(torch.equal(first[name], again[name]) for name in GRADIENTS)


@everywhere
def test_offsets_past_32_bits(device):
    names = ("q", "k", "v", "dout")
    check(device, lambda _: dict(zip(names, sequences_far_apart(4, device), strict=True)), batch=2, seqlen=70)


@emulated
@each_head_dim
def test_no_races_and_the_same_bits_in_any_order(head_dim):
    """Three key blocks hand dq on to each other, for heads of two groups."""
    params = case(num_heads=4, num_heads_kv=2, seqlen_q=70, seqlen_k=300, head_dim=head_dim)
    inputs = OP.inputs(params, "cpu")
    first = check_gradients(backward_steps, params, inputs, check_races=True)
    again = gradients(inputs, params.causal, seed=1)
    assert all(torch.equal(first[name], again[name]) for name in GRADIENTS)


@emulated
@each_head_dim
def test_tiles_meet_no_bank_conflicts(head_dim):
    inputs = OP.inputs(case(seqlen=128, num_heads=1, head_dim=head_dim), "cpu")
    (prepare, backward, _), _ = steps_and_gradients(backward_steps, inputs, causal=True)
    emulator.launch(prepare.kernel, prepare.grid, prepare.arguments)
    counts = emulator.count(backward.kernel, backward.grid, backward.arguments)
    shared = [c for c in counts if c.instruction in ("ld.shared", "st.shared") and c.bytes < 128]
    assert {c.instruction for c in shared} == {"ld.shared", "st.shared"}
    assert [c for c in shared if c.wavefronts != c.ideal_wavefronts] == []


def test_takes_only_what_the_copy_engine_can_load():
    good, odd = torch.zeros(2, 2, 8, 64, dtype=torch.half), torch.zeros(2, 2, 8, 60, dtype=torch.half)
    assert takes(good, good, good)
    assert not takes(odd, odd, odd)
    assert not takes(good, torch.zeros(2, 2, 8, 72, dtype=torch.half)[..., 1:65], good)


@emulated
@pytest.mark.parametrize(("head_dim", "arch"), [(64, "sm_90a"), (60, "sm_80")])
def test_the_sm_80_kernels_stand_in_where_the_copy_engine_cannot_load(head_dim, arch):
    q, k, v, dout = (torch.randn(1, 1, 20, head_dim).half() for _ in range(4))
    launched = []

    def launch(kernel, *call):
        launched.append(kernel.arch)
        emulator.launch(kernel, *call)

    saved = saved_by_forward(q, k, v, causal=True)
    options = {"causal": True, "softmax_scale": head_dim**-0.5}
    got = attention_backward(dout, q, k, v, *saved, **options, launch=launch, arch="sm_90a")
    expected = attention_backward(dout, q, k, v, *saved, **options, launch=emulator.launch, arch="sm_80")
    assert launched[1] == arch
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)


def test_head_dim_and_type_choose_among_all_kernels():
    chosen = set()
    for head_dim, dtype in itertools.product([8, 64, 72, 128], [torch.float16, torch.bfloat16]):
        dout, q, k, v, out, *into = (torch.zeros(1, 1, 1, head_dim, dtype=dtype) for _ in range(8))
        lse = torch.zeros(1, 1, 1)
        steps = backward_steps(Backward(dout, q, k, v, out, lse, *into, causal=True, softmax_scale=1.0))
        chosen.update(step.kernel for step in steps)
    assert chosen == set(sm90.BACKWARD)
