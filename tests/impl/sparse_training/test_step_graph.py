"""Replayed gradients: those of the computation itself, bit for bit, in memory that is given back."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from impl.sparse_training.step_graph import StepGraphs

pytestmark = pytest.mark.gpu
ROWS, WIDTH = 37, 100
BALLAST = 2**26  # bytes of float32 that a computation takes in between


class Computation:
    """Dropout and products; only the variant True reaches the second weight, and it has one more output."""

    def __init__(self):
        torch.manual_seed(0)
        self.first, self.second = (nn.Parameter(torch.randn(WIDTH, WIDTH, device="cuda")) for _ in range(2))

    @property
    def parameters(self):
        return [self.first, self.second]

    def __call__(self, argument, variant):
        for parameter in self.parameters:
            parameter.grad = None
        hidden = nn.functional.dropout(argument @ self.first, 0.5)
        out = (hidden @ self.second if variant else hidden).square().mean(1)
        ballast = torch.ones(BALLAST // 4, device="cuda")
        out.sum().mul(ballast[-1]).backward()
        return out.detach(), hidden.detach() if variant else None


def called(call, computation, variants):
    """Outputs, gradients and generator after calls with fresh arguments, each as it was right after its call."""
    random = torch.Generator("cuda").manual_seed(1)
    torch.manual_seed(2)
    found = []
    for variant in variants:
        outputs = call(torch.randn(ROWS, WIDTH, device="cuda", generator=random), variant)
        tensors = [*outputs, *(parameter.grad for parameter in computation.parameters)]
        found.append([None if tensor is None else tensor.clone() for tensor in tensors])
        found[-1].append(torch.cuda.get_rng_state())
        with torch.no_grad():  # which the next call has to see
            computation.first.mul_(0.9)
    return found


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [tensor is None for tensor in ours] == [tensor is None for tensor in theirs]
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None)


@pytest.mark.parametrize("variants", [[True] * 4, [True, False, False, True, False, True]])
def test_it_is_the_computation_bit_for_bit(variants):
    """Also when a graph is captured between replays of another, and shares its memory."""
    expected = called(eager := Computation(), eager, variants)
    replayed = Computation()
    graphs = StepGraphs(replayed.parameters, torch.device("cuda"))
    found = called(lambda argument, variant: graphs(replayed, argument, variant), replayed, variants)
    assert_equal(found, expected)
    assert not torch.equal(found[0][0], found[-1][0])


def test_outputs_stay_until_the_next_replay_of_their_variant():
    computation = Computation()
    graphs = StepGraphs(computation.parameters, torch.device("cuda"))
    argument = torch.randn(ROWS, WIDTH, device="cuda")
    for _ in range(2):
        out, hidden = graphs(computation, argument, True)
        gradients = [parameter.grad for parameter in computation.parameters]
        before = [tensor.clone() for tensor in (out, hidden, *gradients)]
        graphs(computation, argument, False)
        assert all(map(torch.equal, (out, hidden, *gradients), before))


def test_what_is_cleared_is_free():
    computation = Computation()
    graphs = StepGraphs(computation.parameters, torch.device("cuda"))
    argument = torch.randn(ROWS, WIDTH, device="cuda")
    graphs(computation, argument, True)
    graphs.clear()
    gc.collect()  # what earlier tests left
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for variant in (True, False):
        graphs(computation, argument, variant)
    held = torch.cuda.memory_reserved() - before[1]
    assert BALLAST <= held < 2 * BALLAST  # both variants in the same memory
    graphs.clear()
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    assert all(parameter.grad is None for parameter in computation.parameters)
    assert_equal([graphs(computation, argument, False)[1:]], [(None,)])  # captured anew
