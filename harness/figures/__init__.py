"""Figures of a run.

Each figure is a module here with three functions:
`table(run, **options)` gives the tidy rows, `nothing(rows, run)` says in words why they hold nothing to draw (or None),
`plot(rows, run)` draws them and reads nothing else. Captions are workflows/report/<figure>.rst.
Importing this package does not import matplotlib.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.errors import ConfigError, VoltabenchError
from harness.figures.style import RC
from harness.paths import ROOT

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from harness.config import Config
    from harness.figures.run import Run


class Drawing(NamedTuple):
    """How a figure is made: its module here, the op whose runs have it (None: all), and the options of `table`."""

    module: str
    op: str | None = None
    options: Mapping[str, Any] = MappingProxyType({})


FIGURES = {
    "attention_forward": Drawing("attention_throughput", "attention", {"direction": "forward"}),
    "attention_backward": Drawing("attention_throughput", "attention", {"direction": "backward"}),
    "attention_accumulators": Drawing("attention_accumulators", "attention"),
    "attention_memory": Drawing("peak_memory", "attention", {"op": "attention", "what": "Attention"}),
    "spmm_speedup": Drawing("spmm_speedup", "spmm"),
    "spmm_layers": Drawing("spmm_layers", "spmm"),
    "spmm_means": Drawing("spmm_means", "spmm"),
    "spmm_latency": Drawing("spmm_latency", "spmm"),
    "spmm_bandwidth": Drawing("spmm_bandwidth", "spmm"),
    "spmm_payback": Drawing("spmm_payback", "spmm"),
    "spmm_heatmap": Drawing("spmm_heatmap", "spmm"),
    "block_sparse_speedup": Drawing("block_sparse_speedup", "block_sparse_attention"),
    "block_sparse_efficiency": Drawing("block_sparse_efficiency", "block_sparse_attention"),
    "training_speedup": Drawing("training_speedup", "training_step"),
    "training_memory": Drawing("peak_memory", "training_step", {"op": "training_step", "what": "Training step"}),
    "training_curves": Drawing("training_curves", "training_step"),
    "sparse_training_step": Drawing("sparse_training_step", "sparse_training_step"),
    "sparse_training_density": Drawing("sparse_training_density", "sparse_training_step"),
    "sparse_training_convergence": Drawing("sparse_training_convergence", "sparse_training_step"),
    "sparse_training_transition": Drawing("sparse_training_transition", "sparse_training_step"),
    "sparse_training_patterns": Drawing("sparse_training_patterns", "sparse_training_step"),
    "decode_throughput": Drawing("decode_throughput", "decode_step"),
    "decode_parts": Drawing("decode_parts", "decode_step"),
    "energy_time": Drawing("energy_time"),
    "error_gate": Drawing("error_gate"),
    "performance_profile": Drawing("performance_profile"),
    "clocks": Drawing("clocks"),
    "model_bound": Drawing("model_bound"),
}
MODELLED = ("model_bound", "attention_accumulators")  # drawn from the throughput model, too
TRAINED = ("training_step", "sparse_training_step")  # ops of which some figures are drawn from trainings
# Nothing that changes from one drawing to the next: no dates, no versions.
_METADATA = {
    "pdf": {"Creator": "voltabench", "Producer": None, "CreationDate": None},
    "svg": {"Creator": "voltabench", "Date": None},
}
FORMATS = (*_METADATA, "png")


def figures_of(config: Config) -> dict[str, list[str]]:
    """The figures that a run of `config` has, by what they wait for: "records", the "model", trainings of an op."""
    found: dict[str, list[str]] = {}
    for name, drawing in FIGURES.items():
        if drawing.op is None or drawing.op in config.ops:
            group = "model" if name in MODELLED else drawing.op if drawing.op in TRAINED else "records"
            found.setdefault(group, []).append(name)
    return found


class NotDrawn(VoltabenchError):
    """Figures that could not be drawn; why has been shown."""


def draw(config: str | Path, names: Sequence[str]) -> None:
    """Write results/<run>/figures/<name>.{pdf,svg,png}, the .csv they were drawn from, and the caption as .txt.

    Two drawings of the same records are equal byte for byte. Raises ConfigError for an unknown figure or a bad
    config, MachineError when the run has no records; NotDrawn, when the others have been drawn.
    """
    for name in names:
        if name not in FIGURES:
            raise ConfigError(f"unknown figure {name!r}; known: {', '.join(FIGURES)}")
    # What each figure's own process finds loaded. In one for all, an axes' last digits would depend on the others.
    import fontTools.subset  # noqa: F401
    from matplotlib.backends import backend_agg, backend_pdf, backend_svg  # noqa: F401

    from harness.figures import panels  # noqa: F401
    from harness.figures.run import Run

    run, broken = Run.open(config), []
    for name in names:
        child = multiprocessing.get_context("fork").Process(target=save, args=(run, name))
        child.start()
        child.join()
        if child.exitcode:
            broken.append(name)
    if broken:
        raise NotDrawn(f"not drawn: {', '.join(broken)}; see above")


def save(run: Run, name: str) -> None:
    """Draw figure `name` of `run` into its folder."""
    from matplotlib.backend_bases import get_registered_canvas_class

    rows, figure = render(run, name)
    place = run.of_figure(rows).place
    folder = run.folder / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    (folder / f"{name}.txt").write_text(f"{caption(name)} {place}.\n")
    with _style():
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")  # laid out once, not once per format
        for suffix, metadata in _METADATA.items():  # through the canvas: savefig draws everything twice
            figure.dpi = RC["figure.dpi"]  # of what is a picture in them; each leaves it at 72
            canvas = get_registered_canvas_class(suffix)(figure)
            getattr(canvas, f"print_{suffix}")(folder / f"{name}.{suffix}", metadata=metadata)
        _slim(folder / f"{name}.svg")
        figure.dpi = RC["figure.dpi"]
        _print_png(figure, folder / f"{name}.png")


def _slim(path: Path) -> None:
    """An SVG without its indentation, and to a hundredth of a point where matplotlib writes a millionth."""
    drawn = re.sub(r"\n +", "\n", path.read_text(encoding="utf-8"))
    drawn = re.sub(r' (d|x|y)="[^"]*"', lambda number: re.sub(r"(\.\d\d)\d+", r"\1", number[0]), drawn)
    path.write_text(drawn, encoding="utf-8")


def _print_png(figure: Figure, path: Path) -> None:
    """In 256 colours, which takes a third of the bytes: figures are kept in git."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
    few = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, dpi=(figure.dpi, figure.dpi))


def caption(name: str) -> str:
    """What figure `name` shows, on one line."""
    return " ".join((ROOT / "workflows" / "report" / f"{name}.rst").read_text().split())


def render(run: Run, name: str) -> tuple[pd.DataFrame, Figure]:
    """The tidy rows of figure `name`, and the figure drawn from them."""
    from harness.figures.panels import sentence

    drawing, options = FIGURES[name], FIGURES[name].options
    module = importlib.import_module(f"harness.figures.{drawing.module}")
    rows = module.table(run, **options)
    run = run.of_figure(rows)
    reason = module.nothing(rows, run)
    with _style():
        return rows, sentence(run, module.TITLE.format(**options), reason) if reason else module.plot(rows, run)


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Our settings over matplotlib's own, whatever the user's matplotlibrc says."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield
