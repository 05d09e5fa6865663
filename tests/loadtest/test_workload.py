"""Rounds, aims and verdicts."""

import pytest

from loadtest.tools import Tools
from loadtest.workload import Aim, Bench, Contender, Outcome, Sample, Sizes, Workload, contender, judge, run


def outcome(**rows: list[float]) -> Outcome:
    workload = Workload("w", "a workload", "records/s", lambda bench, stack: ())
    return Outcome(workload, {name: [Sample(value) for value in values] for name, values in rows.items()})


def test_a_ratio_is_taken_round_by_round():
    """The second round was slow for both: its ratio is as good as any."""
    verdict = judge(Aim("", "ours", 1.5, "theirs"), outcome(ours=[200.0, 20.0, 300.0], theirs=[100.0, 10.0, 100.0]))
    assert verdict is not None
    assert (verdict.value, verdict.met) == (2.0, True)
    assert verdict.spread == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("aim", "met"),
    [
        (Aim("", "ours", 3.0, "theirs"), False),
        (Aim("", "ours", 2.0, "theirs"), True),
        (Aim("", "ours", 10.0, kind="value", at_most=True), True),
        (Aim("", "ours", 9.0, kind="value", at_most=True), False),
        (Aim("", "ours", 5.0, "theirs", kind="difference", at_most=True), True),
        (Aim("", "ours", 4.9, "theirs", kind="difference", at_most=True), False),
    ],
)
def test_aims(aim, met):
    verdict = judge(aim, outcome(ours=[10.0], theirs=[5.0]))
    assert verdict is not None
    assert verdict.met is met


def test_an_aim_without_its_peer_is_not_judged():
    assert judge(Aim("", "ours", 1.0, "theirs"), outcome(ours=[1.0])) is None


def test_rounds_that_disagree_settle_nothing():
    """The median would say met; a busy machine can move one round across the bound."""
    verdict = judge(Aim("", "ours", 1.0, "theirs"), outcome(ours=[30.0, 12.0, 9.0], theirs=[10.0, 10.0, 10.0]))
    assert verdict is not None
    assert verdict.value == 1.2
    assert verdict.met is None


def test_an_aim_for_full_sizes_is_not_judged_at_small_ones():
    aim = Aim("", "ours", 4.0, kind="value", at_most=True, full_size=True)
    small = outcome(ours=[1.0])
    small.full_size = False
    assert judge(aim, small) is None
    assert judge(aim, outcome(ours=[1.0])) is not None


def test_contenders_take_turns_and_each_round_begins_with_another(tmp_path):
    order = []

    def measured(name: str) -> Contender:
        def measure() -> Sample:
            order.append(name)
            return Sample(float(len(order)))

        return contender(name, measure)

    workload = Workload("w", "", "s", lambda bench, stack: [measured("a"), measured("b"), measured("c")])
    seen = run(workload, Bench(tmp_path, Sizes(rounds=3), Tools(), say=lambda text: None))
    assert "".join(order) == "abcbcacab"
    assert list(seen.rows) == ["a", "b", "c"]
    assert seen.values("a") == [1.0, 6.0, 8.0]
