"""The ops, by name."""

from __future__ import annotations

from harness.ops.base import Op

OPS: dict[str, Op] = {}
