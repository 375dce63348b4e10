"""A worker process seen from outside: its events, its silence, its death."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from harness.paths import ROOT
from harness.worker import Job

POLL_S = 0.2


class Hang(Exception):
    """The worker has said nothing for longer than it may."""


class WorkerProcess:
    """A worker at work on `job`, in its own process group, with CUDA_VISIBLE_DEVICES set to the job's GPU."""

    def __init__(self, job: Job):
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
        self._events, writing = os.pipe()
        # Segments that grow leave no holes: a decoder of 141 GB has room for a few more, if they are in one piece.
        environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} | os.environ
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *_python_path()])
        if job.gpu_uuid:
            environment["CUDA_VISIBLE_DEVICES"] = job.gpu_uuid
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.worker", str(writing)],
            stdin=subprocess.PIPE,
            stdout=self._stderr,
            stderr=self._stderr,
            env=environment,
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        with contextlib.suppress(BrokenPipeError):  # it died at once: next_event will tell
            self._process.stdin.write(job.to_json().encode())
            self._process.stdin.close()
        self._unread = b""

    def next_event(self, timeout_s: float, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """The next event; None when the worker has ended, or `stopped()`. Raises Hang after `timeout_s` of silence."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if stopped():
                return None
            if time.monotonic() > deadline:
                raise Hang
            if select.select([self._events], [], [], POLL_S)[0]:
                data = os.read(self._events, 2**20)
                if not data:
                    return None
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        """Kill the whole process group, if it is still there, and wait for the worker."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._events)

    def how_it_died(self) -> str:
        """Signal or exit code, and the last line it wrote."""
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "closed its events and went on"
        if code == -signal.SIGKILL:
            how = "killed by SIGKILL, as by the out-of-memory killer"
        elif code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        lines = self.output().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}; last words: {last[:200]}" if last else how

    def output(self) -> str:
        """What it wrote to stdout and stderr."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")


def _python_path() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]
