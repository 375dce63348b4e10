"""A case: one op at one shape, dtype, sparsity and seed, with an id that never depends on the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from harness.strict import StrictModel

if TYPE_CHECKING:
    from harness.ops.base import Op

Dtype = Literal["float16", "bfloat16", "float32"]


class CaseParams(StrictModel):
    """Fields every op's cases have. Ops subclass this."""

    dtype: Dtype = "float16"
    seed: int = Field(0, ge=0, lt=2**63)

    def slug(self) -> str:
        """Readable, unique, file-name safe text of all fields; the case id is `<op>.<slug>`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Case:
    """One case in its place: `experiment` and `panel` say where it is drawn, `params` what is computed."""

    experiment: str
    panel: str
    op: Op
    params: CaseParams
    energy: tuple[str, ...] = ()  # contenders whose energy is taken on this case

    @property
    def id(self) -> str:
        return f"{self.op.name}.{self.params.slug()}"
