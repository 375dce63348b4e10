"""Ways to attend that a training run compares, by the names of labels.py; one idea a file.

Each is a module per layer, called with q, k, v [batch, heads, seqlen, head_dim] and lengths int [batch].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from impl.sparse_training.methods.base import Attention
from impl.sparse_training.methods.block_sparse import BlockSparse, bigbird, window
from impl.sparse_training.methods.dense import Flash, Materialised
from impl.sparse_training.methods.element_csr import ElementSparse
from impl.sparse_training.methods.linformer import Linformer
from impl.sparse_training.methods.nystromformer import Nystromformer
from impl.sparse_training.methods.performer import Performer
from impl.sparse_training.methods.reformer import Reformer
from impl.sparse_training.recipes import HEADS, WIDTH, Recipe


@dataclass(frozen=True)
class Method:
    """A row of the comparison: what each layer attends with, and what the trainer does about maps and patterns."""

    attention: Callable[[Recipe], Attention]
    transition: Literal["sat", "spion"] | None = None
    map_every_step: bool = False
    monitor_on_cpu: bool = False  # as published: every map goes to the host
    fixed: Callable[[int], Tensor] | None = None  # blocks -> the pattern from the first step on


def _padded(recipe: Recipe) -> bool:
    return recipe.task in ("listops", "text", "retrieval")


def _flash(recipe: Recipe) -> Attention:
    return Flash(_padded(recipe))


def _pruned_as_zero(recipe: Recipe) -> Attention:
    return BlockSparse(_flash(recipe), recipe.block, "pruned_as_zero")


def _renormalised(recipe: Recipe) -> Attention:
    return BlockSparse(_flash(recipe), recipe.block, "renormalised")


METHODS = {
    "dense": Method(lambda recipe: Materialised()),
    "dense_map": Method(lambda recipe: Materialised(), map_every_step=True),
    "dense_monitor": Method(lambda recipe: Materialised(), map_every_step=True, monitor_on_cpu=True),
    "dense_flash": Method(_flash),
    "sat": Method(_pruned_as_zero, transition="sat"),
    "sat_csr": Method(lambda recipe: ElementSparse(_flash(recipe), recipe.block), transition="sat"),
    "spion": Method(_pruned_as_zero, transition="spion"),
    "window": Method(_renormalised, fixed=window),
    "bigbird": Method(_renormalised, fixed=bigbird),
    "linformer": Method(lambda recipe: Linformer(recipe.seqlen)),
    "performer": Method(lambda recipe: Performer(WIDTH // HEADS)),
    "nystromformer": Method(lambda recipe: Nystromformer(HEADS)),
    "reformer": Method(lambda recipe: Reformer()),
}
