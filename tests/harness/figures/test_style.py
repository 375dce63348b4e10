"""The look of a contender: one for each, whatever else is in the run."""

import random

from harness.contender import discover
from harness.figures.style import looks

OWN = {"my_baseline": "baseline", "my_kernel": "ours", "another": "baseline"}


def known():
    return {name: contender.role for by_name in discover().values() for name, contender in by_name.items()}


def test_looks_do_not_depend_on_the_order_of_contenders():
    roles = list((known() | OWN).items())
    first = looks(dict(roles), {})
    random.shuffle(roles)
    second = looks(dict(roles), {})
    assert list(first) == list(second)
    assert first == second


def test_no_two_contenders_of_an_op_look_alike():
    for op, by_name in discover().items():
        roles = {name: c.role for name, c in by_name.items() if c.role != "control"} | OWN
        found = looks(roles, {})
        bars = {(look.colour, look.hatch) for look in found.values()}
        lines = {(look.colour, bool(look.hatch), look.marker) for look in found.values()}
        assert len(bars) == len(lines) == len(found), op


def test_baselines_come_first_and_ours_last():
    found = looks(known() | OWN, {"my_kernel": "Mine"})
    flags = [look.ours for look in found.values()]
    assert flags == sorted(flags)
    assert found["my_kernel"].label == "Mine"
    assert found["my_baseline"].label == "my_baseline"
