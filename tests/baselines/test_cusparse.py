"""The binding of cuSPARSE and the choice between its algorithms: the library on a GPU, a stand-in on a CPU."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from baselines.spmm import _cusparse, cusparse_csr
from baselines.spmm._cusparse import ALGORITHMS, NOT_SUPPORTED, CsrProduct, CusparseError, to_csr
from harness.contender import Target, Unsupported
from harness.ops import OPS
from harness.verify import max_error, ulp_of_max
from tests.baselines.gating import through_the_gate

CONTENDER = cusparse_csr.CusparseCsr()
SHAPES = {  # m, k, n, sparsity
    "odd": (127, 65, 3, 0.8),
    "wide": (384, 640, 33, 0.5),
    "one column": (33, 70, 1, 0.6),
    "zero": (64, 96, 8, 1.0),
}
TRIALS = ["ALG1 float16", "ALG1 float32", "ALG2 float16", "ALG2 float32"]  # that the stand-in takes

each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
each_output = pytest.mark.parametrize("output", [torch.float16, torch.float32], ids=str)


def case(shape, device="cpu", dtype="float16"):
    m, k, n, sparsity = shape
    seed = int(torch.randint(2**31, ()))
    params = OPS["spmm"].Params(m=m, k=k, n=n, sparsity=sparsity, dtype=dtype, seed=seed)
    return params, OPS["spmm"].inputs(params, device)


def operands(shape, device="cpu"):
    """w, x, and their product in float64."""
    _, inputs = case(shape, device)
    return inputs["w"], inputs["x"], inputs["w"].double() @ inputs["x"].double()


def nan(reference, dtype):
    return torch.full_like(reference, torch.nan, dtype=dtype)


@pytest.fixture
def forget():
    """Nothing of a stand-in outlives its test."""
    yield
    gc.collect()
    _cusparse.library.cache_clear()
    _cusparse._handle.cache_clear()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    made = tmp_path_factory.mktemp("cusparse") / "fake.so"
    source = Path(__file__).with_name("fake_cusparse.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


@pytest.fixture
def fake(compiled, forget, monkeypatch) -> ctypes.CDLL:
    """The stand-in in cuSPARSE's place; the current stream is number 77."""
    _cusparse.library.cache_clear()
    _cusparse._handle.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_cusparse, "LIBRARY", str(compiled))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    return ctypes.CDLL(str(compiled))


def test_csr_gives_the_matrix_back():
    w = OPS["spmm"].inputs(OPS["spmm"].Params(m=19, k=23, n=1, sparsity=0.7), "cpu")["w"]
    offsets, columns, values = to_csr(w)
    assert (offsets.dtype, columns.dtype, values.dtype) == (torch.int32, torch.int32, torch.float16)
    assert torch.equal(torch.sparse_csr_tensor(offsets, columns, values, w.shape).to_dense(), w)
    assert len(values) == w.count_nonzero()


def test_csr_of_zeros_keeps_one():
    offsets, columns, values = to_csr(torch.zeros(3, 5))
    assert (offsets.tolist(), columns.tolist(), values.tolist()) == ([0, 1, 1, 1], [0], [0.0])


@pytest.mark.parametrize(
    ("cuda", "reason"), [(None, "this PyTorch is built without CUDA"), ("13.0", r"libcusparse\.so\.999: .+")]
)
def test_without_the_library_it_says_what_to_install(cuda, reason, forget, monkeypatch):
    _cusparse.library.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(_cusparse, "LIBRARY", "libcusparse.so.999")
    params, inputs = case(SHAPES["odd"])
    with pytest.raises(Unsupported, match=rf"^no cuSPARSE to call \({reason}\); install a PyTorch built for CUDA"):
        CONTENDER.prepare(params, inputs, Target("cuda", "NVIDIA H200", (9, 0)))


@each_shape
@each_output
def test_arguments_arrive(shape, output, fake):
    w, x, reference = operands(shape)
    y = nan(reference, output)
    product = CsrProduct(to_csr(w), x, y, "ALG2")
    product()
    assert max_error(y, reference) <= ulp_of_max(reference, torch.float16) / 2 + 1e-4
    assert ctypes.c_void_p.in_dll(fake, "stream").value == 77


def test_each_call_asks_for_the_current_stream(fake, monkeypatch):
    w, x, reference = operands(SHAPES["odd"])
    product = CsrProduct(to_csr(w), x, nan(reference, torch.float32), "ALG1")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=2**40))
    product()
    assert ctypes.c_void_p.in_dll(fake, "stream").value == 2**40


def test_descriptors_die_with_the_product(fake):
    w, x, reference = operands(SHAPES["odd"])
    live = ctypes.c_int.in_dll(fake, "live_descriptors")
    before = live.value
    product = CsrProduct(to_csr(w), x, nan(reference, torch.float32), "ALG1")
    assert live.value == before + 3
    del product
    assert live.value == before


def test_a_status_is_raised_with_its_name(fake):
    w, x, reference = operands(SHAPES["odd"])
    with pytest.raises(CusparseError, match=r"^cusparseSpMM_bufferSize: CUSPARSE_STATUS_NOT_SUPPORTED$") as caught:
        CsrProduct(to_csr(w), x, nan(reference, torch.float32), "ALG3")
    assert caught.value.status == NOT_SUPPORTED
    with pytest.raises(CusparseError, match="INVALID_VALUE"):
        CsrProduct(to_csr(w), x, nan(reference[1:], torch.float32), "ALG1")


def choose(shape, monkeypatch, fastest=None, dtype="float16"):
    """The choice where trial `fastest` takes 0.1 ms and the others 1 ms, and its error in ulps of float16."""
    times = iter([0.1 if trial == fastest else 1.0 for trial in TRIALS])
    monkeypatch.setattr(cusparse_csr, "milliseconds", lambda run: next(times))
    params, inputs = case(shape, dtype=dtype)
    run, tuning = cusparse_csr._fastest_accurate(params, inputs, to_csr(inputs["w"]))
    y, reference = run()["y"], inputs["w"].double() @ inputs["x"].double()
    assert y.dtype == inputs["x"].dtype
    return tuning, max_error(y, reference) / ulp_of_max(reference, torch.float16)


@pytest.mark.parametrize("fastest", TRIALS)
def test_the_fastest_accurate_is_chosen(fastest, fake, monkeypatch):
    tuning, error = choose((96, 640, 33, 0.5), monkeypatch, fastest)
    tried = tuning.pop("tried")
    assert [tried[trial]["accurate"] for trial in TRIALS] == [False, True, True, True]
    assert tried["ALG3 float16"] == tried["ALG3 float32"] == "CUSPARSE_STATUS_NOT_SUPPORTED"
    algorithm, output = (fastest if tried[fastest]["accurate"] else "ALG1 float32").split()
    assert tuning == {"algorithm": algorithm, "output": output, "preprocess": True}
    assert error <= 0.51


def test_the_gate_judges_where_none_is_accurate(fake, monkeypatch):
    monkeypatch.setattr(cusparse_csr, "_ACCURATE", 0)
    tuning, _ = choose((96, 640, 33, 0.5), monkeypatch, "ALG2 float16")
    assert (tuning["algorithm"], tuning["output"]) == ("ALG2", "float16")
    assert not any(trial["accurate"] for trial in tuning["tried"].values() if isinstance(trial, dict))


def test_float32_is_tried_once_per_algorithm(fake, monkeypatch):
    tuning, _ = choose(SHAPES["odd"], monkeypatch, dtype="float32")
    assert list(tuning["tried"]) == ["ALG1 float32", "ALG2 float32", "ALG3 float32"]


def test_refused_by_all_is_unsupported(fake, monkeypatch):
    monkeypatch.setattr(cusparse_csr, "ALGORITHMS", ["ALG3"])
    with pytest.raises(Unsupported, match=r"use cublas$"):
        choose(SHAPES["odd"], monkeypatch)


@pytest.mark.gpu
@each_shape
@each_output
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_against_float64_and_in_a_graph(shape, output, algorithm, gpu):
    w, x, reference = operands(shape, "cuda")
    y = nan(reference, output)
    try:
        product = CsrProduct(to_csr(w), x, y, algorithm)
    except CusparseError as error:
        if error.status != NOT_SUPPORTED:
            raise
        pytest.skip(str(error))
    torch.cuda.synchronize()
    magnitude = float((w.double().abs() @ x.double().abs()).max())
    # Products of halves are exact in float32. A half is rounded once for each partial sum that meets in it.
    allowed = 1e-6 * magnitude if output == torch.float32 else 4 * ulp_of_max(reference, output)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        product()
        eager = y.clone()
        with torch.cuda.graph(graph, stream=stream):
            product()
        y.fill_(torch.nan)
        graph.replay()
    stream.synchronize()
    assert max_error(eager, reference) <= allowed
    assert max_error(y, reference) <= allowed


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@each_shape
def test_the_chosen_passes_the_gate(shape, dtype, gpu):
    params, _ = case(shape, "cuda", dtype)
    if reason := CONTENDER.refusal(params, gpu):
        pytest.skip(reason[1])
    prepared, verdict = through_the_gate(CONTENDER, params, gpu)
    assert verdict.passed, (verdict.reason, prepared.tuning)
    assert prepared.tuning["algorithm"] in ALGORITHMS
