"""The notebooks, executed on synthetic records of a CPU and of a GPU."""

import json
import shutil

import nbformat
import pytest

from harness.errors import ConfigError, MachineError
from harness.notebooks import FOLDER, NOTEBOOKS, as_page, execute, run_notebook
from harness.paths import ROOT
from tests.harness.figures import synthetic


def run_folder(folder, config):
    """A run's folder with synthetic records and a config, as the workflow leaves it."""
    make = synthetic.cpu_records if config == "smoke" else synthetic.gpu_records
    synthetic.run_of(make(), folder)
    shutil.copy(ROOT / "config" / f"{config}.yaml", folder / "config.yaml")
    return folder / "records.parquet"


@pytest.mark.parametrize(
    ("name", "config", "lost"),
    [
        ("attention", "smoke", "package not installed"),
        ("spmm", "h200", "a random pattern violates 2:4"),
        ("block_sparse_attention", "h200", "package not installed"),
        ("training_step", "h200", "CUDA out of memory"),
        ("sparse_training_step", "h200", "CUDA out of memory"),
        ("decode_step", "h200", "needs 371 GB"),
    ],
)
def test_notebook_runs_and_shows_tables_and_a_figure(tmp_path, name, config, lost):
    output = run_notebook(FOLDER / f"{name}.ipynb", run_folder(tmp_path, config), tmp_path / "out" / f"{name}.ipynb")
    outputs = [o for cell in nbformat.read(output, 4).cells if cell.cell_type == "code" for o in cell.outputs]
    text = json.dumps(outputs)
    assert "image/png" in text
    assert sum("text/html" in o.get("data", {}) for o in outputs) >= 3
    assert ("CPU smoke" in text) == (config == "smoke")
    assert "geometric_mean" in text
    assert lost in text, "what could not run is listed with its reason"
    page = as_page(output)
    assert "<table" in page
    assert 'src="http' not in page, "opens offline"


@pytest.mark.parametrize("op", ["spmm", "attention"])
def test_every_notebook_can_be_run_on_records_of_one_op(tmp_path, op):
    synthetic.run_of([r for r in synthetic.gpu_records() if r.op == op], tmp_path)
    shutil.copy(ROOT / "config" / "h200.yaml", tmp_path / "config.yaml")
    for name in NOTEBOOKS:
        variables = {}
        for cell in nbformat.read(FOLDER / f"{name}.ipynb", 4).cells:
            if "parameters" in cell.metadata.get("tags", []):
                variables["records"] = str(tmp_path / "records.parquet")
            elif cell.cell_type == "code":
                exec(cell.source.replace("%matplotlib inline", ""), variables)


def test_notebooks_are_kept_without_outputs():
    assert NOTEBOOKS == (
        "attention",
        "block_sparse_attention",
        "decode_step",
        "sparse_training_step",
        "spmm",
        "training_step",
    )
    for name in NOTEBOOKS:
        cells = nbformat.read(FOLDER / f"{name}.ipynb", 4).cells
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
        assert [cell.metadata.get("tags") for cell in cells].count(["parameters"]) == 1


def test_a_failing_cell_is_one_line_and_leaves_its_copy(tmp_path):
    (tmp_path / "records.parquet").write_bytes(b"not parquet")
    shutil.copy(ROOT / "config" / "smoke.yaml", tmp_path / "config.yaml")
    with pytest.raises(MachineError, match=r"cell \d+ of spmm.ipynb: ") as caught:
        run_notebook(FOLDER / "spmm.ipynb", tmp_path / "records.parquet", tmp_path / "spmm.ipynb")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(str(tmp_path / "spmm.failed.ipynb"))
    assert (tmp_path / "spmm.failed.ipynb").exists()


def test_unknown_notebook():
    with pytest.raises(ConfigError, match="unknown notebook 'poetry'; known: attention"):
        execute("config/smoke.yaml", "poetry")
