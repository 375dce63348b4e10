from __future__ import annotations

import pytest
import torch

from harness.ops.masks import causal_mask, pattern_mask, visible_pairs


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "expected"),
    [
        (2, 5, ["11110", "11111"]),
        (5, 2, ["00", "00", "00", "10", "11"]),
        (3, 3, ["100", "110", "111"]),
        (1, 4, ["1111"]),
    ],
)
def test_causal_mask_is_aligned_bottom_right(seqlen_q, seqlen_k, expected):
    mask = causal_mask(range(seqlen_q), seqlen_q, seqlen_k, "cpu")
    assert ["".join(str(int(x)) for x in row) for row in mask] == expected


def test_a_part_of_the_rows_is_that_part_of_the_mask():
    whole = causal_mask(range(7), 7, 9, "cpu")
    assert torch.equal(causal_mask(range(2, 5), 7, 9, "cpu"), whole[2:5])


@pytest.mark.parametrize("seqlen_q", [1, 2, 5, 8])
@pytest.mark.parametrize("seqlen_k", [1, 3, 8, 9])
def test_visible_pairs_counts_the_mask(seqlen_q, seqlen_k):
    assert visible_pairs(seqlen_q, seqlen_k, True) == int(causal_mask(range(seqlen_q), seqlen_q, seqlen_k, "cpu").sum())
    assert visible_pairs(seqlen_q, seqlen_k, False) == seqlen_q * seqlen_k


def test_visible_pairs_has_no_32_bit_limit():
    assert visible_pairs(2**20, 2**20, True) == 2**39 + 2**19


def test_pattern_mask_expands_blocks_and_cuts_the_tail():
    pattern = torch.tensor([[[True, False], [False, True]]])
    mask = pattern_mask(pattern, 2, range(1, 3), 3)
    assert mask.tolist() == [[[True, True, False], [False, False, True]]]
