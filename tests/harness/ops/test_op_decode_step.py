"""The decoding step against the textbook's formulas in NumPy, its cache against whole sequences, what its gate finds,
and checkpoints, good and bad."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from harness.config import parse_config
from harness.contender import Target, discover
from harness.errors import ConfigError
from harness.ops import OPS, decode_step, decoder
from harness.ops import dense as dense_attention
from harness.ops.decode_step import OPT_MODELS, PRUNED, OptShape, checkpoint_shapes, needed_bytes, reference_bytes
from harness.ops.decoder import Decoder
from harness.ops.opt_weights import OptWeights
from harness.verify import Gate, poison
from impl.flash_llm import pruning
from tests.memory import peak_bytes

OP = OPS["decode_step"]
CPU = Target("cpu", "a CPU")
CONTENDERS = discover()["decode_step"]
TINY = OPT_MODELS["tiny_opt"]


def params(batch=3, prompt=5, new_tokens=8, sparsity=0.8, **fields):
    return OP.Params(model="tiny_opt", batch=batch, prompt=prompt, new_tokens=new_tokens, sparsity=sparsity, **fields)


def drawn_checkpoint(scale=0.1):
    """Tensors of the tiny model as a checkpoint names them."""
    shapes = checkpoint_shapes(TINY)
    tensors = {f"model.decoder.{name}": torch.randn(shape) * scale for name, shape in shapes.items()}
    return {name: t + ("norm.weight" in name) for name, t in tensors.items()}


def save_checkpoint(folder, tensors, dtype=torch.float16):
    """In two files."""
    names = list(tensors)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name].to(dtype) for name in part}, folder / f"part{number}.safetensors")
    return str(folder)


def opt_by_hand(tensors, tokens):
    """Each layer's output and the logits of the last token of OPT with such weights, in float64."""
    w = {name.removeprefix("model.decoder."): t.half().double().numpy() for name, t in tensors.items()}

    def normed(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def product(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    length, outputs = tokens.shape[1], []
    x = w["embed_tokens.weight"][tokens] + w["embed_positions.weight"][2 : 2 + length]
    for layer in (f"layers.{i}" for i in range(TINY.layers)):
        h, heads = normed(x, f"{layer}.self_attn_layer_norm"), []
        q, k, v = (product(h, f"{layer}.self_attn.{part}_proj") for part in "qkv")
        for head in np.split(np.arange(TINY.hidden), TINY.num_heads):
            scores = q[..., head] @ k[..., head].swapaxes(1, 2) / np.sqrt(TINY.head_dim)
            scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(p / p.sum(-1, keepdims=True) @ v[..., head])
        x = x + product(np.concatenate(heads, -1), f"{layer}.self_attn.out_proj")
        wide = product(normed(x, f"{layer}.final_layer_norm"), f"{layer}.fc1")
        x = x + product(np.maximum(wide, 0), f"{layer}.fc2")
        outputs.append(x[:, -1])
    return {
        **{f"layer.{i}": out for i, out in enumerate(outputs)},
        "logits": normed(x[:, -1], "final_layer_norm") @ w["embed_tokens.weight"].T,
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_reference_is_the_textbook_model_with_a_checkpoints_weights(tmp_path, dtype):
    tensors = drawn_checkpoint()
    case = params(sparsity=0.0, checkpoint=save_checkpoint(tmp_path, tensors, dtype))
    inputs = OP.inputs(case, "cpu")
    found, right = OP.reference(case, inputs), opt_by_hand(tensors, inputs["tokens"].numpy())
    assert set(found) == set(right) == set(OP.gate_factors(case))
    for name, tensor in found.items():
        assert tensor.dtype == torch.float64
        np.testing.assert_allclose(tensor, right[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("name", CONTENDERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 7, 30), (9, 3, 1), (5, 1, 10)])
def test_a_step_on_the_cache_is_the_end_of_a_forward_of_whole_sequences(name, sizes):
    case = params(*sizes, seed=11)
    inputs = OP.inputs(case, "cpu")
    prepared = CONTENDERS[name].prepare(case, inputs, CPU)
    first = {key: t.clone() for key, t in prepared.run().items()}
    again = prepared.run()
    assert all(torch.equal(first[key], again[key]) for key in first), "every call does the same"
    verdict = Gate(OP, case, inputs).check(first)
    assert verdict.passed, verdict.reason


def dense(weight, bias):
    return CONTENDERS["pytorch_fp16"].product(weight, bias)


def test_decoding_token_by_token_is_a_prefill():
    case = params(batch=2, prompt=4, new_tokens=6)
    tokens = OP.inputs(case, "cpu")["tokens"]
    with torch.no_grad():
        one_by_one, at_once = (Decoder(case, "cpu", dense) for _ in range(2))
        for position in range(case.context):
            found = one_by_one.step(tokens[:, position : position + 1], position)
        at_once.prefill(tokens[:, :-1])
        right = at_once.step(tokens[:, -1:], case.context - 1)
    for name in right:
        assert (found[name] - right[name]).abs().max() <= 4e-3 * right[name].abs().max(), name
    for ours, theirs in zip(one_by_one.layers, at_once.layers, strict=True):
        assert (ours.cache - theirs.cache).abs().max() <= 4e-3 * theirs.cache.abs().max()


def test_plain_and_reference_share_the_weights_and_are_those_by_themselves(monkeypatch):
    case = params(batch=3)
    inputs, made = OP.inputs(case, "cpu"), []
    of_layer = OptWeights.of_layer
    monkeypatch.setattr(OptWeights, "of_layer", lambda self, *of: made.append(of) or of_layer(self, *of))
    together = OP.plain_and_reference(case, inputs, torch.float16)
    assert len(made) == len(set(made)) == TINY.layers * len(TINY.of_layer())
    for found, dtype in zip(together, (torch.float16, torch.float64), strict=True):
        alone = OP.plain(case, inputs, dtype)
        assert all(torch.equal(found[name], right) and right.dtype == dtype for name, right in alone.items())


def test_sequences_are_filled_in_by_groups(monkeypatch):
    monkeypatch.setattr("harness.ops.decoder.PREFILL_TOKENS", 25)  # two sequences of 12 at a time, of five
    monkeypatch.setattr("harness.ops.decoder.REFERENCE_TOKENS", 30)
    case = params(batch=5)
    inputs = OP.inputs(case, "cpu")
    assert Gate(OP, case, inputs).check(CONTENDERS["pytorch_fp16"].prepare(case, inputs, CPU).run()).passed


@pytest.mark.parametrize(("batch", "tokens"), [(3, 1152), (6, 26)])
def test_the_reference_takes_no_more_memory_than_by_arithmetic(batch, tokens, monkeypatch):
    monkeypatch.setitem(OPT_MODELS, "tiny_opt", OptShape(1, 256, 4, 256))
    monkeypatch.setattr(pruning, "_SLAB", 1 << 15)
    monkeypatch.setattr(pruning, "_SAMPLE", 1 << 10)
    for module in (decode_step, decoder):
        monkeypatch.setattr(module, "REFERENCE_TOKENS", tokens)
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 1 << 14)
    for module in (decode_step, dense_attention):
        monkeypatch.setattr(module, "SCORE_BYTES", 1 << 14)
    case = params(batch)
    inputs = OP.inputs(case, "cpu")
    bound = reference_bytes(case)
    assert 0.7 * bound < peak_bytes(lambda: Gate(OP, case, inputs)) <= bound


def test_the_largest_model_fits_on_the_largest_gpu_with_three_gigabytes_left():
    torchs = 149.4e9  # of an H200's 150.1: what a CUDA context leaves
    for batch, new_tokens in ((8, 512), (16, 192)):
        case = OP.Params(model="opt_175b", batch=batch, new_tokens=new_tokens, sparsity=0.8)
        stored = CONTENDERS["flash_llm_bitmap"].stored_bytes(case.shape.pruned_elements, case.sparsity)
        assert needed_bytes(case, stored) < torchs - 3e9


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONTENDERS)
def test_a_step_on_a_gpu_in_a_graph_within_the_memory_by_arithmetic(name):
    properties = torch.cuda.get_device_properties()
    target = Target("cuda", properties.name, (properties.major, properties.minor), properties.total_memory)
    case = OP.Params(model="opt_125m", batch=8, prompt=16, new_tokens=200, sparsity=0.8)
    contender = CONTENDERS[name]
    if refused := contender.refusal(case, target):
        pytest.skip(refused[1])
    with torch.cuda.stream(torch.cuda.Stream()):
        inputs = OP.inputs(case, "cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        prepared = contender.prepare(case, inputs, target)
        stored = contender.stored_bytes(case.shape.pruned_elements, case.sparsity)
        assert torch.cuda.max_memory_allocated() - before <= needed_bytes(case, 1.02 * stored) + 2**31  # conversion
        grown = torch.cuda.memory_allocated() - before
        assert prepared.resident_bytes <= grown < prepared.resident_bytes + 2**27  # cuBLAS has a workspace
        assert prepared.backend == ("library" if contender.role == "baseline" else "kernel")
        prepared.run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            outputs = prepared.run()
        poison(outputs)
        graph.replay()
        gate = Gate(OP, case, inputs)
        verdict = gate.check(outputs)
        assert verdict.passed, verdict.reason
        for part in prepared.parts.values():
            assert all(out.isfinite().all() for out in part().values())


class Faulty(torch.nn.Module):
    def __init__(self, weight, bias, fault):
        super().__init__()
        self.product, self.fault = dense(weight, bias), fault

    def forward(self, x):
        return self.fault(self.product(x), x, self.product)


FAULTS = {
    "no bias": lambda y, x, p: y - p.bias,
    "2 % small": lambda y, x, p: y * 0.98,
    "a row is not written": lambda y, x, p: torch.cat([y[..., :-1], y[..., -1:] * 0], -1),
    "last column not counted": lambda y, x, p: y - x[..., -1:] * p.weight[:, -1],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_finds_a_wrong_product(fault):
    case = params(batch=4)
    inputs = OP.inputs(case, "cpu")
    decoder = Decoder(case, "cpu", lambda weight, bias: Faulty(weight, bias, FAULTS[fault]))
    with torch.no_grad():
        decoder.prefill(inputs["tokens"][:, :-1])
        assert not Gate(OP, case, inputs).check(decoder.step(inputs["tokens"][:, -1:], case.context - 1)).passed


@pytest.mark.parametrize("fault", ["cache of another sequence", "position one too low", "an old token's keys are lost"])
def test_the_gate_finds_a_wrong_cache(fault):
    case = params(batch=4)
    inputs = OP.inputs(case, "cpu")
    decoder = Decoder(case, "cpu", dense)
    position = case.context - 1
    with torch.no_grad():
        decoder.prefill(inputs["tokens"][:, :-1])
        if fault.startswith("cache"):
            decoder.layers[1].cache[1] = decoder.layers[1].cache[1].roll(1, 0)
        elif fault.startswith("position"):
            position -= 1
        else:
            decoder.layers[0].cache[0, :, :, 3] = 0
        assert not Gate(OP, case, inputs).check(decoder.step(inputs["tokens"][:, -1:], position)).passed


def test_matrices_are_pruned_to_the_count_and_nothing_else():
    weights = OptWeights(params(sparsity=0.7), "cpu")
    for name, shape in TINY.of_layer().items():
        tensor = weights.of_layer(1, name)
        module, kind = name.split(".")
        zeros = round(0.7 * tensor.numel()) if module in PRUNED and kind == "weight" else 0
        assert tuple(tensor.shape) == shape
        assert int((tensor == 0).sum()) == zeros, name
        assert torch.equal(tensor, weights.of_layer(1, name)), "made anew, the same"
        assert not torch.equal(tensor, weights.of_layer(0, name))


def test_flops_are_those_of_the_products():
    case = params()
    prepared = CONTENDERS["pytorch_fp16"].prepare(case, OP.inputs(case, "cpu"), CPU)
    for calls in ([prepared.run], prepared.parts.values()):  # the parts together are all of them
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others are not counted on a CPU
            for call in calls:
                call()
        assert counter.get_total_flops() == OP.flops(case)


def test_sizes_are_the_published_ones_and_counted():
    for name, billions in {"opt_125m": 0.125, "opt_1_3b": 1.3, "opt_6_7b": 6.7, "opt_30b": 30, "opt_175b": 175}.items():
        shape = OPT_MODELS[name]
        assert (shape.pruned_elements + shape.dense_elements) / 1e9 == pytest.approx(billions, rel=0.02)
    shapes = [*TINY.around().values(), *(shape for shape in TINY.of_layer().values() for _ in range(TINY.layers))]
    assert sum(map(np.prod, shapes)) == TINY.pruned_elements + TINY.dense_elements
    case = params()
    prepared = CONTENDERS["pytorch_fp16"].prepare(case, OP.inputs(case, "cpu"), CPU)
    assert prepared.resident_bytes == 2 * (TINY.pruned_elements + TINY.dense_elements) + case.cache_bytes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "opt_350m"}, "opt_30b"),
        ({"prompt": 2000, "new_tokens": 49}, "prompt \\+ new_tokens = 2049; OPT has positions for at most 2048"),
        ({"sparsity": 1.0}, "less than 1"),
        ({"dtype": "bfloat16"}, "float16"),
        ({"batch": 0}, "greater than 0"),
    ],
)
def test_a_bad_case_says_what_would_be_right(fields, message):
    with pytest.raises(ValidationError, match=message):
        OP.Params.model_validate({"model": "opt_125m", "batch": 8, "sparsity": 0.8, **fields})


def write_header(path, header, data=b""):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def spoil(folder, tensors, how):
    """Spoil a good checkpoint."""
    first, name = folder / "part0.safetensors", "model.decoder.layers.1.fc2.weight"
    if how == "no folder":
        return f"{folder}/nowhere"
    if how == "truncated":
        first.write_bytes(first.read_bytes()[:-1])
    elif how == "empty file":
        first.write_bytes(b"")
    elif how == "length beyond the file":
        first.write_bytes(struct.pack("<Q", 2**40) + b"{}")
    elif how == "header is no JSON":
        write_header(first, b"not JSON")
    elif how == "header is no mapping":
        write_header(first, b"[1, 2]")
    elif how == "tensor missing":
        save_checkpoint(folder, {key: t for key, t in tensors.items() if key != name})
    elif how == "another shape":
        save_checkpoint(folder, {**tensors, name: tensors[name].T.contiguous()})
    elif how == "another type":
        save_checkpoint(folder, tensors, torch.float64)
    elif how == "there twice":
        save_file({name: tensors[name].half()}, folder / "more.safetensors")
    elif how == "size is not the shape's":
        entry = {"dtype": "F16", "shape": [3], "data_offsets": [0, 4]}
        write_header(folder / "more.safetensors", {"model.decoder.extra": entry}, b"1234")
    return str(folder)


BAD = {
    "no folder": r"no \*.safetensors files there; name a folder",
    "truncated": r"part0.safetensors: no whole safetensors file: \d+ bytes, its header asks for \d+",
    "empty file": "part0.safetensors: no whole safetensors file",
    "length beyond the file": "part0.safetensors: no whole safetensors file",
    "header is no JSON": "part0.safetensors: no safetensors file",
    "header is no mapping": "part0.safetensors: no safetensors file",
    "tensor missing": "no tensor decoder.layers.1.fc2.weight",
    "another shape": r"model.decoder.layers.1.fc2.weight is \[256, 64\], the model has \[64, 256\]",
    "another type": "is F64; it must be one of F16, BF16, F32",
    "there twice": r"model.decoder.layers.1.fc2.weight is in more.safetensors too; remove one",
    "size is not the shape's": "more.safetensors: no safetensors file: its header gives a tensor another size",
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_checkpoint_is_one_clear_error_before_any_work(tmp_path, how):
    tensors = drawn_checkpoint()
    save_checkpoint(tmp_path, tensors)
    case = {"model": "tiny_opt", "batch": 1, "sparsity": 0.5, "checkpoint": spoil(tmp_path, tensors, how)}
    panel = {"name": "p", "title": "t", "each": case}
    experiment = {"op": "decode_step", "question": "?", "baseline": "pytorch_fp16", "contenders": ["pytorch_fp16"]}
    config = {"run": "r", "device": "cpu", "experiments": {"e": {**experiment, "panels": [panel]}}}
    with pytest.raises(ConfigError, match=BAD[how]) as caught:
        parse_config(config, "my.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("my.yaml: experiments.e.panels.p: ")


def test_values_beyond_float16_are_refused(tmp_path):
    tensors = drawn_checkpoint()
    tensors["model.decoder.layers.0.fc1.bias"][3] = 1e6
    case = params(checkpoint=save_checkpoint(tmp_path, tensors, torch.float32))
    with pytest.raises(ValueError, match=r"layers.0.fc1.bias has values that are not finite in float16"):
        CONTENDERS["pytorch_fp16"].prepare(case, OP.inputs(case, "cpu"), CPU)


def test_names_without_the_first_prefix_are_read_too(tmp_path):
    tensors = {name.removeprefix("model."): t for name, t in drawn_checkpoint().items()}
    assert params(checkpoint=save_checkpoint(tmp_path, tensors)).slug() != params().slug()
