"""The `voltabench` command: every rule of the workflow is one of these, and a person can call them too.

Each command loads its module when called, so that `--help` and planning stay quick.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.errors import MachineError, VoltabenchError

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="a config/*.yaml, or results/<run>/config.yaml")]


@app.command()
def run(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="left out: chosen for this machine")] = None,
    budget_min: Annotated[float | None, typer.Option(help="stop measuring cleanly after this many minutes")] = None,
) -> None:
    """Build, measure, draw and report: the whole workflow, resumed where it stopped."""
    from harness.run import run_workflow

    run_workflow(config, budget_min)


@app.command()
def plan(config: ConfigPath) -> None:
    """Say how many rows, how much memory and about how many minutes a config needs, before anything runs."""
    from harness.plan import print_plan

    print_plan(config)


@app.command()
def doctor() -> None:
    """Say what this machine has: GPU, driver, libraries, NVML, and each contender or how to get it."""
    from harness.doctor import print_diagnosis

    print_diagnosis()


@app.command()
def build(
    config: ConfigPath, output: Annotated[Path, typer.Option(help="resource report (CSV)", dir_okay=False)]
) -> None:
    """Compile every kernel for the config's architectures and write the resource report."""
    from harness.collect import write_atomically
    from harness.config import load_config
    from impl.cuda.build import BuildError
    from impl.cuda.report import write_report

    try:
        architectures = load_config(config).architectures
        write_atomically(output, lambda path: write_report(architectures, path))
    except BuildError as error:
        raise MachineError(str(error)) from error


@app.command()
def model(config: ConfigPath) -> None:
    """Model our kernels' throughput on a V100 and an H200 from their machine code, into model.csv; nothing is timed."""
    from harness.throughput import write_model

    write_model(config)


@app.command()
def measure(config: ConfigPath, panel: Annotated[str, typer.Argument(help="experiment/panel")]) -> None:
    """Measure one panel; records already there are kept, the missing ones are added."""
    from harness.measure import measure_panel

    measure_panel(config, panel)


@app.command()
def curves(config: ConfigPath) -> None:
    """Train a small model with each attention and keep the loss curves; those already there are kept."""
    from harness.curves import train_curves

    train_curves(config)


@app.command()
def train(
    task: Annotated[str, typer.Option(help="listops, pathfinder, image, text, retrieval, or a stand-in: digits, ...")],
    method: Annotated[str, typer.Option(help="sat, spion, dense, dense_flash, window, ...")],
    data: Annotated[Path | None, typer.Option(help="folder of a download; generated tasks need none")] = None,
    seed: Annotated[int, typer.Option(help="of weights, order and dropout", min=0)] = 0,
    steps: Annotated[int | None, typer.Option(help="fewer than the recipe's", min=6)] = None,
    batch: Annotated[int | None, typer.Option(help="samples a step, over all processes", min=1)] = None,
    samples: Annotated[int, typer.Option(help="generated samples", min=150)] = 100_000,
    monitor_every: Annotated[int, typer.Option(help="dense steps from one look at the maps to the next", min=1)] = 1,
    min_skewness: Annotated[float | None, typer.Option(help="of the transition, instead of the paper's 1.7")] = None,
    max_change: Annotated[float | None, typer.Option(help="of a map's distance, instead of the paper's 0.013")] = None,
    keep_diagonal: Annotated[
        bool, typer.Option("--keep-diagonal", help="in SAT's pattern, as the paper does not")
    ] = False,
    evaluate_every: Annotated[int, typer.Option(help="steps from one pass over dev to the next", min=1)] = 500,
    device: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="else CUDA where there is a GPU")] = None,
    results: Annotated[Path, typer.Option(help="where the run's folder is")] = Path("results/training"),
) -> None:
    """Train one model on one task by one method; the same command goes on with a run that was interrupted."""
    from harness.training import TrainingRun
    from harness.training import train as train_run

    transition = (monitor_every, min_skewness, max_change, keep_diagonal)
    run = TrainingRun(task, method, seed, steps, batch, data, samples, *transition, evaluate_every, device)
    typer.echo(f"wrote {train_run(run, results)}")


@app.command()
def collect(config: ConfigPath) -> None:
    """Gather the panels' records into records.parquet and samples.parquet."""
    from harness.collect import collect_run

    collect_run(config)


@app.command()
def figure(
    config: ConfigPath, names: Annotated[list[str], typer.Argument(help="of FIGURES in harness/figures")]
) -> None:
    """Draw figures from a run's records, each as PDF, SVG, PNG and the CSV it was drawn from."""
    from harness.figures import draw

    draw(config, names)


@app.command()
def claims(config: ConfigPath) -> None:
    """Write claims.csv: each published number, what this run measured, and the verdict."""
    from harness.claims import write_claims

    write_claims(config)


@app.command()
def notebook(config: ConfigPath, name: Annotated[str, typer.Argument(help="notebooks/<name>.ipynb")]) -> None:
    """Execute one analysis notebook on a run's records."""
    from harness.notebooks import execute

    execute(config, name)


@app.command()
def report(config: ConfigPath) -> None:
    """Gather figures, claims and notebooks of a finished run into one report that opens offline."""
    from harness.run import make_report

    make_report(config)


@app.command()
def summary(config: ConfigPath) -> None:
    """Print what was measured, what could not run and why, and where to look."""
    from harness.summary import print_summary

    print_summary(config)


def main() -> None:
    """Entry point: a mistake a user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except VoltabenchError as error:
        print(f"voltabench: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        place = error.filename or "results"
        print(f"voltabench: {place}: {os.strerror(error.errno)}; no record is lost, run again", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
