"""Ten thousand records, through every figure."""

import time

from harness.figures import FIGURES, save
from tests.harness.figures import synthetic


def test_ten_thousand_records_are_drawn_within_a_minute(tmp_path):
    records = list(synthetic.many_records(10_000))
    started = time.process_time()  # of this process: the machine may be shared
    run = synthetic.run_of(records, tmp_path)
    for name in FIGURES:
        save(run, name)
    assert time.process_time() - started < 60
    assert len(run.records) == 10_000
