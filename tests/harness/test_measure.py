"""The parent and its workers, on contenders that fall over: every cell leaves one record, whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from harness.paths import ROOT
from harness.store import read_lines

CONTENDERS = Path(__file__).parent / "contenders"
MEASURE = {"warmup_s": 0, "min_samples": 3, "rounds": 2, "min_time_s": 0.01, "max_time_s": 0.05, "relative_iqr": 0.5}


class Bed:
    """A folder to run in, with its own config, lock folder and copy of the misbehaving contenders."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.contenders = folder / "contenders"
        shutil.copytree(CONTENDERS, self.contenders)
        self.environment = os.environ | {
            "TMPDIR": str(folder),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def configure(
        self,
        contenders: list[str],
        ns: list[int] = [8],  # noqa: B006
        run: str = "test",
        baseline: str = "good",
        **top: object,
    ) -> Path:
        measure = {**MEASURE, **top.pop("measure", {})}
        spmm = {
            "op": "spmm",
            "question": "which way does it fall",
            "baseline": baseline,
            "contenders": contenders,
            "panels": [{"name": "p", "title": "p", "shapes": [{"m": 64, "k": 96, "sparsity": 0.5}], "each": {"n": ns}}],
        }
        config = {
            "run": run,
            "device": "cpu",
            "contender_folders": [str(self.contenders)],
            "measure": measure,
            "experiments": {"e": spmm},
            **top,
        }
        path = self.folder / f"{run}.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def start(self, config: Path, command: str = "measure", **environment: str) -> subprocess.Popen:
        arguments = [str(config), "e/p"] if command == "measure" else [str(config)]
        return subprocess.Popen(
            [sys.executable, "-m", "harness", command, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, config: Path, command: str = "measure", **environment: str) -> str:
        process = self.start(config, command, **environment)
        output = process.communicate(timeout=120)[0]
        assert process.returncode == 0, output
        return output

    def lines(self, run: str = "test") -> Path:
        return self.folder / "results" / run / "records" / "e.p.jsonl"

    def records(self, run: str = "test") -> dict[tuple[str, str], object]:
        return {(r.case_id, r.contender): r for r, _ in read_lines(self.lines(run))}


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def wait_for(condition: Callable[[], object], seconds: float = 60) -> object:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_every_failure_is_a_record_and_the_rest_goes_on(bed: Bed) -> None:
    names = ["good", "segfault", "quits", "hangs", "wrong", "wrong_later", "unwritten", "oom", "raises"]
    names += ["unsupported", "untimed", "needs_package", "other_backend", "other_tuning", "not_prepared", "cannot_say"]
    config = bed.configure(names, measure={"timeout_s": 8})
    bed.run(config)
    found = {contender: r for (_, contender), r in bed.records().items()}
    assert {name: r.status for name, r in found.items()} == {
        "good": "ok",
        "segfault": "crashed",
        "quits": "crashed",
        "hangs": "timeout",
        "wrong": "incorrect",
        "wrong_later": "incorrect",
        "unwritten": "incorrect",
        "oom": "out_of_memory",
        "raises": "crashed",
        "unsupported": "unsupported",
        "untimed": "ok",
        "needs_package": "unavailable",
        "other_backend": "crashed",
        "other_tuning": "crashed",
        "not_prepared": "crashed",
        "cannot_say": "crashed",
    }
    reasons = {name: r.reason for name, r in found.items()}
    assert reasons["segfault"] == "verify: killed by SIGSEGV; last words: about to fall"
    assert reasons["quits"] == "prepare: ended with exit code 3"
    assert reasons["hangs"].endswith("no end within 8 s")
    assert reasons["wrong"].startswith("y is off by")
    assert reasons["wrong_later"].startswith("after timing: y is off by")
    assert "8 NaN of 512" in reasons["unwritten"]
    assert reasons["raises"] == "ValueError: no kernel for this shape"
    assert reasons["unsupported"] == "m must be odd"
    assert reasons["needs_package"] == "pip install the-package"
    assert reasons["other_backend"].startswith("ValueError: Prepared.backend: Input should be 'reference', 'emulated'")
    assert reasons["other_tuning"].startswith("TypeError: ")
    assert reasons["not_prepared"] == "TypeError: prepare returned NoneType; it must be a Prepared"
    assert reasons["cannot_say"] == "RuntimeError: no such file"
    assert reasons["good"] is None
    for name, record in found.items():
        timed = name == "good"
        assert (record.cold_median_s is not None) is timed, name
        assert (record.hot_median_s is not None) is timed, name
        assert record.m == 64, "every record has the columns of its case"
        assert record.code_hash
    assert found["untimed"].reason == "the GPU emulates its instruction"
    assert found["untimed"].error_ratio is not None
    samples = {r.contender: batches for r, batches in read_lines(bed.lines())}
    assert sum(len(b["seconds"]) for b in samples["good"]) >= 6
    assert all(not batches for name, batches in samples.items() if name != "good")
    assert Counter(r.contender for r, _ in read_lines(bed.lines())).most_common(1)[0][1] == 1


def test_killing_the_parent_loses_doubles_and_cuts_nothing(bed: Bed) -> None:
    config = bed.configure(["good", "slow"], ns=list(range(1, 6)))
    first = bed.start(config)
    wait_for(lambda: bed.lines().exists() and bed.lines().read_bytes().count(b"\n") >= 3)
    (worker,) = children(first.pid)
    before = bed.lines().read_bytes()
    first.send_signal(signal.SIGKILL)
    first.wait()
    wait_for(lambda: not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text(), 5)
    with bed.lines().open("ab") as file:
        file.write(b'{"record":{"schema_ver')  # as if the kill had come in the middle of a line
    bed.run(config)
    after = bed.lines().read_bytes()
    assert after.startswith(before)
    keys = Counter((r.case_id, r.contender) for r, _ in read_lines(bed.lines()))
    assert len(keys) == 10
    assert set(keys.values()) == {1}
    assert all(r.status == "ok" for r in bed.records().values())


def test_a_signal_stops_it_with_the_records_safe(bed: Bed) -> None:
    config = bed.configure(["good", "slow"], ns=list(range(1, 9)))
    process = bed.start(config)
    wait_for(lambda: bed.lines().exists() and bed.lines().read_bytes().count(b"\n") >= 2)
    (worker,) = children(process.pid)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; its records are safe" in output
    assert not Path(f"/proc/{worker}").exists()
    assert all(r.status == "ok" for r in bed.records().values())


def test_the_second_run_on_a_device_waits_and_says_so(bed: Bed) -> None:
    first = bed.start(bed.configure(["slow"], run="first", ns=[1, 2, 3]))
    wait_for(lambda: children(first.pid))
    first.send_signal(signal.SIGSTOP)  # so that it has not ended, however long the second takes to begin
    try:
        second = bed.start(bed.configure(["good"], run="second"))
        assert "another run is measuring on cpu; waiting" in second.stdout.readline()
    finally:
        first.send_signal(signal.SIGCONT)
    assert not bed.lines("second").exists()
    assert first.wait(60) == 0
    assert second.wait(60) == 0
    assert len(bed.records("second")) == 1


def test_budget_resume_new_code_and_new_packages(bed: Bed) -> None:
    only = bed.contenders / "only.py"
    text = (CONTENDERS / "misbehaving.py").read_text()
    only.write_text(text[: text.index("class Slow")].replace('"good"', '"mine"'))
    names = ["good", "mine", "needs_package"]
    config = bed.configure(names, ns=[1, 2], budget_min=1e-6)
    assert bed.run(config).count("the budget of 1e-06 min is spent, 1 cases left") == 1
    assert {case for case, _ in bed.records()} == {"spmm.m64.k96.n1.s0.5.random.float16.seed0"}
    table = pd.read_parquet(bed.folder / "results/test/panels/e/p.parquet")
    assert list(table.contender) == names

    config = bed.configure(names, ns=[1, 2])
    bed.run(config)
    lines = bed.lines().read_bytes()
    assert lines.count(b"\n") == 6
    bed.run(config)
    assert bed.lines().read_bytes() == lines, "nothing to do, nothing done"

    only.write_text(only.read_text() + "\n# faster now\n")
    bed.run(config, VOLTABENCH_TEST_PACKAGE="1")
    added = [r for r, _ in read_lines(bed.lines())][6:]
    assert Counter((r.contender, r.status) for r in added) == {("mine", "ok"): 2, ("needs_package", "ok"): 2}
    assert all(r.speedup is not None for r in added), "the baseline was timed beside them, and not recorded again"

    assert bed.run(config, command="collect") == ""
    records = pd.read_parquet(bed.folder / "results/test/records.parquet")
    assert list(records.status) == ["ok"] * 6
    samples = pd.read_parquet(bed.folder / "results/test/samples.parquet")
    counts = samples[samples.metric == "cold"].groupby(["case_id", "contender"]).size()
    for row in records.itertuples():
        assert counts[row.case_id, row.contender] == row.samples
    summary = json.loads((bed.folder / "results/test/run.json").read_text())
    assert (summary["planned"], summary["recorded"]) == (6, 6)


def test_a_baseline_that_falls_as_companion_keeps_its_record_and_the_rest_goes_on(bed: Bed) -> None:
    bed.run(bed.configure(["fragile"], ns=[1, 2], baseline="fragile"))
    lines = bed.lines().read_bytes()
    output = bed.run(bed.configure(["fragile", "good"], ns=[1, 2], baseline="fragile"), VOLTABENCH_TEST_FALL="1")
    assert output.count("crashed: fragile: verify: killed by SIGABRT") == 2
    assert bed.lines().read_bytes().startswith(lines)
    added = [r for r, _ in read_lines(bed.lines())][2:]
    assert [(r.contender, r.status, r.speedup) for r in added] == [("good", "ok", None)] * 2


def test_the_budget_is_charged_for_what_fell(bed: Bed) -> None:
    bed.run(bed.configure(["good", "quits"], budget_min=1e6))
    spent = [float(line) for line in (bed.folder / "results/test/budget_spent_s.txt").read_text().split()]
    assert len(spent) == 2, "the attempt that ended in a crash, and the one after it"
    assert min(spent) > 0


@pytest.mark.parametrize("what", ["results is a file", "unknown panel"])
def test_bad_input_is_one_line_before_any_work(bed: Bed, what: str) -> None:
    config = bed.configure(["good"])
    if what == "results is a file":
        (bed.folder / "results").write_text("")
        process = bed.start(config)
    else:
        config.write_text(config.read_text().replace("name: p", "name: q"))
        process = bed.start(config)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 2
    assert output.startswith("voltabench: ")
    assert output.count("\n") == 1
    assert "results" in output if what == "results is a file" else "e/q" in output


def test_the_parent_does_not_import_torch(bed: Bed) -> None:
    config = bed.configure(["good"])
    program = f"""
import sys
from harness import measure, supervise, worker
from harness.store import pending
assert len(pending(measure.load_config({str(config)!r}), "e/p")) == 1
print("torch._C" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=bed.folder, env=bed.environment, capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.gpu
def test_every_failure_on_a_gpu(bed: Bed) -> None:
    names = ["good", "loses_context", "synchronises", "too_large", "segfault", "unwritten", "wrong_later"]
    config = bed.configure(
        names,
        ns=[8],
        device="cuda",
        energy={"window_s": 0.5, "trials": 1, "settle_s": 0.2},
        measure={"min_time_s": 0.05, "max_time_s": 0.2},
    )
    text = yaml.safe_load(config.read_text())
    text["experiments"]["e"]["panels"][0]["energy"] = [{"contenders": ["good"], "where": {"n": 8}}]
    config.write_text(yaml.safe_dump(text))
    bed.run(config)
    found = {contender: r for (_, contender), r in bed.records().items()}
    assert {name: r.status for name, r in found.items()} == {
        "good": "ok",
        "loses_context": "crashed",
        "synchronises": "ok",
        "too_large": "out_of_memory",
        "segfault": "crashed",
        "unwritten": "incorrect",
        "wrong_later": "incorrect",
    }
    good = found["good"]
    assert good.hot_method == "graph"
    assert found["synchronises"].hot_method == "backlog"
    assert "CUDA error" in found["loses_context"].reason  # of whichever call notices first
    assert 0 < good.hot_median_s < 1e-4
    assert good.peak_bytes >= 64 * 8 * 2
    assert good.sm_clock_mhz > 0
    assert "cublas" in json.loads(good.libraries)
    assert good.energy_quality in ("good", "fair", "poor")
    assert good.energy_j > good.energy_net_j > 0
    assert Counter((r.case_id, r.contender) for r, _ in read_lines(bed.lines())).most_common(1)[0][1] == 1
