"""What decoding contenders refuse by arithmetic, and what compressed weights take."""

from __future__ import annotations

import json

import pytest
import torch

from harness.config import parse_config
from harness.contender import Target, Unsupported, discover
from harness.ops import OPS
from tests.harness.test_bench import measure

STEPS = discover()["decode_step"]
OP = OPS["decode_step"]
H200 = Target("cuda", "NVIDIA H200", (9, 0), 150_100_000_000)
V100 = Target("cuda", "Tesla V100", (7, 0), 34_000_000_000)


def refusal(name, target, model, batch=8, **fields):
    return STEPS[name].refusal(OP.Params(model=model, batch=batch, sparsity=0.8, **fields), target)


def test_opt_175b_fits_one_gpu_as_a_bitmap_only():
    assert refusal("flash_llm_bitmap", H200, "opt_175b") is None
    assert refusal("flash_llm_bitmap", H200, "opt_175b", batch=16, new_tokens=192) is None
    status, reason = refusal("pytorch_fp16", H200, "opt_175b")
    assert status == "unsupported"
    assert "348 of pruned matrices, 22 of key-value cache; NVIDIA H200 has 150: at least 3 of them" in reason
    assert "cache" in refusal("flash_llm_bitmap", H200, "opt_175b", batch=64)[1]


@pytest.mark.parametrize("name", STEPS)
def test_nothing_is_refused_where_the_memory_is_not_known(name):
    gpu = Target("cuda", "a GPU", (9, 0))
    assert refusal(name, gpu, "opt_175b") is None
    assert refusal(name, Target("cpu", "a CPU"), "opt_175b") is None


def test_limits_of_the_formats():
    assert "sm_80 or newer" in refusal("flash_llm_bitmap", V100, "opt_6_7b")[1]
    assert refusal("flash_llm_tiled_csl", V100, "opt_6_7b") is None
    case = OP.Params(model="tiny_opt", batch=129, prompt=1, new_tokens=1, sparsity=0.8)
    with pytest.raises(Unsupported, match="multiplies densely from 129 rows of x on; use a smaller batch"):
        STEPS["flash_llm_tiled_csl"].prepare(case, OP.inputs(case, "cpu"), Target("cpu", "a CPU"))


@pytest.mark.parametrize("name", ["flash_llm_bitmap", "flash_llm_tiled_csl", "flash_llm_two_of_four"])
@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9])
def test_the_arithmetic_is_near_what_is_stored(name, sparsity):
    step = STEPS[name]
    shape = (256, 1024)
    w = torch.randn(shape).half() * (torch.rand(shape) >= sparsity)
    stored = step.product(w, torch.zeros(256).half()).weight.nbytes
    assert step.stored_bytes(w.numel(), sparsity) == pytest.approx(stored, rel=0.03)


def test_a_record_has_tokens_parts_and_memory():
    case = {"model": "tiny_opt", "batch": 4, "prompt": 6, "new_tokens": 9, "sparsity": 0.8}
    names = list(STEPS)
    experiment = {"op": "decode_step", "question": "q", "baseline": "pytorch_fp16", "contenders": names}
    panels = [{"name": "p", "title": "p", "each": case}]
    quick = {"warmup_s": 0, "min_samples": 3, "rounds": 2, "min_time_s": 0.005, "max_time_s": 0.05}
    raw = {"run": "t", "device": "cpu", "measure": quick, "experiments": {"e": {**experiment, "panels": panels}}}
    for name, cell in measure(parse_config(raw, "test"), names).items():
        record = cell.record
        assert record.status == "ok", record.reason
        assert record.tokens_per_gpu_s == pytest.approx(4 / record.cold_median_s)
        assert (record.tokens, record.prompt, record.new_tokens, record.seqlen_k) == (4, 6, 9, 15)
        assert (record.model, record.layers, record.batch, record.sparsity) == ("tiny_opt", 2, 4, 0.8)
        shares = json.loads(record.parts)
        assert set(shares) == {"products", "attention", "output"}
        assert all(share > 0 for share in shares.values())
        weights = record.resident_bytes - OP.Params(**case).cache_bytes
        assert (weights < 2 * record.parameters) == (record.role == "ours")
        assert (record.format_bytes is not None) == (record.role == "ours"), name
