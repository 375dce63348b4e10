"""The records of one panel on disk: JSON lines, appended one record at a time and never rewritten.

A line is {"record": {...}, "samples": [...]}. Samples of one batch share everything but their duration, so they
are stored as one object with a list of `seconds`. One process writes, under a lock, and each line is on the disk
before the next begins: whatever kills it can cut at most the last line, which the next writer sets aside.
The last record of a key wins. The lines of a run that is kept may lie beside it compressed (xz), a ninth as large.
"""

from __future__ import annotations

import errno
import functools
import json
import lzma
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from harness.errors import MachineError
from harness.locks import try_lock
from harness.machine import find_target
from harness.records import Record, Sample

if TYPE_CHECKING:
    from harness.case import Case
    from harness.config import Config

Key = tuple[str, str, str, str]
PROBE_BYTES = 2**20  # room that must be there before anything is measured; a record takes about 10 kB


def records_path(config: Config, panel: str) -> Path:
    """Where the records of `panel` ("experiment/panel") are."""
    return config.results / "records" / f"{panel.replace('/', '.')}.jsonl"


def pack(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """Samples, in order, as batches: what neighbours share once, their durations in a list."""
    batches = []
    for shared, group in groupby(samples, key=lambda s: s.model_dump(exclude={"seconds"})):
        batches.append({**shared, "seconds": [float(f"{s.seconds:.7g}") for s in group]})
    return batches


def encode(record: Record, batches: list[dict[str, Any]]) -> bytes:
    """Numbers that are not finite become null: JSON has no others."""
    samples = json.dumps(batches, allow_nan=False, separators=(",", ":"))
    return f'{{"record":{record.model_dump_json()},"samples":{samples}}}\n'.encode()


def read_lines(path: Path) -> Iterator[tuple[Record, list[dict[str, Any]]]]:
    """Each complete line as (record, batches of samples), in order: first those of `path`.xz, where a run that is kept
    has its earlier ones, then those of `path`; nothing where there is neither.

    Raises MachineError when a line is not one: something else has written there.
    """
    for file, read in ((path.with_name(f"{path.name}.xz"), _unpacked), (path, Path.read_bytes)):
        if not file.exists():
            continue
        whole, _, _ = read(file).rpartition(b"\n")
        for number, text in enumerate(whole.split(b"\n") if whole else [], start=1):
            try:
                content = json.loads(text)
                yield Record.model_validate(content["record"]), content["samples"]
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                reason = str(error).splitlines()[0]
                raise MachineError(f"{file}:{number}: not a record ({reason}); mend or remove that line") from None


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a training's log, up to one that a kill has cut; nothing where there is no file."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def _unpacked(path: Path) -> bytes:
    try:
        return lzma.decompress(path.read_bytes())
    except lzma.LZMAError as error:
        raise MachineError(f"{path}: not whole ({error}); take it from where it is kept, or remove it") from None


def latest(path: Path) -> dict[Key, Record]:
    """The last record of each key."""
    return {record.key(): record for record, _ in read_lines(path)}


def pending(config: Config, panel: str) -> list[tuple[Case, str]]:
    """The (case, contender) rows of `panel` without a record of the contender's present code, and those whose record
    says unavailable where now it is not (its package came). Loads the packages of such contenders only."""
    contenders = config.contenders(config.experiments[panel.partition("/")[0]].op)
    planned = config.rows(panel)
    code = {name: contenders[name].code_hash() for name in {name for _, name in planned}}
    found = latest(records_path(config, panel))

    @functools.cache
    def came(name: str) -> bool:
        try:
            return contenders[name].unavailable(find_target(config.device)) is None
        except MachineError:  # planning on a node without the GPU
            return False
        except Exception:  # of a user's contender: its record will say it
            return True

    rows = []
    for case, name in planned:
        record = found.get((case.experiment, case.panel, case.id, name))
        if record is None or record.code_hash != code[name] or (record.status == "unavailable" and came(name)):
            rows.append((case, name))
    return rows


class Store:
    """The one writer of a panel's records.

    Opening it raises MachineError, before anything is measured, where the folder cannot be written, the disk has
    no room, or another process is writing.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _probe(path.parent)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise MachineError(_cannot_write(path.parent, error)) from None
        if not try_lock(self._fd):
            os.close(self._fd)
            raise MachineError(f"{path}: another process is writing it; wait for it to end")
        self._set_torn_line_aside()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def append(self, record: Record, batches: list[dict[str, Any]]) -> None:
        """Put one record on the disk. Raises MachineError, with the file as it was before, when it has no room."""
        data = encode(record, batches)
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, size)
            raise MachineError(_cannot_write(self.path, error)) from None

    def _set_torn_line_aside(self) -> None:
        data = self.path.read_bytes()
        torn = data[data.rfind(b"\n") + 1 :]
        if not torn:
            return
        aside = self.path.with_suffix(self.path.suffix + ".torn")
        with aside.open("ab") as file:
            file.write(torn + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.ftruncate(self._fd, len(data) - len(torn))
        os.fsync(self._fd)


def _probe(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _cannot_write(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror or error}; nothing recorded before is lost: make room or choose a writable folder"
