"""Verdicts from constructed records."""

import math

import pandas as pd
import pytest

from harness.claims import Claim, judge, load_claims, write_claims
from harness.contender import discover
from harness.errors import ConfigError
from tests.harness.figures import synthetic

LAYERS = ((21504, 7168), (7168, 7168))
CLAIM = {
    "id": "made_up", "system": "made up", "statistic": "geometric mean", "gpu": "A100", "condition": "SpMM",
    "source": "none",
    "measure": {
        "op": "spmm", "ours": "flash_llm_tiled_csl", "baseline": "cublas", "points": 4,
        "where": {"paper_layer": True, "n": [8, 16], "sparsity": 0.8},
    },
}  # fmt: skip


def records(speedup=2.0, layers=LAYERS, device="cuda"):
    """Records of the claim's sweep with exactly this speed-up, and others beside it that must not count."""
    made = synthetic.spmm(synthetic.Maker(device), layers, (8, 16, 32), (0.7, 0.8))
    times = {r.case_id: r.cold_median_s for r in made if r.contender == "cublas"}
    for record in made:
        if record.contender == "flash_llm_tiled_csl":
            record.speedup = speedup if record.sparsity == 0.8 and record.n != 32 else 100.0
            record.cold_median_s = times[record.case_id] / record.speedup
    return made


def verdict(made, folder, **changes):
    return judge(Claim.model_validate(CLAIM | {"value": 2.0} | changes), synthetic.run_of(made, folder))


@pytest.mark.parametrize(
    ("published", "expected"),
    [(1.5, "reproduced"), (2.0, "reproduced"), (2.15, "reproduced"), (2.3, "partly"), (3.9, "partly"), (4.1, "not")],
)
def test_verdict_follows_the_share_of_the_gain(tmp_path, published, expected):
    row = verdict(records(), tmp_path, value=published)
    assert row.verdict == expected
    assert row.measured == "2.00x geometric mean of 4 (2.00x to 2.00x)"
    assert f"{math.log(2) / math.log(published):.0%} of the published gain" in row.reason


def test_of_panels_that_share_a_case_the_one_with_a_time_counts_in_any_order(tmp_path):
    made = records()
    lost = [
        r.model_copy(update={"panel": panel, "status": "out_of_memory", "cold_median_s": None, "speedup": None})
        for panel in ("a", "zz")
        for r in made
    ]
    slower = [r.model_copy(update={"panel": "zz", "speedup": r.speedup and r.speedup / 2}) for r in made]
    for others in (lost, slower):
        rows = [verdict(order, tmp_path) for order in (made + others, others + made)]
        assert rows[0] == rows[1]
        assert rows[0].measured == "2.00x geometric mean of 4 (2.00x to 2.00x)"
        assert rows[0].verdict == "reproduced"


def test_a_slower_kernel_fails_its_claim(tmp_path):
    row = verdict(records(speedup=0.8), tmp_path)
    assert row.verdict == "not"
    assert "no gain" in row.reason


@pytest.mark.parametrize("statistic", ["mean", "max"])
def test_end_to_end_is_over_the_lengths_where_the_baseline_fits(tmp_path, statistic):
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    made = synthetic.training(synthetic.Maker("cuda"), ("bert_base", "bert_large", "gpt2"), lengths, 16384)
    (claim,) = [c for c in load_claims() if c.id == f"spark_attention.end_to_end.{statistic}"]
    row = judge(claim, synthetic.run_of(made, tmp_path))
    assert " of 12 (" in row.measured
    assert "left out, for the baseline has no time there: 6 x out_of_memory" in row.reason


def test_geometric_mean_and_maximum(tmp_path):
    made = records()
    ours = [r for r in made if r.contender == "flash_llm_tiled_csl" and r.speedup == 2.0]
    ours[0].speedup = 8.0
    assert verdict(made, tmp_path).measured.startswith("2.83x geometric mean")
    assert verdict(made, tmp_path, statistic="maximum").measured.startswith("8.00x maximum")


def test_other_shapes_do_not_count(tmp_path):
    row = verdict(records(layers=((512, 256),)), tmp_path)
    assert row.verdict == "not measurable here"
    assert row.reason == "the run has no flash_llm_tiled_csl on the claim's sweep"
    assert not row.measured


def test_part_of_the_sweep_reproduces_partly(tmp_path):
    row = verdict(records(layers=LAYERS[:1]), tmp_path)
    assert row.verdict == "partly"
    assert "the run has 2 of the 4 points" in row.reason


def test_a_case_of_two_panels_counts_once(tmp_path):
    made = records()
    again = [r.model_copy(update={"panel": "energy"}) for r in made if r.sparsity == 0.8 and r.n == 16]
    assert again
    assert verdict(made + again, tmp_path) == verdict(made, tmp_path / "once")


def test_a_wrong_result_of_ours_costs_the_verdict(tmp_path):
    made = records()
    ours = next(r for r in made if r.contender == "flash_llm_tiled_csl" and r.speedup == 2.0)
    ours.status, ours.reason = "incorrect", "error ratio 7"
    row = verdict(made, tmp_path)
    assert row.verdict == "partly"
    assert "1 x incorrect (error ratio 7)" in row.reason
    assert "of 3 " in row.measured


def test_rows_out_of_memory_are_counted_together(tmp_path):
    made = records()
    for size, record in enumerate(r for r in made if r.contender == "cublas"):
        record.status, record.cold_median_s = "out_of_memory", None
        record.reason = f"OutOfMemoryError: CUDA out of memory. Tried to allocate {size} GiB. GPU 0 has"
    row = verdict(made, tmp_path)
    assert row.reason == "no time of cublas: 4 x out_of_memory (OutOfMemoryError: CUDA out of memory)"


def test_a_baseline_that_cannot_run_is_named(tmp_path):
    made = records()
    lost = next(r for r in made if r.contender == "cublas" and r.sparsity == 0.8 and r.n == 8)
    lost.status, lost.reason, lost.cold_median_s = "out_of_memory", "too large", None
    row = verdict(made, tmp_path)
    assert "left out, for the baseline has no time there: 1 x out_of_memory (too large)" in row.reason
    assert "of 3 " in row.measured


@pytest.mark.parametrize("backend", ["reference", "emulated", "library"])
def test_only_our_kernel_can_carry_a_claim(tmp_path, backend):
    made = records()
    for record in made:
        if record.role == "ours":
            record.backend = backend
    row = verdict(made, tmp_path)
    assert row.verdict == "not measurable here"
    assert "no time of flash_llm_tiled_csl" in row.reason


def test_null_times_give_their_reason(tmp_path):
    made = records()
    for record in made:
        if record.role == "ours":
            record.cold_median_s, record.speedup, record.reason = None, None, "the GPU emulates m8n8k4"
    assert "the GPU emulates m8n8k4" in verdict(made, tmp_path).reason


def test_another_baseline_is_taken_from_the_samples(tmp_path):
    made = synthetic.spmm(synthetic.Maker("cuda"), LAYERS, (8, 16), (0.8,))
    times = {(r.contender, r.case_id): r.cold_median_s for r in made}
    measure = CLAIM["measure"] | {"baseline": "cusparse_csr"}
    row = verdict(made, tmp_path, measure=measure)
    cases = {case for contender, case in times if contender == "cusparse_csr"}
    ratios = [times["cusparse_csr", case] / times["flash_llm_tiled_csl", case] for case in cases]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert row.measured.startswith(f"{mean:.2f}x geometric mean of 4")


def test_rounds_of_two_panels_are_not_paired(tmp_path):
    """Ours was measured in a panel of its own at one layer; at the other a panel has both, beside one that has not."""
    made = synthetic.spmm(synthetic.Maker("cuda"), LAYERS, (8,), (0.8,))
    kept = [r for r in made if r.contender in ("flash_llm_tiled_csl", "cusparse_csr")]
    for record in kept:
        record.cold_median_s = {"flash_llm_tiled_csl": 1e-4, "cusparse_csr": 4e-4}[record.contender]
        record.panel = record.contender if record.m == LAYERS[0][0] else "both"
    alone = [r.model_copy(update={"panel": "alone", "cold_median_s": 7e-4}) for r in kept if r.panel == "both"]
    measure = CLAIM["measure"] | {"baseline": "cusparse_csr", "points": 2}
    row = verdict(kept + alone[:1], tmp_path, measure=measure)
    assert row.measured == "4.00x geometric mean of 2 (4.00x to 4.00x)"
    assert "1 of the ratios are of medians of two panels, which were not measured in turns" in row.reason
    assert row.verdict == "reproduced"


def test_a_cpu_run_measures_no_claim(tmp_path):
    run = synthetic.run_of(records(device="cpu"), tmp_path)
    for claim in load_claims():
        row = judge(claim, run)
        assert row.verdict == "not measurable here"
        assert row.reason
        assert not row.measured


def test_an_unconfirmed_value_is_measured_and_not_judged(tmp_path):
    row = verdict(records(), tmp_path, value=None)
    assert (row.verdict, row.published) == ("not measurable here", "given, not confirmed")
    assert row.measured.startswith("2.00x")


def test_the_condition_names_both_gpus(tmp_path):
    condition = verdict(records(), tmp_path).condition
    assert "published on A100" in condition
    assert "this run on Synthetic GPU" in condition


def test_published_claims_are_whole():
    claims = {claim.id: claim for claim in load_claims()}
    assert len(claims) == len(load_claims())
    values = {"spark_attention.end_to_end.mean": 1.8, "spark_attention.end_to_end.max": 2.46,
              "spark_attention.forward.mean": 4.55, "spark_attention.forward.max": 9.17,
              "spark_attention.backward.mean": None, "sat.training.max": 2.84, "sat.memory.max": 6.87}  # fmt: skip
    assert {name: claims[name].value for name in values} == values
    for system, by_sparsity in {
        "cublas": (1.4, 1.7, 2.1),
        "sputnik": (3.6, 3.0, 2.0),
        "sparta": (1.4, 1.4, 1.6),
    }.items():
        assert tuple(claims[f"flash_llm.{system}.{s}"].value for s in (70, 80, 90)) == by_sparsity


def test_the_read_off_points_agree_with_the_claims():
    points = pd.read_csv("results/paper/flash_llm_kernel_a100.csv")
    wide = points.pivot(index=["m", "k", "n", "sparsity"], columns="system", values="tflops")
    claims = {claim.id: claim.value for claim in load_claims()}
    for system, column in {"cublas": "cuBLAS", "sputnik": "Sputnik", "sparta": "SparTA"}.items():
        means = (wide["Flash-LLM"] / wide[column]).groupby("sparsity").mean()
        for sparsity, mean in means.items():
            assert mean == pytest.approx(claims[f"flash_llm.{system}.{round(sparsity * 100)}"], rel=0.05)


def test_bad_config_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        write_claims(tmp_path / "nowhere.yaml")


def sat_claim(name):
    (claim,) = [c for c in load_claims() if c.id == f"sat.{name}"]
    return claim


def test_a_training_step_is_judged_by_its_time_and_by_its_memory(tmp_path):
    made = synthetic.sparse_training(synthetic.Maker("cuda"), [(1024, 0.04), (2048, 0.04), (4096, 0.04)], 65536)
    for record in made:
        record.panel = "methods" if record.seqlen_q > 1024 else "lengths"
        if record.contender == "dense":
            record.peak_bytes = {2048: 5, 4096: 14}.get(record.seqlen_q, 1000) * 10**9
        elif record.contender == "sat":
            record.peak_bytes, record.speedup = 2 * 10**9, {2048: 1.5, 4096: 3.0}.get(record.seqlen_q, 99.0)
    run = synthetic.run_of(made, tmp_path)
    row = judge(sat_claim("training.max"), run)
    assert row.measured == "3.00x maximum of 2 (1.50x to 3.00x)"
    assert row.verdict == "reproduced"
    row = judge(sat_claim("memory.max"), run)
    assert row.measured == "7.00x maximum of 2 (2.50x to 7.00x)"
    assert row.verdict == "reproduced"
    for record in made:
        if record.contender == "sat":
            record.peak_bytes = None
    row = judge(sat_claim("memory.max"), synthetic.run_of(made, tmp_path))
    assert row.verdict == "not measurable here"
    assert "no peak memory of sat" in row.reason


def test_of_several_baselines_each_is_said(tmp_path):
    made = synthetic.sparse_training(synthetic.Maker("cuda"), [(2048, 0.04), (4096, 0.04)], 65536)
    claim = sat_claim("training.max").model_dump()
    claim["measure"] |= {"baseline": ["dense", "dense_flash"], "where": {}}
    times = {(r.contender, r.seqlen_q): r.cold_median_s for r in made}
    run = synthetic.run_of(made, tmp_path)
    row = judge(Claim.model_validate(claim), run)
    each = {
        name: sorted(times[name, seqlen] / times["sat", seqlen] for seqlen in (2048, 4096))
        for name in ("dense", "dense_flash")
    }
    said = [f"{run.labels[name]} {low:.2f}x to {high:.2f}x" for name, (low, high) in each.items()]
    assert row.measured.endswith(": " + ", ".join(said))
    assert row.measured.startswith(f"{max(high for _, high in each.values()):.2f}x maximum of 4 (")
    for record in made:
        if record.contender == "dense_flash":
            record.status, record.reason, record.cold_median_s = "out_of_memory", "too large", None
    row = judge(Claim.model_validate(claim), synthetic.run_of(made, tmp_path))
    assert row.verdict == "not measurable here"
    assert row.reason == "no time of dense_flash: 2 x out_of_memory (too large)"


def test_the_sparse_transformers_of_the_claim_are_contenders():
    named = sat_claim("training.max.sparse").measure.baselines
    assert set(named) <= discover()["sparse_training_step"].keys()
    assert sat_claim("training.max.sparse").measure.where == sat_claim("training.max").measure.where


@pytest.mark.parametrize(("ours", "expected"), [(0.6, "partly"), (0.4, "not")])
def test_accuracy_is_judged_by_the_trainings(tmp_path, ours, expected):
    run = synthetic.run_of(synthetic.sparse_training(synthetic.Maker("cuda"), [(64, 0.5)], 128), tmp_path)
    claim = sat_claim("accuracy")
    row = judge(claim, run)
    assert row.verdict == "not measurable here"  # dense_flash is none of the others
    synthetic.training_run(tmp_path, "window", None, 0.5)
    synthetic.training_run(tmp_path, "sat", 37, ours)
    row = judge(claim, run)
    assert row.verdict == expected
    assert row.measured == f"listops (generated) {ours:.1%} against sliding window 50.0%"
    assert f"best on {int(ours > 0.5)} of 1 tasks, after 100 steps, 1 seed" in row.reason
