"""Flash-LLM's SpMM, and a decoding step on it, with the weights in each of its formats."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, ClassVar

from harness.contender import Contender, Prepared, Target, Unsupported
from harness.decoding import DecodeContender
from harness.ops.base import Tensors
from harness.ops.decode_step import bytes_besides
from impl.cuda import GPU_SOURCES

if TYPE_CHECKING:
    from torch import Tensor

    from harness.ops.decode_step import DecodeStepParams
    from harness.ops.decoder import Decoder
    from harness.ops.spmm import SpMMParams
    from impl.flash_llm.formats import SparseMatrix
    from impl.flash_llm.linear import SparseLinear


class _Format:
    """A format, and the GPU that its kernel needs."""

    kind: ClassVar[str]
    needs: ClassVar[tuple[tuple[int, int], str]]  # compute capability, and what for

    def too_old(self, target: Target) -> str | None:
        capability, why = self.needs
        if target.is_cuda and target.capability < capability:
            needed, have = ("".join(map(str, version)) for version in (capability, target.capability))
            return f"the kernel needs sm_{needed} or newer ({why}); this GPU is sm_{have}"
        return None


class _TiledCSL(_Format):
    kind = "tiled_csl"
    needs = (7, 0), "Tensor Cores"


class _Bitmap(_Format):
    kind = "bitmap"
    needs = (8, 0), "fragments of mma.m16n8k16"


class _TwoOfFour(_Format):
    kind = "two_of_four"
    needs = (8, 0), "sparse Tensor Core products, mma.sp"


class _FlashLLM(_Format, Contender):
    """What the formats share."""

    op = "spmm"
    role = "ours"
    sources = ("impl/flash_llm", *GPU_SOURCES)
    _last: tuple[Tensor, SparseMatrix, float] | None = None

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if params.dtype != "float16":
            return f"the format holds float16 values, not {params.dtype}"
        return self.too_old(target)

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda import emulator
        from impl.cuda.backend import kernel_fields
        from impl.flash_llm.api import plan_for, spmm
        from impl.flash_llm.choice import choose_format
        from impl.flash_llm.kernels import Device

        x = inputs["x"]
        weight, conversion_s = self._converted(inputs["w"], target)
        plan = plan_for(weight, x)
        rule = choose_format(int(inputs["w"].count_nonzero()), weight.shape, Device.of(x.device))
        prepared = Prepared(
            run=lambda: {"y": spmm(weight, x)},
            tuning={"split_k": plan.split_k, "format_by_rule": rule.name},
            bytes_floor=weight.nbytes + x.nbytes + params.m * params.n * x.itemsize,
            format_bytes=weight.nbytes,
            conversion_s=conversion_s,
            **kernel_fields(plan.kernels, x.device),
        )
        if prepared.backend != "reference":
            prepared.tuning |= {"tile_m": plan.tile_m, "tile_n": plan.tile_n}
        if prepared.backend == "emulated":
            operands = (weight.data, weight.offsets, x, params.m)
            prepared.run = lambda: {"y": plan.multiply(*operands, emulator.launch)}
        return prepared

    def _converted(self, w: Tensor, target: Target) -> tuple[SparseMatrix, float]:
        """W in this format, and the seconds that it took; the last one again where the next case has the same W."""
        import torch

        from impl.flash_llm.formats import FORMATS

        if self._last is None or self._last[0].device != w.device or not torch.equal(self._last[0], w):
            self._last = None
            began = _finished(target)
            weight = FORMATS[self.kind].from_dense(w)
            self._last = w, weight, _finished(target) - began
        return self._last[1:]


def _finished(target: Target) -> float:
    """The time, s, when the device has done all that it was given."""
    import torch

    if target.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


class FlashLLMTiledCSL(_TiledCSL, _FlashLLM):
    name = "flash_llm_tiled_csl"
    label = "Flash-LLM (Tiled-CSL)"
    summary = "unstructured sparse W streamed compressed, expanded in shared memory, multiplied on Tensor Cores"
    source = "Xia et al., Flash-LLM, PVLDB 17(2), 2023; impl/flash_llm"


class FlashLLMBitmap(_Bitmap, _FlashLLM):
    name = "flash_llm_bitmap"
    label = "Flash-LLM (bitmap)"
    summary = "one bit per element and packed non-zeros, decoded in registers, multiplied on Tensor Cores"
    source = "format and kernel of this project, after SpInfer's idea, EuroSys 2025; impl/flash_llm/README.md"


class FlashLLMTwoOfFour(_TwoOfFour, _FlashLLM):
    name = "flash_llm_two_of_four"
    label = "Flash-LLM (two of four)"
    summary = "two values at most of each four columns, the rest in gathered columns, on sparse Tensor Cores"
    source = "format and kernel of this project; impl/flash_llm/README.md"


class _FlashLLMDecoding(_Format, DecodeContender):
    """A decoding step with SparseLinear; on a CPU by the reference, as emulated kernels would take minutes."""

    role = "ours"
    sources = (*_FlashLLM.sources, *DecodeContender.sources)

    def unsupported(self, params: DecodeStepParams, target: Target) -> str | None:
        return self.too_old(target) or super().unsupported(params, target)

    def prepare(self, params: DecodeStepParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.flash_llm.choice import dense_columns

        if params.batch >= (first := dense_columns(self.kind)):
            raise Unsupported(f"SparseLinear multiplies densely from {first} rows of x on; use a smaller batch")
        return super().prepare(params, inputs, target)

    def product(self, weight: Tensor, bias: Tensor) -> SparseLinear:
        from impl.flash_llm.formats import FORMATS
        from impl.flash_llm.linear import SparseLinear

        return SparseLinear(FORMATS[self.kind].from_dense(weight), bias)

    def fields(self, decoder: Decoder, params: DecodeStepParams) -> dict[str, Any]:
        import torch

        from impl.cuda.backend import kernel_fields
        from impl.flash_llm.api import plan_for

        first = {name: product.weight for name, product in decoder.layers[0].products.items()}
        device = first["qkv"].device
        x = torch.empty(4 * params.shape.hidden, params.batch, dtype=torch.float16, device=device)
        plans = {name: plan_for(weight, x[: weight.shape[1]]) for name, weight in first.items()}
        stored = sum(product.weight.nbytes for layer in decoder.layers for product in layer.products.values())
        return {
            "tuning": {"split_k": {name: plan.split_k for name, plan in plans.items()}},
            "bytes_floor": stored + bytes_besides(params),
            "format_bytes": stored,
            **(kernel_fields(plans["qkv"].kernels, device) if device.type == "cuda" else {"backend": "reference"}),
        }


class DecodingTiledCSL(_TiledCSL, _FlashLLMDecoding):
    name = "flash_llm_tiled_csl"
    label = FlashLLMTiledCSL.label
    summary = "a decoding step with the pruned matrices in Tiled-CSL"
    source = FlashLLMTiledCSL.source

    def stored_bytes(self, elements: int, sparsity: float) -> float:
        return elements * (4 * (1 - sparsity) + 1 / 2048)


class DecodingBitmap(_Bitmap, _FlashLLMDecoding):
    name = "flash_llm_bitmap"
    label = FlashLLMBitmap.label
    summary = "a decoding step with the pruned matrices as bitmaps"
    source = FlashLLMBitmap.source

    def stored_bytes(self, elements: int, sparsity: float) -> float:
        """Of random zeros: a lane's 128 bits, and the longest of 32 lanes' values, in whole words: 2.07 deviations
        above the mean, and more where few are kept, by the distribution's skewness."""
        kept = 1 - sparsity
        longest = 128 * kept + 2.07 * (128 * kept * sparsity) ** 0.5 + 0.58 * (sparsity - kept)
        return elements * (16 + 2 * longest + 1) / 128


class DecodingTwoOfFour(_TwoOfFour, _FlashLLMDecoding):
    name = "flash_llm_two_of_four"
    label = FlashLLMTwoOfFour.label
    summary = "a decoding step with the pruned matrices in the format two of four"
    source = FlashLLMTwoOfFour.source

    def stored_bytes(self, elements: int, sparsity: float) -> float:
        """Of random zeros, for 2048 groups: parities and metadata, the first two values of each, half a word more for
        every other lane, and for each 32 gathered columns 192 bytes and the words of theirs."""
        kept = 1 - sparsity
        single = 4 * kept * sparsity**3
        fourth = kept**4
        third = 4 * kept**3 * sparsity + fourth
        slots = single + 2 * (1 - sparsity**4 - single)
        columns = 64 * (2 - (1 - third * 0.75) ** 32 - (1 - fourth - third * 0.25) ** 32)
        moved = 1 - (1 - 64 * (third + fourth) / columns) ** 4 if columns else 0  # groups of gathered ones with some
        steps = max(1 - math.exp(-columns), columns / 32 + 0.5)
        return elements * (1604 + 4096 * slots + 32 + 32 * columns * moved + 192 * steps) / 8192
