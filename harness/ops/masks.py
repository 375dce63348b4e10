"""Which keys a query sees: the causal mask and block patterns, for the ops and for the contenders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.lazy import lazy_import

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


def causal_mask(rows: range, seqlen_q: int, seqlen_k: int, device: Any) -> Tensor:
    """Bool [len(rows), seqlen_k], True where query row i sees key j: j <= i + seqlen_k - seqlen_q."""
    last_key = torch.arange(rows.start, rows.stop, device=device)[:, None] + (seqlen_k - seqlen_q)
    return torch.arange(seqlen_k, device=device) <= last_key


def visible_pairs(seqlen_q: int, seqlen_k: int, causal: bool) -> int:
    """How many (query, key) pairs of one head the causal mask leaves."""
    if not causal:
        return seqlen_q * seqlen_k
    rows = min(seqlen_q, seqlen_k)  # the last rows see seqlen_k, seqlen_k - 1, ... keys; earlier ones see none
    return rows * (2 * seqlen_k - rows + 1) // 2


def pattern_mask(pattern: Tensor, block: int, rows: range, seqlen_k: int) -> Tensor:
    """Bool [pattern heads, len(rows), seqlen_k] from a block pattern [heads, query blocks, key blocks]."""
    row_blocks = torch.arange(rows.start, rows.stop, device=pattern.device) // block
    key_blocks = torch.arange(seqlen_k, device=pattern.device) // block
    return pattern[:, row_blocks][:, :, key_blocks]
