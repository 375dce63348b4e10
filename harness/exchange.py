"""Contenders of a whole model: it is the same for all, but for the attention, which is that of a contender for the op
attention."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from harness.contender import Contender, Prepared, Target
from harness.ops.calls import Forward, training_call
from harness.paths import ROOT

if TYPE_CHECKING:
    from torch import Tensor

    from harness.ops.attention import AttentionParams
    from harness.ops.base import Tensors
    from harness.ops.training_step import TrainingStepParams

Call = Callable[[], "dict[str, Tensor]"]


class AttentionContender(Contender):
    """A contender of the op attention that can stand in a model."""

    op = "attention"

    @abstractmethod
    def function(self, params: AttentionParams, target: Target) -> Forward:
        """The attention of q, k, v [batch, heads, seqlen, head_dim] of such a case, differentiable."""

    def first_call(self, make: Callable[[], Call]) -> Call:
        """What `make` gives, called once, as what a first call does is set-up. Raises Unsupported where a library
        then refuses the case."""
        run = make()
        run()
        return run


class TrainingStepContender(Contender):
    """A training step with the attention of `attention`, whose name, label and limits it takes."""

    op = "training_step"
    attention: ClassVar[AttentionContender]

    def __init_subclass__(cls) -> None:
        of, file = cls.attention, Path(inspect.getfile(type(cls.attention)))
        cls.name, cls.role, cls.label, cls.source = of.name, of.role, of.label, of.source
        cls.summary = f"a training step with this attention: {of.summary}"
        steps = ("harness/exchange.py", "harness/ops/calls.py", "harness/ops/transformer.py")
        cls.sources = tuple(dict.fromkeys([*of.sources, str(file.relative_to(ROOT)), *steps]))

    def unavailable(self, target: Target) -> str | None:
        return self.attention.unavailable(target)

    def unsupported(self, params: TrainingStepParams, target: Target) -> str | None:
        return self.attention.unsupported(params.attention("backward"), target)

    def prepare(self, params: TrainingStepParams, inputs: Tensors, target: Target) -> Prepared:
        function = self.attention.function(params.attention("forward"), target)
        run = self.attention.first_call(lambda: training_call(function, params, inputs))
        return Prepared(run, **self.fields(params, target))

    def fields(self, params: TrainingStepParams, target: Target) -> dict[str, Any]:
        """What ran: fields of Prepared."""
        return {"backend": "library"}
