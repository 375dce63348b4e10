"""The lists of a pattern: what is in them, and in which order work is taken."""

from __future__ import annotations

import pytest
import torch

from impl.sparse_training.block_pattern import BlockPattern

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def unpack(lists, blocks):
    """Order, and the lists themselves, of each pattern."""
    for of_pattern in lists.tolist():
        order, starts, entries = of_pattern[:blocks], of_pattern[blocks : 2 * blocks + 1], of_pattern[2 * blocks + 1 :]
        yield order, [entries[starts[i] : starts[i + 1]] for i in range(blocks)]


@on_each_device
@pytest.mark.parametrize("heads", [1, 3])
def test_lists_hold_the_kept_blocks_in_order(device, heads):
    kept = torch.rand(heads, 9, 9, generator=torch.Generator().manual_seed(heads)) < 0.3
    kept[:, 4] = kept[:, :, 5] = False
    pattern = BlockPattern.of(kept.to(device), 64)
    assert (pattern.block, pattern.blocks, pattern.rows.dtype) == (64, 9, torch.int32)
    for lists, matrices in ((pattern.rows, kept), (pattern.columns, kept.mT)):
        for (_, got), matrix in zip(unpack(lists, 9), matrices, strict=True):
            assert got == [row.nonzero().flatten().tolist() for row in matrix]


@on_each_device
def test_the_longest_list_comes_first_and_ties_by_number(device):
    kept = torch.zeros(1, 4, 4, dtype=torch.bool, device=device)
    kept[0, 2] = True
    kept[0, :, 1] = True
    kept[0, 3, 3] = True
    pattern = BlockPattern.of(kept, 32)
    assert next(unpack(pattern.rows, 4))[0] == [2, 3, 0, 1]
    assert next(unpack(pattern.columns, 4))[0] == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("kept", "block", "message"),
    [
        (torch.ones(1, 2, 3, dtype=torch.bool), 32, "must be bool"),
        (torch.ones(2, 2, dtype=torch.bool), 32, "must be bool"),
        (torch.ones(1, 2, 2), 32, "must be bool"),
        (torch.ones(1, 2, 2, dtype=torch.bool), 0, "positive"),
    ],
)
def test_what_is_no_pattern_is_refused(kept, block, message):
    with pytest.raises(ValueError, match=message):
        BlockPattern.of(kept, block)


@pytest.mark.gpu
def test_making_lists_does_not_wait_for_the_device():
    kept = torch.ones(2, 64, 64, dtype=torch.bool, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        BlockPattern.of(kept, 64)
    finally:
        torch.cuda.set_sync_debug_mode("default")
