"""Tables of a run from constructed records."""

from __future__ import annotations

import pytest

from harness.tables import monitor_cost
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
