"""Every contender in the repository, found by itself: right through the gate, or a reason that says what to do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from harness.contender import Target, Unsupported, discover
from harness.ops import OPS
from harness.paths import ROOT
from tests.baselines.gating import CASES, CPU, inputs_of, judge, through_the_gate

CONTENDERS = [(op, name) for op, by_name in sorted(discover().items()) for name in sorted(by_name)]
VOLTA = Target("cuda", "Tesla V100-SXM2-16GB", (7, 0), 16 * 2**30)
HOPPER = Target("cuda", "NVIDIA H200", (9, 0), 141 * 2**30)
ADVICE = re.compile(r"\b(use|install|choose|runs? on|pad|build|measure|takes|needs|holds|at most)\b")
# Accumulating in fp16 is this variant's point: its error may pass the gate's limit, and its record then says so.
MAY_BE_INCORRECT = {"spark_attention_fp16acc"}
# Faults of libraries that the gate finds, seen on an H200 (torch 2.11): such a row is `incorrect`, whatever we wish.
KNOWN_FAULTS = {
    ("sdpa_cudnn", "rows that see no key are not 0"): lambda p: p.causal and p.seqlen_q > p.seqlen_k,
    ("xformers", "rows that see no key are not 0"): lambda p: p.causal and p.seqlen_q > p.seqlen_k,
    ("sdpa_flash", "one key: dk is a rounding error, not 0"): lambda p: p.direction == "backward" and p.seqlen_k == 1,
}

each_contender = pytest.mark.parametrize(("op", "name"), CONTENDERS)


def params_of(op: str) -> list:
    return [OPS[op].Params(**fields) for fields in CASES[op]]


def excused(name: str, params) -> bool:
    """Whether the gate is known to fail on this case through no fault of the harness."""
    return name in MAY_BE_INCORRECT or any(
        who == name and applies(params) for (who, _), applies in KNOWN_FAULTS.items()
    )


def advises(op: str, reason: str) -> bool:
    """Whether a reason says what to do or what would be right: in a verb, or by naming another contender."""
    return bool(ADVICE.search(reason)) or any(re.search(rf"\b{name}\b", reason) for name in discover()[op])


def test_every_contender_the_project_promises_is_there():
    promised = {
        "attention": {
            *("unfused_fp16", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math", "xformers", "flash_attn"),
            *("flash_attn_3", "flash_attn_4", "flex_attention", "copy", "naive", "spark_attention"),
        },
        "spmm": {
            "cublas",
            "cusparse_csr",
            "semi_structured",
            "sputnik",
            "sparta",
            "triton_bsr",
            "copy",
            "naive",
            "flash_llm_tiled_csl",
            "flash_llm_bitmap",
            "flash_llm_two_of_four",
        },
        "training_step": {
            *("unfused_fp16", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math", "spark_attention"),
        },
        "sparse_training_step": {
            *("dense", "dense_map", "dense_monitor", "dense_flash", "sat", "sat_dense_phase", "sat_csr", "window"),
            *("bigbird", "linformer", "performer", "nystromformer"),
        },
        "decode_step": {"pytorch_fp16", "flash_llm_tiled_csl", "flash_llm_bitmap", "flash_llm_two_of_four"},
        "block_sparse_attention": {
            *("flex_attention", "sdpa_masked", "sdpa_dense_cudnn", "sdpa_dense_flash", "sat_block_sparse"),
            *("copy", "naive", "spark_attention_dense"),
        },
    }
    for op, names in promised.items():
        assert names <= set(discover()[op])


@each_contender
def test_says_what_it_is(op, name):
    contender = discover()[op][name]
    assert contender.role in ("ours", "baseline", "control")
    for text in (contender.label, contender.summary, contender.source):
        assert text
        assert "\n" not in text
    assert all((ROOT / source).exists() for source in contender.sources)
    assert len(contender.code_hash()) == 16


@each_contender
def test_runs_right_on_the_cpu_or_says_why_not(op, name):
    contender = discover()[op][name]
    ran = 0
    for params in params_of(op):
        refusal = contender.refusal(params, CPU)
        if refusal:
            assert advises(op, refusal[1]), refusal
            continue
        prepared, verdict = through_the_gate(contender, params, CPU)
        assert verdict.passed or excused(name, params), f"{params.slug()}: {verdict.reason}"
        assert prepared.backend in ("reference", "emulated", "library"), "no kernel runs on a CPU"
        ran += 1
    assert ran or contender.unavailable(CPU), "an available contender runs at least one of the cases"


@each_contender
@pytest.mark.parametrize("target", [VOLTA, HOPPER], ids=["volta", "hopper"])
def test_refuses_with_advice_for_gpus_it_has_never_seen(op, name, target):
    """Asked on any machine: the answer needs the target's description only."""
    contender = discover()[op][name]
    for params in params_of(op):
        refusal = contender.refusal(params, target)
        if refusal:
            status, reason = refusal
            assert status in ("unavailable", "unsupported")
            assert advises(op, reason), reason
            assert "\n" not in reason


@each_contender
def test_bfloat16_is_refused_before_sm_80(op, name):
    params = params_of(op)[0].model_copy(update={"dtype": "bfloat16"})
    assert discover()[op][name].refusal(params, VOLTA) is not None


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_cudnn"])
def test_what_volta_lacks_is_unsupported(name):
    status, reason = discover()["attention"][name].refusal(params_of("attention")[0], VOLTA)
    assert status == "unsupported"
    assert "8.0" in reason
    assert "7.0" in reason


@pytest.mark.parametrize("pattern", ["random", "2:4"])
def test_two_of_four_needs_its_pattern_and_its_gpu(pattern):
    contender = discover()["spmm"]["semi_structured"]
    params = OPS["spmm"].Params(m=128, k=128, n=8, sparsity=0.5, pattern=pattern)
    assert contender.refusal(params, VOLTA)[0] == "unsupported"
    assert (contender.refusal(params, HOPPER) is None) == (pattern == "2:4")


def test_planning_executes_no_torch():
    code = (
        "import sys\n"
        "import harness.config\n"
        "from harness.contender import discover\n"
        "from harness.ops import OPS\n"
        "assert discover()\n"
        "op = OPS['block_sparse_attention']\n"
        "case = op.Params(batch=1, num_heads=1, seqlen=64, head_dim=8, block=32, density=0.5)\n"
        "op.flops(case), op.bytes_floor(case), op.peak_bytes_estimate(case), op.columns(case), case.slug()\n"
        "print([name for name in sys.modules if name.startswith('torch.')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.gpu
@each_contender
def test_runs_right_on_the_gpu_or_says_why_not(op, name, gpu):
    contender = discover()[op][name]
    failures, ran = [], 0
    for params in params_of(op):
        refusal = contender.refusal(params, gpu)
        if refusal:
            assert advises(op, refusal[1]), refusal
            continue
        try:
            _, verdict = through_the_gate(contender, params, gpu)
        except Unsupported as refused:
            if not advises(op, str(refused)):
                failures.append(f"{params.slug()}: no advice in: {refused}")
            continue
        except Exception as error:
            failures.append(f"{params.slug()}: {type(error).__name__}: {error}")
            continue
        ran += 1
        if not verdict.passed and not excused(name, params):
            failures.append(f"{params.slug()}: {verdict.reason}")
    assert not failures, "\n".join(failures)
    assert ran or contender.unavailable(gpu)


@pytest.mark.gpu
@each_contender
def test_replays_in_a_graph_when_it_says_so(op, name, gpu):
    contender = discover()[op][name]
    runnable = [params for params in params_of(op) if contender.refusal(params, gpu) is None]
    if not runnable:
        pytest.skip("nothing of it runs here")
    for params in {getattr(p, "direction", p.dtype): p for p in runnable}.values():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        inputs = inputs_of(op, params, "cuda")
        with torch.cuda.stream(stream):
            try:
                prepared = contender.prepare(params, inputs, gpu)
            except Unsupported:
                continue
            if not prepared.graphable:
                continue
            prepared.run()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                outputs = prepared.run()
            for tensor in outputs.values():
                tensor.fill_(float("nan"))
            graph.replay()
        stream.synchronize()
        verdict = judge(contender, params, prepared, outputs, "cuda")
        assert verdict.passed or excused(name, params), f"{params.slug()}: {verdict.reason}"
