"""Methods against plain float64 computations of their published definitions, with sequences of several lengths."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.nn import functional

from impl.sparse_training.methods import METHODS
from impl.sparse_training.methods.block_sparse import BlockSparse, bigbird, window
from impl.sparse_training.methods.dense import Flash, Materialised
from impl.sparse_training.methods.element_csr import ElementSparse
from impl.sparse_training.methods.linformer import Linformer
from impl.sparse_training.methods.nystromformer import INVERSE_STEPS, Nystromformer, pseudo_inverse
from impl.sparse_training.methods.performer import Performer
from impl.sparse_training.methods.reformer import Reformer
from impl.sparse_training.recipes import DIGITS, LISTOPS
from tests.impl.sparse_training.blocks import masked_dense, random_inputs, random_pattern, with_gradients

SEQLEN, HEADS, HEAD_DIM = 45, 2, 12
LENGTHS = torch.tensor([SEQLEN, 17, 3])


def inputs(seed=0):
    *qkv, dout = random_inputs(SEQLEN, HEADS, head_dim=HEAD_DIM, batch=3, dtype=torch.float32, seed=seed)
    return qkv, dout


def dense(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


@torch.no_grad()
def each(function, q, k, v):
    """`function` of each sample without its padding, [heads, length, head_dim] in float64; the rest NaN."""
    out = torch.full(v.shape, torch.nan, dtype=torch.float64)
    for b, length in enumerate(LENGTHS):
        out[b, :, :length] = function(*(t[b, :, :length].double() for t in (q, k, v)))
    return out


def assert_close(got, expected, rtol=1e-5):
    """Where `expected` is not NaN; the rest must be finite at least."""
    assert got.isfinite().all()
    assert got.dtype == torch.float32
    got, known = got.detach(), expected.isfinite()
    assert known.any()
    torch.testing.assert_close(got.double()[known], expected[known], rtol=rtol, atol=rtol * expected[known].abs().max())


def performer(attention):
    def plain(q, k, v):
        q, k = (t / HEAD_DIM**0.25 for t in (q, k))
        w = attention.features.double()
        q, k = ((t @ w.T).exp() * (-t.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(len(w)) for t in (q, k))
        kernel = q @ k.mT
        return kernel / kernel.sum(-1, keepdim=True) @ v

    return plain


def segments(x, landmarks):
    """Means of equal parts; part i of m ends where token t has t m / n >= i + 1."""
    count = min(landmarks, x.shape[1])
    parts = [[t for t in range(x.shape[1]) if t * count // x.shape[1] == i] for i in range(count)]
    return torch.stack([x[:, part].mean(1) for part in parts], 1)


def nystromformer(attention):
    def plain(q, k, v):
        scale = HEAD_DIM**-0.5
        q_mean, k_mean = (segments(t, attention.landmarks) for t in (q, k))
        core = (q_mean @ k_mean.mT * scale).softmax(-1)
        z = core.mT / (core.sum(-2).max(-1).values * core.sum(-1).max(-1).values)[:, None, None]
        one = torch.eye(core.shape[-1], dtype=core.dtype)
        for _ in range(INVERSE_STEPS):
            z = z @ (13 * one - core @ z @ (15 * one - core @ z @ (7 * one - core @ z))) / 4
        mixed = (q @ k_mean.mT * scale).softmax(-1) @ z @ (q_mean @ k.mT * scale).softmax(-1) @ v
        skip = functional.conv2d(v[None], attention.skip.weight.double(), padding=(16, 0), groups=HEADS)
        return mixed + skip[0]

    return plain


def linformer(attention):
    def plain(q, k, v):
        project = attention.project.double()[:, : k.shape[1]]
        return dense(q, project @ k, project @ v)

    return plain


def reformer(attention):
    """A mask over all pairs for each round, from its hashes; each sample has the hashes of the padded batch."""
    chunks = -(-SEQLEN // attention.chunk)
    torch.manual_seed(5)
    rotations = torch.randn(attention.rounds, HEAD_DIM, max(1, chunks // 2)).double()

    def plain(q, k, v):
        itself = torch.eye(q.shape[1], dtype=torch.bool)
        logs, outs = [], []
        for rotation in rotations:
            turned = q @ rotation
            bucket = torch.cat([turned, -turned], -1).argmax(-1)
            chunk = torch.empty_like(bucket)
            for head in range(HEADS):
                for place, token in enumerate(
                    sorted(range(q.shape[1]), key=lambda t, h=head: (bucket[h, t].item(), t))
                ):
                    chunk[head, token] = place // attention.chunk
            seen = (bucket[:, :, None] == bucket[:, None]) & ((chunk[:, :, None] - chunk[:, None]) % chunks <= 1)
            scores = q @ (q / q.norm(dim=-1, keepdim=True)).mT / math.sqrt(HEAD_DIM)
            scores = scores.masked_fill(itself, -1e5).masked_fill(~seen, -torch.inf)
            logs.append(scores.logsumexp(-1, keepdim=True))
            outs.append(scores.softmax(-1) @ v)
        return (torch.stack(logs).softmax(0) * torch.stack(outs)).sum(0)

    return plain


@pytest.mark.parametrize(
    ("make", "plain"),
    [
        (lambda: Performer(HEAD_DIM, features=30), performer),
        (lambda: Nystromformer(HEADS, landmarks=8), nystromformer),
        (lambda: Linformer(SEQLEN, rank=9), linformer),
        (lambda: Reformer(chunk=8), reformer),
    ],
    ids=["performer", "nystromformer", "linformer", "reformer"],
)
def test_published_definition(make, plain):
    """Forward against float64, and that padding changes nothing and gets no gradient."""
    torch.manual_seed(0)
    attention = make()
    (q, k, v), dout = inputs()
    expected = each(plain(attention), q, k, v)
    torch.manual_seed(5)
    assert_close(attention(q, k, v, LENGTHS), expected, rtol=1e-4)
    padding = (torch.arange(SEQLEN) >= LENGTHS[:, None])[:, None, :, None]
    other = [torch.where(padding, 3 * t.flip(2), t) for t in (q, k, v)]
    dout = dout.masked_fill(padding, 0)
    results = []
    for tensors in ((q, k, v), other):
        torch.manual_seed(5)
        leaves = [t.clone().requires_grad_() for t in tensors]
        out = attention(*leaves, LENGTHS).masked_fill(padding, 0)
        gradients = torch.autograd.grad(out, leaves, dout, allow_unused=True, materialize_grads=True)
        assert all(not gradient.masked_select(padding).any() for gradient in gradients)
        results.append([out.detach(), *gradients])
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_performer_comes_to_dense_attention_with_more_features():
    torch.manual_seed(0)
    (q, k, v), _ = inputs()
    q, k = q / 2, k / 2
    expected = each(dense, q, k, v)
    errors = []
    for features in (16, 4096):
        out = Performer(HEAD_DIM, features)(q, k, v, LENGTHS).double()
        errors.append((out - expected)[expected.isfinite()].square().mean().sqrt())
    assert errors[1] < errors[0] / 4
    rows = Performer(HEAD_DIM, 30).features[:HEAD_DIM]
    assert (rows @ rows.T).fill_diagonal_(0).abs().max() < 1e-4 * rows.square().sum(1).max()


def test_nystromformer_with_a_landmark_per_token_is_dense_attention():
    attention = Nystromformer(HEADS, landmarks=SEQLEN)
    torch.nn.init.zeros_(attention.skip.weight)
    (q, k, v), _ = inputs()
    q = k = 12 * functional.normalize(q, dim=-1)  # a token's own key is its largest: a core that is well conditioned
    assert_close(attention(q, k, v, LENGTHS), each(dense, q, k, v), rtol=2e-3)


def test_pseudo_inverse():
    matrix = torch.randn(3, 7, 7).softmax(-1) + torch.eye(7)
    torch.testing.assert_close(pseudo_inverse(matrix) @ matrix, torch.eye(7).expand(3, 7, 7), rtol=0, atol=1e-3)


@pytest.mark.parametrize("block", [8, 16])
def test_element_csr_is_the_block_op(block):
    """Forward and gradients, against it and against float64; a block row and a block column that are empty."""
    (q, k, v), dout = inputs()
    pattern = random_pattern(SEQLEN, block)[0]
    pattern[1], pattern[:, 0] = False, False
    results = []
    for make in (ElementSparse, lambda dense, block: BlockSparse(dense, block, "pruned_as_zero")):
        attention = make(Materialised(), block)
        attention.set_pattern(pattern)
        results.append(with_gradients(lambda *t, a=attention: a(*t, LENGTHS), (q, k, v), dout))
    options = {"block": block, "softmax": "pruned_as_zero", "lengths": LENGTHS}
    wide = [t.double() for t in (q, k, v)]
    exact = with_gradients(lambda *t: masked_dense(*t, pattern[None], **options), wide, dout.double())
    assert sum(tensor.abs().sum() for tensor in exact) > 0
    for elements, blocks, expected in zip(*results, exact, strict=True):
        assert_close(elements, expected)
        torch.testing.assert_close(elements, blocks, rtol=1e-5, atol=1e-5)


def test_element_csr_of_all_blocks_is_dense_attention():
    """T4, and scores so low that only the largest's exponential is none of 0."""
    attention = ElementSparse(Materialised(), 16)
    attention.set_pattern(torch.ones(3, 3, dtype=torch.bool))
    (q, k, v), _ = inputs()
    q, k = q.abs() * 8, -k.abs() * 8
    assert_close(attention(q, k, v, LENGTHS), each(dense, q, k, v))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.transition or method.fixed])
@pytest.mark.parametrize(("seqlen", "blocks"), [(512, 32), (2048, 32), (1024, 16), (1025, 32)])
def test_a_pattern_of_another_length_is_refused(name, seqlen, blocks):
    """T6: by single elements too; also one that is too short by a block that is cut."""
    attention = METHODS[name].attention(DIGITS)
    attention.set_pattern(torch.ones(blocks, blocks, dtype=torch.bool))
    q = torch.ones(1, 2, seqlen, 32)
    right = -(-seqlen // 32)
    message = f"has {blocks} x {blocks} blocks, but seqlen {seqlen} in blocks of 32 has {right} x {right}"
    with pytest.raises(ValueError, match=message):
        attention(q, q, q, torch.tensor([seqlen]))


def test_dense_methods_and_their_maps():
    (q, k, v), _ = inputs()
    maps = torch.zeros(SEQLEN, SEQLEN, dtype=torch.float64)
    for b, length in enumerate(LENGTHS):
        scores = q[b].double() @ k[b, :, :length].double().mT / math.sqrt(HEAD_DIM)
        maps[:, :length] += scores.softmax(-1).sum(0) / (3 * HEADS)
    for attention in (Flash(padded=True), Materialised()):
        attention.watched = True
        assert_close(attention(q, k, v, LENGTHS), each(dense, q, k, v))
        assert_close(attention.map, maps)


def test_fixed_patterns():
    assert window(4).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    kept = bigbird(12)
    assert kept[[0, -1]].all()
    assert kept[:, [0, -1]].all()
    assert (kept | ~window(12)).all()
    assert (kept[2:-2].sum(1) == 5 + 3).all()  # the window, the two global columns, and three more
    assert kept.equal(bigbird(12))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_its_softmax(name):
    """Of the block-sparse ones, those of SAT and SPION count what is pruned as logit 0, the fixed ones renormalise."""
    attention = METHODS[name].attention(DIGITS)
    if isinstance(attention, BlockSparse):
        assert attention.softmax == ("pruned_as_zero" if METHODS[name].transition else "renormalised")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", METHODS)
def test_an_empty_sequence_and_padding_stay_finite(name, dtype):
    """T7, T8: in float16 too no mask overflows; a sequence without tokens has finite gradients, and the others' outputs
    do not change with it or with what padding holds."""
    torch.manual_seed(0)
    recipe = dataclasses.replace(LISTOPS, seqlen=70, block=32, density=0.5)
    attention = METHODS[name].attention(recipe)
    if isinstance(attention, BlockSparse):
        attention.set_pattern(random_pattern(70, 32, density=0.7)[0])
    q, k, v, dout = random_inputs(70, 2, head_dim=32, batch=3, dtype=dtype)
    lengths = torch.tensor([70, 0, 20])

    def attend(k, v):
        torch.manual_seed(1)  # of Reformer's hashes
        # Reformer has no use for k.
        return with_gradients(lambda q, k, v: attention(q, k, v, lengths) + 0 * k.mean(), (q, k, v), dout)

    first = attend(k, v)
    assert all(tensor.isfinite().all() for tensor in first)
    k[1], k[2, :, 20:], v[2, :, 20:] = 7.0, 5.0, -9.0
    again = attend(k, v)
    torch.testing.assert_close(again[0][0], first[0][0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(again[0][2, :, :20], first[0][2, :, :20], rtol=1e-3, atol=1e-3)
