"""The op's surface: errors that say what is wrong, torch's own checks of a custom op, defaults."""

from __future__ import annotations

import pytest
import torch

from impl.spark_attention.api import spark_attention
from impl.spark_attention.kernels.forward import check_supported

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def tensors(q=(1, 2, 8, 16), k=(1, 2, 8, 16), v=None, dtype=torch.float16, device="cpu"):
    return [torch.randn(shape, device=device).to(dtype) for shape in (q, k, v or k)]


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (tensors((2, 8, 16)), {}, ValueError, r"q must be \[batch, heads, seqlen, head_dim\]"),
        (tensors(dtype=torch.float32), {}, TypeError, "q must be float16 or bfloat16, not torch.float32"),
        (tensors()[:2] + tensors(dtype=torch.bfloat16)[:1], {}, TypeError, "v is torch.bfloat16"),
        (tensors((1, 3, 8, 16)), {}, ValueError, r"query heads \(3\) must be a multiple of key-value heads \(2\)"),
        (tensors((1, 65536, 1, 1), (1, 1, 1, 1)), {}, ValueError, r"query heads \(65536\) must be at most 65535"),
        (tensors((1, 2, 8, 136), (1, 2, 8, 136)), {}, ValueError, "head_dim must be 1 to 128, not 136"),
        (tensors((1, 2, 8, 16), (2, 2, 8, 16)), {}, ValueError, "must agree in batch"),
        (tensors(v=(1, 2, 9, 16)), {}, ValueError, "must agree in batch"),
        ([t.mT for t in tensors((1, 2, 16, 8), (1, 2, 16, 8))], {}, ValueError, "q must have stride 1 along head_dim"),
        (tensors(), {"softmax_scale": 0.0}, ValueError, "softmax_scale must be positive and finite"),
        (tensors(), {"softmax_scale": float("nan")}, ValueError, "softmax_scale must be positive and finite"),
        (tensors(), {"kernel_arch": "sm_75"}, ValueError, "kernel_arch must be one of sm_70, sm_80, sm_90a"),
        (tensors(), {"mask": torch.ones(3, 8, dtype=torch.bool)}, ValueError, r"mask must broadcast to \[1, 2, 8, 8\]"),
        (tensors(), {"mask": torch.zeros(8, 8, requires_grad=True)}, ValueError, "it gets none"),
        (tensors(), {"mask": torch.ones(8, 8, dtype=torch.int32)}, TypeError, "mask must be boolean or floating point"),
        (tensors(), {"dropout_p": 1.0}, ValueError, "dropout_p must be at least 0 and below 1"),
        (tensors(), {"dropout_p": 0.1, "seed": torch.tensor(1.0)}, TypeError, "seed must be one int64"),
        (tensors(), {"dropout_p": 0.1, "seed": 1.5}, TypeError, "seed must be an integer of 64 bits"),
        (tensors(), {"dropout_p": 0.1, "seed": 2**63}, TypeError, "seed must be an integer of 64 bits"),
        (tensors(), {"accumulate": "fp64"}, ValueError, "accumulate must be 'fp32' or 'fp16'"),
        (tensors(dtype=torch.bfloat16), {"accumulate": "fp16"}, TypeError, "needs float16 inputs"),
        ([tensors()[0].numpy(), *tensors()[1:]], {}, TypeError, "q must be a tensor, not ndarray"),
        ([*tensors()[:2], None], {}, TypeError, "v must be a tensor, not NoneType"),
        ([tensors()[0].to_sparse(), *tensors()[1:]], {}, TypeError, "q must be a dense tensor, not torch.sparse_coo"),
        (tensors(), {"mask": [[True]]}, TypeError, "mask must be a tensor, not list"),
        (tensors(), {"mask": torch.ones(8, 8).to_sparse()}, TypeError, "mask must be a dense tensor"),
        (tensors(), {"causal": torch.ones(8, 8, dtype=torch.bool)}, TypeError, "causal must be True or False"),
        (tensors(), {"causal": "yes"}, TypeError, "causal must be True or False, not str"),
        (tensors(), {"softmax_scale": "0.1"}, TypeError, "softmax_scale must be a number, not str"),
        (tensors(), {"softmax_scale": torch.ones(2)}, TypeError, "softmax_scale must be a number, not Tensor"),
        (tensors(), {"softmax_scale": 1e39}, ValueError, "softmax_scale must be positive and finite in float32"),
        (tensors(), {"softmax_scale": 1e-60}, ValueError, "softmax_scale must be positive and finite in float32"),
        (tensors(), {"dropout_p": "0.1"}, TypeError, "dropout_p must be a number, not str"),
    ],
)
def test_bad_input_is_named(given, options, error, message):
    with pytest.raises(error, match=message):
        spark_attention(*given, **options)


@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        (torch.bfloat16, {"kernel_arch": "sm_70"}, "bfloat16 needs compute capability"),
        (torch.float16, {"kernel_arch": "sm_80", "accumulate": "fp16"}, "variant of the Volta kernel"),
        (torch.float16, {"dropout_p": 0.1, "accumulate": "fp16"}, "neither mask nor dropout"),
    ],
)
def test_a_cpu_refuses_what_the_kernels_do(dtype, options, message):
    with pytest.raises(ValueError, match=message):
        spark_attention(*tensors(dtype=dtype), **options)


def test_a_tangent_is_refused_and_not_lost():
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative; k has a tangent"):
        torch.func.jvp(lambda k: spark_attention(q, k, v), (k,), (k,))


def test_shapes_are_known_without_values():
    assert spark_attention(*(t.to("meta") for t in tensors())).shape == (1, 2, 8, 16)


def test_volta_has_no_bfloat16():
    with pytest.raises(ValueError, match="bfloat16 needs compute capability"):
        check_supported(torch.bfloat16, "fp32", "sm_70")


def test_fp16_accumulation_is_of_the_volta_kernel():
    with pytest.raises(ValueError, match="variant of the Volta kernel"):
        check_supported(torch.float16, "fp16", "sm_80")


@on_each_device
def test_passes_torchs_checks_of_a_custom_op(device):
    q, k, v = (t.requires_grad_() for t in tensors(device=device))
    mask, seed = torch.ones(1, 1, 8, 8, dtype=torch.bool, device=device), torch.tensor(3, device=device)
    for mask_and_seed, dropout_p in (((None, None), 0.0), ((mask, seed), 0.3)):
        arguments = (q, k, v, *mask_and_seed, True, 0.25, dropout_p, "fp32", None)
        torch.library.opcheck(torch.ops.voltabench.spark_attention_forward, arguments)


@on_each_device
def test_compiles_whole(device):
    q, k, v = tensors(device=device)
    backend = "inductor" if device == "cuda" else "eager"
    compiled = torch.compile(lambda *x: spark_attention(*x, causal=True) * 2, fullgraph=True, backend=backend)
    assert torch.equal(compiled(q, k, v), spark_attention(q, k, v, causal=True) * 2)


@on_each_device
def test_scale_defaults_to_the_true_head_dim(device):
    q, k, v = tensors((1, 2, 8, 40), (1, 2, 8, 40), device=device)
    assert torch.equal(spark_attention(q, k, v), spark_attention(q, k, v, softmax_scale=40**-0.5))
    assert not torch.equal(spark_attention(q, k, v), spark_attention(q, k, v, softmax_scale=64**-0.5))


@on_each_device
@pytest.mark.parametrize("shape", [(0, 2, 8, 16), (1, 2, 0, 16)])
def test_nothing_to_do(device, shape):
    q, k, v = tensors(shape, (shape[0], 2, 8, 16), device=device)
    assert spark_attention(q, k, v).shape == shape


@on_each_device
def test_no_keys_give_zero(device):
    q, k, v = tensors(k=(1, 2, 0, 16), device=device)
    out, lse = spark_attention(q, k, v, return_lse=True)
    assert not out.any()
    assert lse.eq(-torch.inf).all()


@on_each_device
def test_seeds(device):
    q, k, v = tensors((1, 2, 40, 16), (1, 2, 40, 16), device=device)
    by_number = spark_attention(q, k, v, dropout_p=0.5, seed=7)
    assert torch.equal(by_number, spark_attention(q, k, v, dropout_p=0.5, seed=torch.tensor(7, device=device)))
    assert not torch.equal(by_number, spark_attention(q, k, v, dropout_p=0.5, seed=8))
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        drawn += [spark_attention(q, k, v, dropout_p=0.5) for _ in range(2)]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


@on_each_device
def test_masks_of_other_types_and_strides(device):
    q, k, v = tensors((2, 2, 8, 16), (2, 2, 8, 16), device=device)
    added = torch.randn(2, 1, 8, 8, device=device)
    expected = spark_attention(q, k, v, mask=added)
    assert torch.equal(expected, spark_attention(q, k, v, mask=added.double()))
    assert torch.equal(expected, spark_attention(q, k, v, mask=added.mT.contiguous().mT))
    column = torch.tensor([[True]] * 7 + [[False]], device=device)
    assert not spark_attention(q, k, v, mask=column)[:, :, 7].any()


@on_each_device
def test_autocast_casts_the_inputs(device):
    q, k, v = (t.float().requires_grad_() for t in tensors(device=device))
    with torch.autocast(device, torch.bfloat16):
        out = spark_attention(q, k, v)
    assert torch.equal(out, spark_attention(*(t.bfloat16() for t in (q, k, v))))
    out.sum().backward()
    assert q.grad.dtype == torch.float32


@on_each_device
def test_autocast_does_not_make_numbers_of_indices(device):
    q, k, v = tensors(device=device)
    with torch.autocast(device, torch.bfloat16), pytest.raises(TypeError, match="k must be float16 or bfloat16"):
        spark_attention(q, k.long(), v)


@on_each_device
def test_dropout_and_mask_compile_with_their_backward(device):
    q, k, v = (t.requires_grad_() for t in tensors(device=device))
    mask = torch.ones(8, 8, dtype=torch.bool, device=device).tril()

    def loss(q, k, v):
        return spark_attention(q, k, v, mask=mask, dropout_p=0.3, seed=5).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    expected, got = (torch.autograd.grad(f(q, k, v), (q, k, v)) for f in (loss, compiled))
    assert all(map(torch.equal, expected, got))


@pytest.mark.gpu
@pytest.mark.parametrize("arch", [None, "sm_80"])
def test_a_training_step_is_captured_by_a_cuda_graph(arch):
    """Forward and backward without a look at the host; dropout draws anew at each replay."""
    q, k, v = (t.requires_grad_() for t in tensors((2, 4, 130, 64), (2, 4, 130, 64), device="cuda"))
    mask = torch.rand(130, 130, device="cuda") < 0.9
    dropout_p = 0.0 if arch is None else 0.2
    given = {"kernel_arch": arch, "dropout_p": dropout_p, "mask": mask if dropout_p else None}

    def step():
        out = spark_attention(q, k, v, **given)
        return out.detach(), *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    graph.replay()
    first = [t.clone() for t in outputs]
    graph.replay()
    assert all(t.isfinite().all() for t in outputs)
    assert torch.equal(outputs[0], first[0]) == (dropout_p == 0)
    if not dropout_p:
        assert all(map(torch.equal, first, step()))


@pytest.mark.gpu
def test_captured_by_a_cuda_graph():
    q, k, v = tensors((2, 4, 130, 64), (2, 4, 130, 64), device="cuda")
    spark_attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = spark_attention(q, k, v)
    q.copy_(torch.randn_like(q))
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, spark_attention(q, k, v))


@pytest.mark.gpu
def test_runs_on_the_current_stream():
    q, k, v = tensors((4, 8, 2048, 64), (4, 8, 2048, 64), device="cuda")
    expected = spark_attention(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(q)
        torch.cuda._sleep(50_000_000)
        late.copy_(q)
        out = spark_attention(late, k, v)
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.gpu
def test_more_sequences_than_a_grid_has():
    q, k, v = tensors((70_000, 1, 3, 8), (70_000, 1, 3, 8), device="cuda")
    part = slice(65_000, 66_000)
    assert torch.equal(spark_attention(q, k, v)[part], spark_attention(q[part], k[part], v[part]))
    for arch in (None, "sm_70", "sm_80"):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        whole = torch.autograd.grad(spark_attention(*leaves, kernel_arch=arch).sum(), leaves)
        alone = [t.detach()[part].requires_grad_() for t in (q, k, v)]
        some = torch.autograd.grad(spark_attention(*alone, kernel_arch=arch).sum(), alone)
        assert all(torch.equal(a[part], b) for a, b in zip(whole, some, strict=True))
