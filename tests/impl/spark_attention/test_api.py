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
        (tensors((1, 2, 8, 136), (1, 2, 8, 136)), {}, ValueError, "head_dim must be 1 to 128, not 136"),
        (tensors((1, 2, 8, 16), (2, 2, 8, 16)), {}, ValueError, "must agree in batch"),
        (tensors(v=(1, 2, 9, 16)), {}, ValueError, "must agree in batch"),
        ([t.mT for t in tensors((1, 2, 16, 8), (1, 2, 16, 8))], {}, ValueError, "q must have stride 1 along head_dim"),
        (tensors(), {"softmax_scale": 0.0}, ValueError, "softmax_scale must be positive and finite"),
        (tensors(), {"softmax_scale": float("nan")}, ValueError, "softmax_scale must be positive and finite"),
        (tensors(), {"kernel_arch": "sm_75"}, ValueError, "kernel_arch must be one of sm_70, sm_80, sm_90a"),
        (tensors(), {"accumulate": "fp64"}, ValueError, "accumulate must be 'fp32' or 'fp16'"),
        (tensors(dtype=torch.bfloat16), {"accumulate": "fp16"}, TypeError, "needs float16 inputs"),
    ],
)
def test_bad_input_is_named(given, options, error, message):
    with pytest.raises(error, match=message):
        spark_attention(*given, **options)


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
