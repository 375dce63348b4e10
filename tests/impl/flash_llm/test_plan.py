"""How a product is cut into blocks: a function of its shape, the weight's size and the GPU alone."""

from __future__ import annotations

import dataclasses

import pytest

from impl.flash_llm.kernels import Problem, along_k, choose_plan, equal_shares, tiled_csl
from impl.flash_llm.kernels.warp_blocks import BITMAP
from tests.impl.flash_llm.devices import A100, H200, OPT_LAYERS, RTX_3090, V100

LINES = 27  # of the longest block of a bitmap at 80 % zeros
AS_SM_80 = dataclasses.replace(H200, capability=(8, 0))


def plan(kind, m, n, k, device=AS_SM_80, split_k=None, longest=LINES):
    return choose_plan(kind.name, Problem(m, n, k, int(0.67 * m * k), longest), device, split_k)


@pytest.mark.parametrize("device", [AS_SM_80, H200])
@pytest.mark.parametrize(("n", "tile_n"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64), (64, 64), (129, 64)])
def test_narrowest_tile_that_holds_n(kind, n, tile_n, device):
    assert plan(kind, 128, n, 256, device).tile_n == tile_n


@pytest.mark.parametrize(("m", "k"), OPT_LAYERS)
@pytest.mark.parametrize("n", [8, 16, 32, 64])
def test_a_layer_fills_the_machine(kind, m, k, n):
    """At least seven tenths of the block slots are taken, averaged over the waves, at 80 % zeros."""
    chosen = plan(kind, m, n, k)
    if kind.name == "bitmap":
        resident = along_k.resident_blocks(BITMAP, chosen.tile_n, chosen.tile_m // 32, LINES, H200)
    else:
        resident = chosen.kernel.min_blocks_per_sm
    slots, blocks = H200.sm_count * resident, m // chosen.tile_m * chosen.split_k
    assert blocks / (-(-blocks // slots) * slots) >= 0.7


def test_one_row_of_tiles_is_split_and_a_tall_matrix_is_not(kind):
    assert plan(kind, 128, 8, 28672).split_k > 16
    assert plan(kind, 128 * 4 * 132 * 20, 8, 1024).split_k == 1
    assert plan(kind, 7168, 4096, 7168).split_k == 1
    assert plan(kind, 128, 8, 64).split_k == 1


def test_a_split_can_be_asked_for(kind):
    k = 10 * kind.tile[1]
    assert plan(kind, 128, 8, k, split_k=7).split_k == 7
    with pytest.raises(ValueError, match=f"split_k=11 must be 1 to 10 for k={k}"):
        plan(kind, 128, 8, k, split_k=11)


@pytest.mark.parametrize(("name", "needed"), [("tiled_csl", 70), ("bitmap", 80), ("two_of_four", 80)])
def test_an_old_gpu_is_refused(name, needed):
    problem, pascal = Problem(128, 8, 256, 1000, LINES), dataclasses.replace(V100, capability=(6, 1))
    with pytest.raises(NotImplementedError, match=f"the {name} kernel needs sm_{needed} or newer; this GPU is sm_61"):
        choose_plan(name, problem, pascal)


def test_volta_has_its_own_source():
    assert choose_plan("tiled_csl", Problem(128, 8, 256, 0, 0), V100).kernel.arch == "sm_70"


@pytest.mark.parametrize(("n", "lines", "warps"), [(8, 50, 8), (16, 50, 8), (16, 54, 4), (32, 27, 8), (64, 40, 4)])
def test_the_number_of_warps_that_puts_more_on_an_sm(n, lines, warps):
    """228 KiB an SM: at n = 16 and 54 lines one block of 8 warps or three of 4."""
    assert along_k.choose_plan(BITMAP, Problem(7168, n, 7168, 7168 * 7168, lines), H200).tile_m == 32 * warps
    assert along_k.choose_plan(BITMAP, Problem(128, n, 7168, 128 * 7168, lines), H200).tile_m == 32 * 4


def test_a_dense_weight_takes_a_narrower_tile():
    problem = Problem(128, 64, 256, 128 * 68 * 4, longest=68)
    assert along_k.choose_plan(BITMAP, problem, A100).tile_n == 64
    assert along_k.choose_plan(BITMAP, problem, RTX_3090).tile_n == 32


@pytest.mark.parametrize(
    ("n", "lines", "per_sm"), [(8, 27, 2), (16, 50, 2), (16, 60, 1), (32, 50, 3), (64, 27, 3), (64, 50, 2)]
)
def test_hopper_holds_as_many_blocks_as_fit(n, lines, per_sm):
    chosen = equal_shares.choose_plan(BITMAP, Problem(28672, n, 7168, 0, lines), H200)
    assert chosen.blocks == 132 * per_sm
    few = equal_shares.choose_plan(BITMAP, Problem(300, n, 1000, 0, lines), H200)
    assert (few.blocks, few.split_k) == (-(-300 // few.tile_m) * 8, 8)


def test_a_gpu_newer_than_hopper_runs_the_older_source():
    problem = Problem(28672, 8, 7168, 0, LINES)
    assert choose_plan("bitmap", problem, H200).kernel.arch == "sm_90a"
    assert choose_plan("bitmap", problem, dataclasses.replace(H200, capability=(10, 0))).kernel.arch == "sm_80"


def test_every_kernel_can_be_planned():
    for tile_n, kernel in tiled_csl.SPMM.items():
        assert tiled_csl.choose_plan(Problem(128, tile_n, 64, 0, 0), H200).kernel == kernel
