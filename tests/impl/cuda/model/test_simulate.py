"""The simulation on loops whose clocks are counted by hand. One warp per scheduler unless a test says otherwise."""

from __future__ import annotations

import pytest

from impl.cuda.model import simulate as simulate_module
from impl.cuda.model.gpu import SCHEDULERS
from impl.cuda.model.simulate import OPERANDS_READ, QUEUE, Step, simulate


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Loops as short as these settle soon."""
    monkeypatch.setattr(simulate_module, "_STEPS", 400)


def clocks(steps, warps_per_scheduler=1, blocks=1):
    return simulate(steps, SCHEDULERS * warps_per_scheduler, blocks).clocks


def alu(stall=1, waits=(), **changes):
    return Step("alu", 1, 0, stall, waits=waits, **changes)


def test_stalls_alone():
    assert clocks([alu(4), alu(2), alu(6)]) == 12


def test_two_warps_fill_the_stalls_of_one_another():
    assert clocks([alu(4)] * 3, warps_per_scheduler=2) == pytest.approx(6, rel=0.05)
    assert clocks([alu(4)] * 3, blocks=2) == pytest.approx(6, rel=0.05)


def test_one_instruction_a_clock():
    assert clocks([Step("alu", 0.5, 0)] * 8, warps_per_scheduler=4) == pytest.approx(8, rel=0.02)


@pytest.mark.parametrize("service", [2, 4 / 0.629])
def test_a_busy_pipe(service):
    steps = [Step("tensor", service, 0)] * 20
    assert clocks(steps) == pytest.approx(20 * service, rel=0.02)
    assert clocks(steps, warps_per_scheduler=2) == pytest.approx(20 * service, rel=0.02)


def test_a_result_is_waited_for_at_its_barrier():
    load = Step("shared", 4, 19, stall=1, write_barrier=0)
    # All four schedulers issue together: the last of the four is served after 12 clocks, and they wait for each other
    # no more once they have drifted apart by 4.
    assert clocks([load, alu(1, waits=(0,))]) == pytest.approx(4 + 19 + 1, abs=1)
    assert clocks([load, alu(1)]) < 20


def test_waiting_says_why():
    load = Step("shared", 4, 19, stall=1, write_barrier=0)
    waiting = simulate([load, alu(1, waits=(0,))], SCHEDULERS, 1).waiting
    assert sum(waiting.values()) == pytest.approx(1)
    assert next(iter(waiting)) == "shared result"
    assert waiting["issued"] == pytest.approx(2 / 24, rel=0.1)


def test_shared_memory_belongs_to_the_whole_sm():
    assert clocks([Step("shared", 4, 19)] * 20) == pytest.approx(20 * 4 * SCHEDULERS, rel=0.1)


def test_a_queue_takes_so_many_instructions_ahead():
    """The first QUEUE go at once, then one for each that is served; the arithmetic behind them hides in that."""
    steps = [Step("transcendental", 8, 0)] * QUEUE + [alu(1)] * 8 * (QUEUE - 1)
    assert clocks(steps) == pytest.approx(8 * QUEUE, rel=0.05)


def test_operands_are_free_when_they_have_been_read():
    store = Step("shared", 1, 0, stall=1, read_barrier=1)
    assert clocks([store, alu(1, waits=(1,))]) == pytest.approx(OPERANDS_READ + 1, abs=1)


def test_the_register_file():
    assert clocks([alu(1, reads=3.0)] * 10) == pytest.approx(30, rel=0.02)


def test_a_transfer_and_its_copy():
    """Bytes come one after the other; those of a cp.async take shared memory's time as well."""
    copy = Step("global", 4, 100, transfer=30, copied=4)
    assert clocks([copy] * 10 + [Step("shared", 1, 0)] * 2) < 10 * 30 * SCHEDULERS
    wait = [Step("global", 4, 100, write_barrier=0, transfer=30), alu(1, waits=(0,))]
    assert clocks(wait, warps_per_scheduler=4) == pytest.approx(30 * SCHEDULERS, rel=0.1)
    assert clocks([copy] * 10, warps_per_scheduler=2) == pytest.approx(clocks([Step("global", 4, 100)] * 10), rel=0.2)
    shared = [copy, *[Step("shared", 4, 0)] * 3]
    assert clocks(shared, warps_per_scheduler=2) == pytest.approx(4 * 4 * SCHEDULERS, rel=0.1)


def test_a_barrier_holds_the_warps_of_a_block():
    """Warps whose exponentials queue behind one another leave the barrier together."""
    barrier = Step("barrier", 1, 20, stall=5)
    alone = clocks([alu(4), barrier])
    assert alone == 4 + 20
    both = clocks([Step("tensor", 50, 0, stall=50), barrier], warps_per_scheduler=2)
    assert both == pytest.approx((100 + 20) / 2, abs=2)
    apart = clocks([Step("tensor", 50, 0, stall=50), barrier], blocks=2)
    assert apart == pytest.approx(50, abs=2), "another block's products run meanwhile"
