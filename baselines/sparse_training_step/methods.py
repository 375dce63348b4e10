"""Training steps with the methods that SAT is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.contender import Target
from harness.lazy import lazy_import
from harness.method_step import MethodStep
from harness.ops.sparse_training_step import SparseTrainingStepParams
from impl.cuda import GPU_SOURCES

if TYPE_CHECKING:
    from impl.sparse_training.methods.base import Attention

torch = lazy_import("torch")

SAT = "Yoon et al., IEEE Access 12, 2024, doi 10.1109/ACCESS.2024.3425638"


class DenseStep(MethodStep):
    """Matmul, softmax, matmul, by autograd."""

    method, role, source = "dense", "baseline", "https://pytorch.org"


class DenseMapStep(MethodStep):
    """The same, and the map averaged over batch and heads."""

    method, computes, role, source = "dense_map", "dense", "baseline", SAT
    watched = True


class DenseMonitorStep(MethodStep):
    """The same, and the published monitor: every map goes to the host, and its statistics are taken there."""

    method, computes, role, source = "dense_monitor", "dense", "baseline", SAT
    watched = True
    graphable = False

    def monitor(
        self, params: SparseTrainingStepParams, attentions: list[Attention], target: Target
    ) -> Callable[[], object]:
        from impl.sparse_training.pattern import TransitionMonitor

        monitor = TransitionMonitor(params.layers, params.seqlen)
        return lambda: monitor(torch.stack([attention.map.cpu() for attention in attentions]))


class DenseFlashStep(MethodStep):
    """PyTorch's SDPA without a mask."""

    method, computes, role, source = "dense_flash", "dense", "baseline", "https://pytorch.org"


class WindowStep(MethodStep):
    """Our kernels over the blocks at most one off the diagonal."""

    method, role, source = "window", "baseline", "Beltagy et al., arXiv 2004.05150"
    sources = ("impl/sparse_training/kernels", *GPU_SOURCES)


class BigBirdStep(MethodStep):
    """Our kernels over a window, global and random blocks."""

    method, role, source = "bigbird", "baseline", "Zaheer et al., arXiv 2007.14062"
    sources = ("impl/sparse_training/kernels", *GPU_SOURCES)


class LinformerStep(MethodStep):
    method, role, source = "linformer", "baseline", "Wang et al., arXiv 2006.04768"


class PerformerStep(MethodStep):
    method, role, source = "performer", "baseline", "Choromanski et al., arXiv 2009.14794"


class NystromformerStep(MethodStep):
    method, role, source = "nystromformer", "baseline", "Xiong et al., arXiv 2102.03902"


class SatElementCsrStep(MethodStep):
    """SAT as published: single elements in CSR, float32, by cuSPARSE."""

    method, computes, role, source = "sat_csr", "sat", "baseline", SAT
    graphable = False
