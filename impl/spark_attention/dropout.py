"""Which probabilities dropout keeps, by seed, batch, head, row and column alone: the kernels' function in plain torch.

Each score has 16 random bits, of a Philox4x32 of 7 rounds (Salmon et al., SC 2011). One call serves the eight scores of
one row and one column mod 8 within 16 rows by 32 columns: kernels/extras.cuh says why.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 7


def kept(seed: Tensor, dropped: int, batch: int, heads: int, rows: slice, columns: slice) -> Tensor:
    """Whether each probability is kept, bool [batch, heads, rows, columns] on `seed`'s device.

    seed: int64 scalar; dropped: how many of the 65536 values of a score's bits drop it.
    """
    row = torch.arange(rows.start, rows.stop, device=seed.device)[:, None]
    column = torch.arange(columns.start, columns.stop, device=seed.device)
    head = torch.arange(batch * heads, device=seed.device).view(batch, heads, 1, 1)
    words = philox((row // 16 * 8 + row % 8, column // 32 * 8 + column % 8, head, head * 0), seed)
    index = row // 8 % 2 * 4 + column // 8 % 4  # of the eight
    word = torch.stack(torch.broadcast_tensors(*words)).gather(0, (index // 2).expand(batch, heads, -1, -1)[None])[0]
    return (word >> index % 2 * 16 & 0xFFFF) >= dropped


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], seed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32: four words of random bits, as int64, of a counter of four words and a key of 64 bits."""
    x, y, z, w = counter
    keys = (seed & _WORD, seed >> 32 & _WORD)
    for _ in range(_ROUNDS):
        first, second = x * _MULTIPLIERS[0], z * _MULTIPLIERS[1]  # modulo 2^64: the bits of the unsigned product
        x, y, z, w = (
            second >> 32 & _WORD ^ y ^ keys[0],
            second & _WORD,
            first >> 32 & _WORD ^ w ^ keys[1],
            first & _WORD,
        )
        keys = tuple(key + step & _WORD for key, step in zip(keys, _KEY_STEPS, strict=True))
    return x, y, z, w
