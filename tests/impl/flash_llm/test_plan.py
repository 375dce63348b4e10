"""How a product is cut into blocks: a function of its shape and the number of SMs alone."""

from __future__ import annotations

import pytest

from impl.flash_llm.kernels.tiled_csl import choose_plan

H200_SMS = 132
OPT_LAYERS = [(21504, 7168), (7168, 7168), (28672, 7168), (7168, 28672), (49152, 12288), (12288, 49152)]


@pytest.mark.parametrize(("n", "tile_n"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64), (64, 64), (129, 64)])
def test_narrowest_tile_that_holds_n(n, tile_n):
    assert choose_plan(128, n, 64, H200_SMS).tile_n == tile_n


@pytest.mark.parametrize(("m", "k"), OPT_LAYERS)
@pytest.mark.parametrize("n", [8, 16, 32, 64])
def test_a_layer_fills_the_machine(m, k, n):
    """At least four fifths of the block slots are taken, averaged over the waves."""
    plan = choose_plan(m, n, k, H200_SMS)
    slots = H200_SMS * plan.kernels[0].min_blocks_per_sm
    blocks = m // 128 * plan.split_k
    assert blocks / (-(-blocks // slots) * slots) >= 0.8


def test_one_row_of_tiles_is_split_and_a_tall_matrix_is_not():
    assert choose_plan(128, 8, 28672, H200_SMS).split_k > 32
    assert choose_plan(128 * 4 * H200_SMS * 20, 8, 1024, H200_SMS).split_k == 1
    assert choose_plan(7168, 4096, 7168, H200_SMS).split_k == 1
    assert choose_plan(128, 8, 64, H200_SMS).split_k == 1


def test_a_split_can_be_asked_for():
    assert choose_plan(128, 8, 640, H200_SMS, split_k=7).split_k == 7
    with pytest.raises(ValueError, match="split_k=11 must be 1 to 10 for k=640"):
        choose_plan(128, 8, 640, H200_SMS, split_k=11)
