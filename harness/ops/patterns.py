"""Where the zeros of a sparse matrix lie: patterns of one sparsity that are unlike each other tile by tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from harness.lazy import lazy_import

if TYPE_CHECKING:
    from torch import Generator, Tensor

torch = lazy_import("torch")

Pattern = Literal["random", "2:4", "row_skew", "banded", "clustered", "magnitude"]
CLUSTER = 32  # side of a block of `clustered`


def why_not(pattern: Pattern, k: int, sparsity: float, dtype: str) -> str | None:
    """Why a matrix of k columns cannot have the pattern, or None."""
    if pattern == "2:4" and (sparsity != 0.5 or k % 4):
        return f"pattern 2:4 needs sparsity=0.5 and k a multiple of 4, not {sparsity:g} and {k}"
    if pattern in ("row_skew", "clustered") and sparsity < 0.5:
        return f"pattern {pattern} doubles densities, so it needs sparsity of 0.5 or more, not {sparsity:g}"
    if pattern == "magnitude" and dtype == "float32":
        return "pattern magnitude is for 16-bit types"
    return None


def set_zeros_(w: Tensor, pattern: Pattern, sparsity: float, generator: Generator) -> None:
    """Set elements of w [m, k] to zero, in place, as the pattern says:

    random: each with the probability `sparsity`; 2:4: two of each four in a row; row_skew: as random, but the density
    of a row is uniform between 0 and twice the mean; banded: each row keeps one run of adjacent elements, centred on
    the diagonal and cyclic; clustered: half of the blocks of 32 x 32 are empty, the others have twice the density;
    magnitude: the least elements, exactly as many.
    """
    m, k = w.shape
    options = {"generator": generator, "device": w.device}
    if pattern == "magnitude":
        from impl.flash_llm.pruning import prune_

        prune_(w, sparsity)
    elif pattern == "2:4":
        pairs = torch.combinations(torch.arange(4, device=w.device))
        kept = torch.zeros(len(pairs), 4, dtype=torch.bool, device=w.device).scatter_(1, pairs, True)
        w.masked_fill_(~kept[torch.randint(len(pairs), (m, k // 4), **options)].flatten(1), 0)
    elif pattern == "banded":
        width = round((1 - sparsity) * k)
        first = torch.arange(m, device=w.device) * k // m - width // 2
        column = torch.arange(k, device=w.device, dtype=torch.int32)
        w.masked_fill_((column - first.int().unsqueeze(1)) % k >= width, 0)
    else:
        w.masked_fill_(torch.rand(m, k, **options) < _zero_probability(pattern, m, k, sparsity, options), 0)


def _zero_probability(pattern: Pattern, m: int, k: int, sparsity: float, options: dict) -> Tensor | float:
    """Of each element, broadcastable to [m, k]."""
    if pattern == "row_skew":
        return 1 - 2 * (1 - sparsity) * torch.rand(m, 1, **options)
    if pattern == "clustered":
        blocks = torch.rand(-(-m // CLUSTER), -(-k // CLUSTER), **options) < 0.5
        full = blocks.repeat_interleave(CLUSTER, 0)[:m].repeat_interleave(CLUSTER, 1)[:, :k]
        return 1 - 2 * (1 - sparsity) * full
    return sparsity
