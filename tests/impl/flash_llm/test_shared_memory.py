"""What the emulated kernels do to shared memory, counted per instruction."""

from __future__ import annotations

import pytest
import torch

from impl.cuda import emulator
from impl.flash_llm.formats import Bitmap, TiledCSL, TwoOfFour
from impl.flash_llm.kernels import Problem, along_k, tiled_csl
from impl.flash_llm.kernels.warp_blocks import BITMAP, TWO_OF_FOUR
from tests.impl.flash_llm.devices import A100, H200
from tests.impl.flash_llm.matrices import random_sparse

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))


def shared_accesses(plan, weight, x):
    """The counts, one per instruction and source line, of those that touch shared memory."""
    counts = []
    operands = (weight.data, weight.offsets, x, weight.shape[0])
    plan.multiply(*operands, lambda *call: counts.extend(emulator.count(*call)))
    return [count for count in counts if count.wavefronts]


@pytest.mark.parametrize("n", tiled_csl.SPMM)
def test_only_the_scatter_of_tiled_csl_has_bank_conflicts(n):
    """The scatter takes under 1.6 cycles per warp store at 80 % sparsity; everything else reaches the ideal."""
    weight, x = TiledCSL.from_dense(random_sparse(128, 512, 0.2)), torch.randn(512, n).half()
    shared = shared_accesses(tiled_csl.choose_plan(Problem(128, n, 512, 0, 0), A100, split_k=1), weight, x)
    scatter = [count for count in shared if (count.instruction, count.bytes) == ("st.shared", 2)]
    others = [count for count in shared if count not in scatter]
    assert {"ldmatrix.x4", "ldmatrix.x4.trans", "st.shared"} <= {count.instruction for count in others}
    assert all(count.wavefronts == count.ideal_wavefronts for count in others)
    assert sum(count.wavefronts for count in scatter) < 1.6 * sum(count.instructions for count in scatter)


@pytest.mark.parametrize(("n", "device"), [(8, A100), (8, H200), (16, A100), (32, H200), (64, H200)])
def test_no_bank_conflicts_and_few_reads_of_a_bitmap(n, device):
    """No access of shared memory conflicts, and a warp reads at most one word per pair of elements and its bits."""
    weight, x = Bitmap.from_dense(random_sparse(32, 512, 0.2)), torch.randn(512, n).half()
    plan = along_k.choose_plan(BITMAP, Problem(1024, n, 512, weight.nbytes, weight.longest), device, split_k=1)
    shared = shared_accesses(plan, weight, x)
    assert all(count.wavefronts == count.ideal_wavefronts for count in shared)
    reads = sum(count.wavefronts for count in shared if count.instruction == "ld.shared")
    assert 2 * 8 < reads <= 2 * (8 + 128)


@pytest.mark.parametrize("n", [8, 16, 64])
def test_only_words_of_two_of_four_have_bank_conflicts(n):
    """At 80 % zeros the words that 32 lanes read lie 2.7 deep in a bank, and gathered rows of X almost never twice."""
    weight, x = TwoOfFour.from_dense(random_sparse(128, 512, 0.2)), torch.randn(512, n).half()
    plan = along_k.choose_plan(TWO_OF_FOUR, Problem(128, n, 512, weight.nbytes, weight.longest), A100, split_k=1)
    shared = shared_accesses(plan, weight, x)

    def times_ideal(*kinds):
        counts = [count for count in shared if (count.instruction, count.bytes) in kinds]
        return sum(count.wavefronts for count in counts) / sum(count.ideal_wavefronts for count in counts)

    assert 2 < times_ideal(("ld.shared", 4)) < 3
    assert times_ideal(("ldmatrix.x4.trans", 16)) < 1.2
    assert times_ideal(("ld.shared", 2), ("ld.shared", 16)) == 1
