from __future__ import annotations

import json
import lzma
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import store
from harness.errors import MachineError
from harness.records import Record, Sample
from harness.store import Store, latest, pack, read_lines


def record(case_id: str = "op.a", **fields: object) -> Record:
    return Record(run="r", experiment="e", panel="p", case_id=case_id, op="spmm", contender="c", **fields)


def samples(count: int = 4) -> list[Sample]:
    return [
        Sample(metric="cold", round=i // 2, seconds=random.uniform(1e-6, 1e-2), power_w=random.choice([None, 71.5]))
        for i in range(count)
    ]


def test_records_and_samples_come_back(tmp_path: Path) -> None:
    path = tmp_path / "records" / "e.p.jsonl"
    given = samples(60)
    with Store(path) as out:
        out.append(record(cold_median_s=1.25e-5), pack(given))
        out.append(record("op.b", status="timeout", reason="180 s"), [])
    (first, batches), (second, none) = read_lines(path)
    assert first.cold_median_s == 1.25e-5
    assert (second.status, none) == ("timeout", [])
    unpacked = [Sample(**{**b, "seconds": s}) for b in batches for s in b["seconds"]]
    assert [s.model_dump(exclude={"seconds"}) for s in unpacked] == [s.model_dump(exclude={"seconds"}) for s in given]
    assert [s.seconds for s in unpacked] == pytest.approx([s.seconds for s in given], rel=1e-6)


def test_the_last_record_of_a_key_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Store(path) as out:
        out.append(record(status="unavailable", reason="no package"), [])
    with Store(path) as out:
        out.append(record(samples=12), [])
    assert [r.status for r, _ in read_lines(path)] == ["unavailable", "ok"]
    assert latest(path)[record().key()].samples == 12


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with Store(tmp_path / "a.jsonl") as out:
        out.append(record(error_max=float("inf"), error_ratio=float("nan")), [])
    text = (tmp_path / "a.jsonl").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert json.loads(text)["record"]["error_max"] is None


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_torn_line_is_set_aside_and_nothing_else_is_touched(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    with Store(path) as out:
        out.append(record(), pack(samples()))
    whole = path.read_bytes()
    torn = store.encode(record("op.b"), pack(samples()))[:cut]
    path.write_bytes(whole + torn)
    assert [r.case_id for r, _ in read_lines(path)] == ["op.a"], "a reader passes over it"
    with Store(path) as out:
        out.append(record("op.c"), [])
    assert path.read_bytes().startswith(whole)
    assert [r.case_id for r, _ in read_lines(path)] == ["op.a", "op.c"]
    assert (tmp_path / "a.jsonl.torn").read_bytes() == torn + b"\n"


def test_a_run_that_is_kept_may_be_compressed(tmp_path: Path) -> None:
    path, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.xz"
    kept = pack(samples())
    packed.write_bytes(lzma.compress(store.encode(record(), kept)))
    assert [(r.case_id, batches) for r, batches in read_lines(path)] == [("op.a", kept)]
    with Store(path) as out:
        out.append(record(device_name="anew"), [])
        out.append(record("op.b"), [])
    assert [(r.case_id, r.device_name) for r in latest(path).values()] == [("op.a", "anew"), ("op.b", None)]
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(MachineError, match=r"a\.jsonl\.xz: not whole"):
        list(read_lines(path))


def test_a_line_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(store.encode(record(), []) + b'{"record": {"no_such_column": 1}, "samples": []}\n')
    with pytest.raises(MachineError, match=r"a\.jsonl:2: not a record"):
        list(read_lines(path))


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "a.jsonl"), pytest.raises(MachineError, match="another process is writing"):
        Store(tmp_path / "a.jsonl")
    Store(tmp_path / "a.jsonl").__exit__(None, None, None)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("a file where the folder should be")
    with pytest.raises(MachineError, match=str(tmp_path)) as caught:
        Store(tmp_path / "records" / "a.jsonl")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to read-only folders")
def test_a_read_only_folder_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(MachineError, match="Permission denied"):
        Store(tmp_path / "a.jsonl")


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file grows past `size`, as on a full disk; not even the log that pytest writes to, so be short within."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_found_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Store(path) as out:
        out.append(record(), [])
    before = path.read_bytes()
    with file_size_limit(store.PROBE_BYTES // 2), pytest.raises(MachineError, match="make room"):
        Store(path)
    assert path.read_bytes() == before


def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Store(path) as out:
        out.append(record(), pack(samples()))
        before = path.read_bytes()
        nothing_lost = pytest.raises(MachineError, match="nothing recorded before is lost")
        with file_size_limit(len(before) + 100), nothing_lost:
            out.append(record("op.b"), pack(samples()))
    assert path.read_bytes() == before


def test_a_killed_writer_leaves_every_finished_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    program = f"""
import sys, itertools
from pathlib import Path
from harness.records import Record, Sample
from harness.store import Store, pack
out = Store(Path({str(path)!r}))
for i in itertools.count():
    out.append(Record(case_id=str(i)), pack([Sample(metric="hot", seconds=1 / (i + 3))] * 50))
    print(i, flush=True)
"""
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    finished = [int(writer.stdout.readline()) for _ in range(random.randint(5, 40))]
    writer.send_signal(signal.SIGKILL)
    finished += [int(text) for text in writer.stdout.read().split()]
    writer.wait()
    Store(path).__exit__(None, None, None)
    ids = [int(r.case_id) for r, _ in read_lines(path)]
    assert ids[: len(finished)] == finished
    assert ids == list(range(len(ids)))
    assert len(ids) <= len(finished) + 1
