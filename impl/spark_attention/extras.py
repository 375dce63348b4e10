"""What attention may be given beside q, k, v: a mask and dropout."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

ABSORBING = -4096.0
"""What is added to a score replaces it from here on, as it would in 16 bits: a row of finfo.min is uniform, and its
log-sum-exp still has the bits that a backward needs."""
_DROPOUT_VALUES = 2**16  # of the random bits of a score


@dataclass(frozen=True)
class Extras:
    """`mask`: [batch, heads, seqlen_q, seqlen_k], expanded, unit stride along seqlen_k; boolean (False hides), or added
    to the scores, float32 or of the inputs' type. `dropout_p`: share of probabilities dropped, to 1/65536.
    `seed`: int64 scalar on the inputs' device, with dropout."""

    mask: Tensor | None = None
    dropout_p: float = 0.0
    seed: Tensor | None = None

    def __bool__(self) -> bool:
        return self.mask is not None or self.dropout_p > 0

    @property
    def dropped(self) -> int:
        """How many of the values that a score's random bits can have drop it."""
        return min(round(self.dropout_p * _DROPOUT_VALUES), _DROPOUT_VALUES - 1)

    @property
    def keep_scale(self) -> float:
        """What probabilities that are kept are multiplied by: one over the share that is kept, as `dropped` has it."""
        return _DROPOUT_VALUES / (_DROPOUT_VALUES - self.dropped)


NONE = Extras()
