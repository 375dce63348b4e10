"""docs/records.md, the data dictionary, made from the models: `python -m harness.dictionary`."""

from __future__ import annotations

import types
import typing
from typing import Any

from harness.claims import ClaimRow
from harness.paths import ROOT
from harness.records import SCHEMA_VERSION, CurvePoint, Record, Sample
from harness.throughput import ModelRow

PATH = ROOT / "docs" / "records.md"
_HEAD = f"""# Records: the data dictionary

Made from `harness/records.py`, `harness/claims.py` and `harness/throughput.py` by
`python -m harness.dictionary`; do not edit. Schema version {SCHEMA_VERSION}.

Times are seconds, energies joules, sizes bytes, clocks MHz, temperatures degrees Celsius. Null means not applicable or
not known; `reason` or `energy_quality` says why where it matters.
"""
_TABLES = [
    ("records.parquet", "One row per (case, contender) of a run, whether it could be measured or not.", Record),
    (
        "samples.parquet",
        "One row per timed sample; `experiment`, `panel`, `case_id` and `contender` name its record and come first.",
        Sample,
    ),
    ("curves.parquet", "One row per step of each training of `training_curves`.", CurvePoint),
    ("claims.csv", "One row per published claim.", ClaimRow),
    (
        "model.csv",
        "One row per kernel of ours that is modelled (docs/model.md): expected; measured only where it says so.",
        ModelRow,
    ),
]


def dictionary() -> str:
    """The text of docs/records.md."""
    parts = [_HEAD]
    for name, what, model in _TABLES:
        rows = [
            f"| `{field}` | {_type(info.annotation)} | {_cell(info.description)} |"
            for field, info in model.model_fields.items()
        ]
        table = "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])
        parts.append(f"## {name}\n\n{what}\n\n{table}\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(annotation: Any) -> str:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " or ".join("null" if a is type(None) else _type(a) for a in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    return {"str": "text", "bool": "true/false", "float": "number", "int": "integer"}[annotation.__name__]


if __name__ == "__main__":
    PATH.write_text(dictionary())
