"""Contenders for spmm that go wrong in every way that a record has a name for. Loaded through `contender_folders`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors

torch = lazy_import("torch")


class _SpMM(Contender):
    op = "spmm"
    role = "baseline"
    label = summary = source = "test"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        return Prepared(lambda: self.call(inputs["w"], inputs["x"]), backend="library")

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": w @ x}


class Good(_SpMM):
    name = "good"


class Slow(_SpMM):
    name = "slow"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(0.02)
        return super().call(w, x)


class Fragile(_SpMM):
    """Right, until something in the environment changes."""

    name = "fragile"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if os.environ.get("VOLTABENCH_TEST_FALL"):
            os.abort()
        return super().call(w, x)


class Segfault(_SpMM):
    name = "segfault"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        print("about to fall", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}


class Quits(_SpMM):
    name = "quits"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        os._exit(3)


class HangsWhenTimed(_SpMM):
    """Right twice, for the gate; then it never returns."""

    name = "hangs"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        calls = iter(range(10**6))

        def run() -> dict[str, torch.Tensor]:
            if next(calls) >= 2:
                time.sleep(600)
            return self.call(inputs["w"], inputs["x"])

        return Prepared(run, backend="library")


class Wrong(_SpMM):
    name = "wrong"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = w @ x
        return {"y": y.roll(1, 0)}


class WrongLater(_SpMM):
    """Right until it has been timed for a while: only the second pass of the gate sees it."""

    name = "wrong_later"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        calls: list[Callable[[], None]] = []

        def run() -> dict[str, torch.Tensor]:
            calls.append(run)
            y = inputs["w"] @ inputs["x"]
            return {"y": y if len(calls) < 10 else y + 1}

        return Prepared(run, backend="library")


class ScalesItsInput(_SpMM):
    """Right at the first call; all that use X after it are not."""

    name = "scales_its_input"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = w @ x
        x.mul_(2)
        return {"y": y}


class PrunesItsInput(_SpMM):
    """Makes its problem an easier one before anyone has looked."""

    name = "prunes_its_input"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        inputs["w"].zero_()
        return super().prepare(params, inputs, target)


class Unwritten(_SpMM):
    """Writes all rows of its static buffer at the first call, all but one afterwards."""

    name = "unwritten"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        buffer = inputs["w"] @ inputs["x"]

        def run() -> dict[str, torch.Tensor]:
            buffer[1:] = (inputs["w"] @ inputs["x"])[1:]
            return {"y": buffer}

        return Prepared(run, backend="library")


class OutOfMemory(_SpMM):
    name = "oom"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 GiB.")


class Raises(_SpMM):
    name = "raises"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        raise ValueError("no kernel\nfor this shape")


class OtherBackend(_SpMM):
    """Says something that no record can hold."""

    name = "other_backend"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        return Prepared(lambda: self.call(inputs["w"], inputs["x"]), backend="gpu")


class OtherTuning(_SpMM):
    name = "other_tuning"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        return Prepared(lambda: self.call(inputs["w"], inputs["x"]), backend="library", tuning={"shape": object()})


class NotPrepared(_SpMM):
    name = "not_prepared"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        return None


class CannotSay(_SpMM):
    name = "cannot_say"

    def unsupported(self, params: Any, target: Target) -> str | None:
        raise RuntimeError("no such\nfile")


class Unsupported(_SpMM):
    name = "unsupported"

    def unsupported(self, params: Any, target: Target) -> str | None:
        return "m must be odd"


class UntimedHere(_SpMM):
    name = "untimed"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        prepared = super().prepare(params, inputs, target)
        prepared.no_times = "the GPU emulates its instruction"
        return prepared


class NeedsPackage(_SpMM):
    name = "needs_package"

    def unavailable(self, target: Target) -> str | None:
        return None if os.environ.get("VOLTABENCH_TEST_PACKAGE") else "pip install the-package"


class LosesContext(_SpMM):
    """A device-side assertion: every later CUDA call of the process fails."""

    name = "loses_context"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        beyond = torch.full((1,), 2**40, device=w.device)
        return {"y": w[beyond] @ x}


class Synchronises(_SpMM):
    """Right, but it cannot be captured in a CUDA graph and does not say so."""

    name = "synchronises"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        torch.cuda.synchronize()
        return super().call(w, x)


class TooLarge(_SpMM):
    name = "too_large"

    def call(self, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        torch.empty(2**50, dtype=torch.uint8, device=w.device)
        return super().call(w, x)
