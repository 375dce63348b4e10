"""One measurement per device at a time: a lock that lives as long as its holder, whatever ends it."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.5


@contextmanager
def hold_one(names: Sequence[str], say: Callable[[str], None], stopped: Callable[[], bool]) -> Iterator[str | None]:
    """Hold the lock of the first free of `names`, or wait for one and `say` so. None when `stopped()` first.

    The locks are files in the temp folder, shared by all users of the machine.
    """
    files = {name: _open(Path(tempfile.gettempdir()) / f"voltabench-{name}.lock") for name in names}
    held, waiting = None, False
    try:
        while not stopped():
            held = next((name for name, fd in files.items() if try_lock(fd)), None)
            if held is not None:
                break
            if not waiting:
                say(f"another run is measuring on {' and '.join(names)}; waiting for it to end")
                waiting = True
            time.sleep(POLL_S)
        yield held
    finally:
        for fd in files.values():
            os.close(fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    except PermissionError:  # another user's file in a sticky folder may be opened but not with O_CREAT
        return os.open(path, os.O_RDONLY)


def try_lock(fd: int) -> bool:
    """Whether the file is now this process's, which it stays until it is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
