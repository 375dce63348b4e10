"""From instructions to clocks and TFLOP/s, on cases counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from harness.ops import OPS
from impl.cuda.model import estimate as module
from impl.cuda.model.estimate import demand_of, estimate, launch_tflops, steps_of
from impl.cuda.model.gpu import H200, V100
from impl.cuda.model.modelled import Modelled, all_modelled
from impl.cuda.model.simulate import Timing
from impl.cuda.report import all_kernels


@pytest.fixture
def step(instruction):
    """step(gpu, traffic, opcode, ...): an instruction as the simulation takes it."""
    return lambda gpu, traffic, *made, **fields: steps_of([instruction(*made, **fields)], gpu, traffic)[0]


@pytest.mark.parametrize(
    ("opcode", "pipe", "service"),
    [
        ("HMMA.884.F32.F32.STEP0", "tensor", 2),
        ("HMMA.884.F16.F16.STEP0", "tensor", 4),
        ("FFMA.FTZ", "fma", 2),
        ("IMAD.MOV.U32", "fma", 2),
        ("LOP3.LUT", "alu", 2),
        ("MUFU.EX2", "transcendental", 8),
        ("F2F.F16.F32", "transcendental", 8),
        ("LDS.U.128", "shared", 4),
        ("LDS.64", "shared", 2),
        ("STS.U16", "shared", 1),
        ("SHFL.BFLY", "shared", 1),
        ("LDSM.16.MT88.4", "shared", 4),
    ],
)
def test_pipes_of_a_v100(step, opcode, pipe, service):
    made = step(V100, {}, opcode)
    assert (made.pipe, made.service) == (pipe, service)


def test_what_the_emulator_counted_takes_the_place_of_the_ideal(step):
    conflicts = {("ld.shared", 16): 6.5, ("st.shared", 4): 2.0, ("ldmatrix.x4.trans", 16): 8.0}
    assert step(V100, conflicts, "LDS.U.128").service == 6.5
    assert step(V100, conflicts, "STS").service == 2
    assert step(V100, conflicts, "LDSM.16.MT88.4").service == 8
    assert step(V100, conflicts, "LDSM.16.M88.4").service == 4
    assert step(V100, {("ld.global", 16): 1024.0}, "LDG.E.128").transfer == 1024 / V100.l2_bytes_per_clock
    assert step(V100, {}, "LDG.E.128").transfer == 512 / V100.l2_bytes_per_clock


def test_an_instruction_that_is_never_executed_takes_its_slot_only(step):
    made = step(H200, {}, "LDS", "RZ, [RZ]", predicate="!PT")
    assert (made.pipe, made.latency) == ("branch", 0)


def test_a_group_of_copies_ends_with_its_last(instruction):
    path = [
        instruction("LDGSTS.E.BYPASS.128", "[R1], desc[UR8][R2.64]"),
        instruction("LDGSTS.E.BYPASS.128", "[R1], desc[UR8][R2.64]"),
        instruction("LDGDEPBAR", write=0),
        instruction("FMUL", "R4, R5, R6"),
        instruction("DEPBAR.LE", "SB0, 0x0"),
    ]
    first, last, group, _, wait = steps_of(path, H200, {})
    assert (first.write_barrier, last.write_barrier, group.write_barrier) == (None, 0, None)
    assert (last.transfer, last.copied) == (512 / H200.l2_bytes_per_clock, 4)
    assert wait.waits == (0,)


def test_demand(instruction):
    path = [
        instruction("HMMA.16816.F32", "R8, R4, R12, R8"),
        instruction("LDSM.16.M88.4", "R4, [R3]"),
        instruction("LDGSTS.E.128", "[R1], desc[UR8][R2.64]"),
        instruction("MUFU.EX2", "R2, R3"),
    ]
    demand = demand_of(steps_of(path, H200, {}))
    assert demand["issue"] == 4
    assert demand["tensor"] == 4 / 0.629
    assert demand["shared"] == 4 * 4 + 4 * 4, "ldmatrix, and what the copy writes"
    assert demand["global"] == 4 * 4
    assert demand["L2"] == pytest.approx(4 * 512 / 27)
    assert demand["transcendental"] == 8
    assert demand["registers"] == 5 + 1 + 2 + 1


@pytest.fixture
def estimated(monkeypatch, planted):
    """estimated(path, clocks): the estimate of a kernel with that pass on a V100, as if it took so many clocks."""

    def make(path, clocks):
        monkeypatch.setattr(module, "disassemble", lambda code: path)
        monkeypatch.setattr(module, "main_path", lambda instructions, flops: instructions)
        monkeypatch.setattr(module, "simulate", lambda *_: Timing(clocks, {"issued": 0.6, "tensor result": 0.4}))
        return estimate(Modelled({"op": "attention"}, planted(1), len(path) * 512), V100, {})

    return make


def test_a_busy_tensor_core_is_the_peak_of_the_card(estimated, instruction):
    """125 TFLOP/s: 80 SMs, 1530 MHz, 512 multiply-adds a clock."""
    path = [instruction("HMMA.884.F32.F32.STEP0", "R8, R4.ROW, R6.COL, R8")] * 100
    found = estimated(path, 200.0)
    assert found.bound_tflops == pytest.approx(80 * 1530e6 * 512 * 2 / 1e12)
    assert found.model_tflops == found.bound_tflops
    assert (found.bound_by, found.binding, found.waits) == ("tensor", "tensor", "tensor result")
    slow = estimated(path, 400.0)
    assert slow.model_tflops == found.model_tflops / 2
    assert (slow.bound_by, slow.binding) == ("tensor", "latency")
    assert estimated(path, 200 / 0.86).binding == "tensor"


def test_a_launch_is_waves_of_blocks_with_a_beginning_and_an_end(estimated, instruction, planted):
    found = estimated([instruction("HMMA.884.F32.F32.STEP0", "R8, R4.ROW, R6.COL, R8")] * 100, 400.0)
    found = dataclasses.replace(found, blocks_per_sm=2, warps_per_scheduler=2.0, ends_clocks=800.0)

    def launched(blocks, passes):
        modelled = Modelled({}, planted(1), 51200, lambda case: (case["blocks"], passes))
        return launch_tflops(found, modelled, V100, {"blocks": blocks})

    a_pass = 4 * 51200 * 160 / (400.0 * 2) * 1530e6 / 1e12  # of four warps in each of 160 blocks
    assert launched(160, 9) == pytest.approx(a_pass * 9 / 10), "ends take as long as a pass"
    assert launched(80, 9) == pytest.approx(launched(160, 9) / 2), "half of the places are empty"
    assert launched(161, 9) == pytest.approx(launched(160, 9) * 161 / 320), "one block more is a wave more"
    assert launched(160, 10**6) == pytest.approx(a_pass, rel=1e-5)


def test_work_of_a_launch_is_that_of_the_op():
    op, modelled = OPS["attention"], [m for m in all_modelled() if m.case["op"] == "attention"]
    for m in modelled:
        sizes = {"seqlen": 1024, "batch": 2, "num_heads": 4, "num_heads_kv": 2}
        params = op.Params.model_validate({**sizes, "direction": m.case["direction"], "head_dim": m.case["head_dim"]})
        blocks, passes = m.grid({"seqlen_q": 1024, "seqlen_k": 1024, **sizes})
        executed = {"dq": 3 / 5, "dkdv": 4 / 5}.get(m.kernel.name.split("_")[3], 1)
        assert blocks * passes * m.kernel.threads // 32 * m.tensor_flops == executed * op.flops(params)


def test_what_is_modelled_is_what_is_built():
    kernels = set(all_kernels())
    modelled = all_modelled()
    assert {m.kernel for m in modelled} <= kernels
    assert len({m.kernel.name for m in modelled}) == len(modelled)
    forward = [m for m in modelled if m.case.get("direction") == "forward" and m.kernel.arch == "sm_70"]
    assert {m.case["head_dim"] for m in forward} == {64, 128}


def test_volta_forward_meets_its_bar(instructions_of):
    """The model's estimate, at least 60 TFLOP/s with fp32 accumulators."""
    for modelled in all_modelled():
        if modelled.kernel.name in ("spark_attention_forward_sm70_d64", "spark_attention_forward_sm70_d128"):
            instructions_of(modelled.kernel)  # skips without nvdisasm
            found = estimate(modelled, V100, {})
            assert found.model_tflops >= 60
            assert found.model_tflops < found.bound_tflops <= 125.4
            assert found.warps_per_scheduler == 2
            case = {"batch": 4, "num_heads": 16, "num_heads_kv": 16, "seqlen_q": 4096, "seqlen_k": 4096}
            assert 60 <= launch_tflops(found, modelled, V100, case) < found.model_tflops
