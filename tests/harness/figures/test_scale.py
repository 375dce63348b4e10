"""Ten thousand records: every table is made quickly, and no figure grows with them."""

import importlib
import re
import time

import pytest

from harness.figures import FIGURES, render
from harness.figures.panels import MOST_PANELS
from tests.harness.figures import synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return synthetic.run_of(list(synthetic.many_records(10_000)), tmp_path_factory.mktemp("many"))


def test_tables_of_ten_thousand_records(run):
    started = time.process_time()  # of this process: the machine may be shared
    of_others = ("model_bound", "sparse_training")  # a row per kernel; of trainings
    grow = [FIGURES[name] for name in FIGURES if not name.startswith(of_others)]
    for drawing in grow:
        assert len(importlib.import_module(f"harness.figures.{drawing.module}").table(run, **drawing.options)) > 200
    assert time.process_time() - started < 15


def test_a_figure_has_so_many_panels_and_says_what_it_leaves_out(run):
    _, figure = render(run, "block_sparse_speedup")
    assert len(figure.axes) == MOST_PANELS
    said = re.search(r"; (\d+) of (\d+) panels, the others are in the CSV$", figure.get_suptitle().replace("\n", " "))
    drawn, panels = map(int, said.groups())
    assert drawn == MOST_PANELS < panels
