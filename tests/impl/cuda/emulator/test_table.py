"""The table of counts: what a product takes by arithmetic alone is what it says."""

from __future__ import annotations

import itertools

from impl.cuda.emulator import table


def test_tensor_instructions_are_those_of_the_products(monkeypatch):
    """256 queries and keys of head dim 64: two products, 1024 multiplications per warp's m8n8k4."""
    first = list(itertools.islice(table.calls(), 1))
    monkeypatch.setattr(table, "calls", lambda: first)
    rows = table.table()
    assert set(rows.kernel) == {"spark_attention_forward_sm70_d64"}
    assert set(rows["shape"]) == {"B=1 H=1 S=256 D=64"}
    mma = rows[rows.instruction.str.startswith("mma")]
    assert list(mma.instructions) == [256 * 256 * 64 / 1024] * 2
    assert not rows.duplicated(["instruction", "bytes"]).any()
