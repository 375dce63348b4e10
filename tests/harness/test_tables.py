"""Tables of a run from constructed records."""

from __future__ import annotations

import json
import shutil

import pytest

from harness.tables import accuracies, monitor_cost
from tests.harness.figures import synthetic


def test_the_monitor_costs_what_it_adds_to_a_fused_step(tmp_path):
    made = synthetic.sparse_training(synthetic.Maker("cuda"), [(2048, 0.25), (4096, 0.25), (1024, 0.25)], 65536)
    for record in made:
        seconds = {"dense_flash": 4e-3, "sat_dense_phase": 4e-3 * (1 + record.seqlen_q / 20480)}
        record.cold_median_s = seconds.get(record.contender, 1.0)
    made = [r for r in made if (r.contender, r.seqlen_q) != ("dense_flash", 1024)]  # no cost without both
    costs = monitor_cost(synthetic.run_of(made, tmp_path))
    assert costs.index.get_level_values("seqlen_q").tolist() == [2048, 4096]
    assert costs["every step"].tolist() == pytest.approx([0.1, 0.2])
    assert costs["every tenth"].tolist() == pytest.approx([0.01, 0.02])


def test_accuracies_are_means_over_the_seeds_of_trainings_that_ended(tmp_path):
    run = synthetic.run_of(synthetic.cpu_records()[:3], tmp_path)
    shutil.rmtree(tmp_path / "training")
    assert accuracies(run).empty
    for seed, accuracy in enumerate([0.5, 0.7, 0.9]):
        synthetic.training_run(tmp_path, "sat", 37 + 8 * seed, accuracy)
        own = (tmp_path / "training/listops-sat-seed0").rename(tmp_path / f"training/listops-sat-seed{seed}-moved")
        settings = json.loads((own / "run.json").read_text())
        (own / "run.json").write_text(json.dumps({**settings, "seed": seed}))
    (own / "run.json").unlink()  # stopped
    synthetic.training_run(tmp_path, "window", None, 0.25)
    found = accuracies(run).reset_index().set_index("label")
    assert found.loc["SAT", ["task", "source", "steps", "seeds"]].tolist() == ["listops", "generated", 100, 2]
    assert found.loc["SAT", ["mean", "deviation"]].tolist() == pytest.approx([0.6, 0.1 * 2**0.5])
    assert found.loc["SAT", ["sparse_from", "sparse_from_last"]].tolist() == [37, 45]
    assert found.loc["sliding window", ["mean", "seeds"]].tolist() == [0.25, 1]
    assert found.loc["sliding window", ["deviation", "sparse_from"]].isna().all()
