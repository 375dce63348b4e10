"""Execute an analysis notebook on a run's records."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.config import load_config
from harness.errors import ConfigError, MachineError, NoRecords
from harness.paths import ROOT

FOLDER = ROOT / "notebooks"
NOTEBOOKS = tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb")))


def execute(config_path: str | Path, name: str) -> Path:
    """Run notebooks/<name>.ipynb on the run's records; returns results/<run>/notebooks/<name>.ipynb, with the same as
    a page (.html) beside it.

    The kernel is this Python's. Raises ConfigError for a bad config or an unknown notebook, MachineError when the run
    has no records or a cell fails; the executed copy then shows where.
    """
    if name not in NOTEBOOKS:
        raise ConfigError(f"unknown notebook {name!r}; known: {', '.join(NOTEBOOKS)}")
    records = load_config(config_path).results / "records.parquet"
    if not records.exists():
        raise NoRecords(records, config_path)
    output = run_notebook(FOLDER / f"{name}.ipynb", records, records.parent / "notebooks" / f"{name}.ipynb")
    output.with_suffix(".html").write_text(as_page(output))
    return output


def run_notebook(source: Path, records: Path, output: Path) -> Path:
    """Execute `source` with the parameter `records`, from the working folder, into `output`.

    The copy names all three as the working folder sees them, so that it can be shown to others.
    """
    # Before papermill loads Jupyter: the kernel of this Python, whatever the user has installed, and this harness.
    os.environ["JUPYTER_PATH"] = str(Path(sys.prefix) / "share" / "jupyter")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    import papermill

    output.parent.mkdir(parents=True, exist_ok=True)
    options = {"kernel_name": "python3", "cwd": str(Path.cwd()), "progress_bar": False}
    try:
        papermill.execute_notebook(os.path.relpath(source), str(output), {"records": str(records)}, **options)
    except papermill.PapermillExecutionError as error:
        failed = output.rename(output.with_suffix(".failed.ipynb"))  # Snakemake removes a failed job's output
        place = f"cell {error.exec_count} of {source.name}"
        raise MachineError(f"{place}: {error.ename}: {error.evalue}; the executed copy is {failed}") from error
    return output


def as_page(notebook: Path) -> str:
    """The executed notebook as one HTML page that needs no network."""
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="").from_filename(str(notebook))
    return page
