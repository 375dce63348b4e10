"""The shared parts of figures: titles of panels, ticks, and where panels stand."""

import math
import random

import matplotlib
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.figures.panels import below, facets, log_scale, page, share, words
from harness.figures.style import RC
from tests.harness.figures import synthetic


def test_the_experiment_is_named_only_where_titles_would_be_the_same():
    rows = pd.DataFrame({
        "experiment": ["one", "two", "two"], "head_dim": [64, 64, 64], "causal": [True, True, True],
        "dtype": ["float16", "float16", "bfloat16"],
    })  # fmt: skip
    always, varying = ["head_dim", "causal"], ["experiment", "dtype"]
    assert [title for title, _ in facets(rows[1:], always, varying)] == ["D=64, causal, bf16", "D=64, causal, fp16"]
    assert [title for title, _ in facets(rows, always, varying)] == [
        "one, D=64, causal, fp16",
        "D=64, causal, bf16",
        "two, D=64, causal, fp16",
    ]


@pytest.mark.parametrize("width", [3.4, 7.0])
def test_a_legend_stays_inside_its_figure(width):
    for _ in range(20):
        longest = int(width / 0.06) - 10
        labels = ["x" * random.randint(4, longest) for _ in range(random.randint(1, 7))]
        figure = Figure(figsize=(width, 3), layout="constrained")
        with matplotlib.rc_context(RC):
            below(figure, [Patch(label=label) for label in labels])
            figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        said = [len(label) for label in labels]
        assert box.x0 >= 0, said
        assert box.x1 <= figure.bbox.width, said


@pytest.mark.parametrize("most", [4, 5, 8])
def test_a_logarithmic_axis_has_two_or_more_ticks_in_view(most):
    ax = Figure().subplots()
    for _ in range(200):
        low = 10 ** random.uniform(-4, 5)
        high = low * 10 ** random.choice([random.uniform(0.02, 0.5), random.uniform(0.5, 4)])
        ax.set_xlim(low, high)
        log_scale(ax, "x", most=most)
        labels = [label.get_text() for label in ax.xaxis.get_majorticklabels()]
        ticks = ax.xaxis.get_majorticklocs()
        assert all(low <= tick <= high for tick in ticks)
        assert 2 <= len(ticks) <= max(most, 5), (low, high)
        assert len(set(labels)) == len(labels), labels
        assert all(math.isclose(float(label), tick, rel_tol=1e-4) for label, tick in zip(labels, ticks, strict=True))


def test_a_counted_density_reads_as_it_was_asked():
    assert [share(d) for d in (0.050781, 0.049805, 0.101562, 0.25, 0.065, 1.0, 0.001)] == [
        "0.05", "0.05", "0.1", "0.25", "0.065", "1", "0.001",
    ]  # fmt: skip
    assert words("density", 0.050781) == "0.05 kept"


def test_four_panels_stand_two_by_two(tmp_path):
    run = synthetic.run_of(synthetic.cpu_records(), tmp_path)
    for count, lines in ((3, 1), (4, 2), (5, 2), (7, 3)):
        _, cells = page([(str(i), run.records) for i in range(count)], run, "title", columns=3)
        grids = {ax.get_subplotspec().get_gridspec().get_geometry() for ax, _ in cells}
        assert grids == {(lines, math.ceil(count / lines))}
