"""Contenders of the op sparse_training_step: a step of the same model with each of the trainer's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.sparse_training_step import SparseTrainingStepParams, batch_of, encoder, methods_of, pattern_of
from impl.sparse_training.labels import LABELS

if TYPE_CHECKING:
    from impl.sparse_training.methods.base import Attention

torch = lazy_import("torch")


class MethodStep(Contender):
    """A step with `method`, in its sparse phase where it has one."""

    op = "sparse_training_step"
    method: ClassVar[str]
    computes: ClassVar[str | None] = None  # a method of the same function, to share its reference
    dense_phase: ClassVar[bool] = False
    watched: ClassVar[bool] = False  # the averaged maps are taken in each step
    graphable: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.name = vars(cls).get("name", cls.method)
        cls.label = vars(cls).get("label", LABELS[cls.method])
        cls.summary = f"a training step with this attention: {cls.label}"
        folder = "impl/sparse_training"
        files = ("attention_map.py", "methods", "model.py", "pattern.py")
        steps = ("harness/method_step.py", "harness/ops/encoder_losses.py", "harness/ops/transformer.py")
        cls.sources = (*steps, *(f"{folder}/{name}" for name in files), *vars(cls).get("sources", ()))

    def reference_case(self, params: SparseTrainingStepParams, inputs: Tensors) -> tuple[Any, Tensors]:
        return params.model_copy(update={"method": self.computes or self.method}), inputs

    def prepare(self, params: SparseTrainingStepParams, inputs: Tensors, target: Target) -> Prepared:
        from harness.ops.transformer import Training
        from impl.sparse_training.methods.block_sparse import BlockSparse

        own = params.model_copy(update={"method": self.method})
        attentions = methods_of(own)
        model = encoder(own, inputs, attentions, torch.float32)
        for attention in attentions:
            attention.watched = self.watched
            if isinstance(attention, BlockSparse) and not self.dense_phase:
                attention.set_pattern(pattern_of(own, inputs))
        training = Training(model, torch.float16, learning_rate=0.0, scale_steps=2**31 - 1)
        batch, monitor = batch_of(inputs), self.monitor(params, attentions, target)

        def run() -> Tensors:
            outputs = training.step(*batch)
            monitor()
            return outputs

        run()  # which compiles and chooses
        return Prepared(run, graphable=self.graphable, **self.fields(params, inputs, target))

    def monitor(
        self, params: SparseTrainingStepParams, attentions: list[Attention], target: Target
    ) -> Callable[[], object]:
        """What is done with the maps after each step."""
        return lambda: None

    def fields(self, params: SparseTrainingStepParams, inputs: Tensors, target: Target) -> dict[str, Any]:
        """What ran: fields of Prepared."""
        return {"backend": "library"}
