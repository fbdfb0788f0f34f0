"""What the benches of placement make of their measurements, and the tables made of those."""

import json
from dataclasses import replace

import pytest

from bench import planner_speed
from bench.balance.cases import FEW, LARGEST, Case, K, cases
from bench.balance.measure import Figures, Sample, measure
from bench.balance.sampling import Seeds, planners_of, run
from bench.balance.targets import TARGETS, Target, beside, judge, longest_is_long, over, over_bound, over_ours
from bench.recorded import machine
from coxswain.plan.assemble import assemble
from coxswain.plan.planners import BALANCES, planner
from docs.tools import placement

SMALL, OTHER = Case("byted", 64 * K, 8), Case("github", 64 * K, 8)


def sample(case: Case, ours: float, **rivals: float) -> Sample:
    """Seconds of makespans where the bound is one second."""
    found = {"makespan": ours, **rivals}
    return Sample(case, 0, 1.0, 0.5, {b: Figures(s, s, 0.1, 100, 0, 0.01) for b, s in found.items()})


def target(limit: float, **changes) -> Target:
    return replace(Target("what", lambda s: True, over_bound, limit), **changes)


@pytest.mark.parametrize(("limit", "reached"), [(1.09, False), (1.1, True)])
def test_a_target_is_reached_once_the_median_of_its_hardest_case_keeps_the_limit(limit, reached):
    samples = [*(sample(SMALL, s) for s in (1.0, 1.1, 1.3)), *(sample(OTHER, s) for s in (1.0, 1.05, 1.06))]
    (row,) = judge([target(limit)], samples)
    assert (row.reached, row.median, row.worst, row.where) == (reached, 1.1, 1.3, SMALL.name)


@pytest.mark.parametrize(("limit", "reached"), [(2.0, True), (2.1, False)])
def test_a_least_ratio_is_judged_from_below_and_says_what_a_plan_at_the_bound_would_have(limit, reached):
    samples = [*(sample(SMALL, 1.1, static=s) for s in (2.2, 2.31, 2.2)), sample(OTHER, 1.0, static=9.0)]
    least = target(limit, value=over_ours("static"), least=True, best=over("static"))
    (row,) = judge([least], samples)
    assert row.reached == reached
    assert (row.median, row.worst, row.best) == (pytest.approx(2.0), pytest.approx(2.0), 2.2)


def test_a_time_is_judged_by_its_95th_percentile():
    samples = [sample(SMALL, 1.0)] * 15 + [sample(SMALL, 2.0)] * 5
    assert judge([target(1.5)], samples)[0].reached
    assert not judge([target(1.5, p95=True)], samples)[0].reached


def test_a_target_of_which_no_sample_says_anything_has_no_row():
    assert judge([target(1, of=lambda s: False), target(2, value=over_ours("static"))], [sample(SMALL, 1.0)]) == []


def test_steps_without_a_long_sequence_say_nothing_of_the_least_degree():
    short, long_ = (replace(sample(SMALL, 1.0, bytescale=2.0), longest_of_mean=m) for m in (0.25, 0.26))
    value = longest_is_long(over_ours("bytescale"))
    assert [value(s) for s in (short, long_)] == [None, 2.0]


def test_figures_of_a_plan_are_those_that_its_command_prints():
    uneven = replace(SMALL, speeds="unequal")
    placement = assemble(uneven.problem(3), "makespan", planner("makespan")(uneven.problem(3)))
    found = measure(uneven, 3, ["makespan", "static"])
    assert (found.bound, found.balances["makespan"].makespan) == (
        placement.lower_bound_seconds,
        placement.makespan_seconds,
    )
    assert found.balances["makespan"].makespan >= found.bound
    assert found.balances["makespan"].bytes_of_short == 0 < found.balances["static"].bytes_of_short
    assert all(figures.cpu > 0 for figures in found.balances.values())


def test_what_barriers_cost_a_balance_of_waves_is_shown_beside_it():
    free = sample(SMALL, 1.0, waves=1.5)
    barred = replace(free, balances={**free.balances, "waves": replace(free.balances["waves"], unbarred=1.2)})
    rows = {row["balance"]: row for row in beside([barred, free])}
    assert rows["waves"]["unbarred"] == pytest.approx(1.35)
    assert "unbarred" not in rows["makespan"]


def test_every_case_fits_its_replicas_and_the_largest_steps_have_256m_tokens():
    found = cases()
    assert len({case.name for case in found}) == len(found)
    assert [case.name for case in found if case.context > 8 * K * case.replicas] == []
    assert {case.tokens * case.replicas for case in found if case.replicas == LARGEST} == {
        256 * K * K // LARGEST * LARGEST
    }


@pytest.mark.parametrize("name", [t.what for t in TARGETS])
def test_each_target_has_cases_to_be_judged_by(name):
    (wanted,) = [t for t in TARGETS if t.what == name]
    rivals = dict.fromkeys(("static", "naive", "bytescale"), 2.0)
    (row,) = judge([wanted], [sample(case, 1.0, **rivals) for case in cases()])
    assert row.samples > 0


SHORT, LONG = Case("byted", 64 * K, 64, FEW), Case("byted", 256 * K, 64)
MIXED = ("makespan", "static", "kk", "flexsp")


@pytest.mark.parametrize(
    ("case", "seed", "planned"),
    [
        (SHORT, 0, MIXED),
        (SHORT, 1, ("makespan", "static", "kk")),
        (LONG, 0, ("makespan", "static", "kk")),
        (LONG, 2, ("makespan", "static")),
        (replace(LONG, speeds="unequal"), 0, ("makespan",)),
        (replace(LONG, replicas=LARGEST), 0, ("makespan",)),
    ],
)
def test_costly_planners_plan_fewer_steps_and_integer_programs_short_ones_only(case, seed, planned):
    assert tuple(planners_of(case, MIXED, Seeds(20, 2, 1), seed)) == planned


@pytest.mark.timeout(60)
def test_a_case_has_a_sample_a_seed_that_another_process_has_planned():
    samples = list(run([SMALL], ["makespan", "kk"], Seeds(2, 1, 0), 1))
    assert [(s.seed, list(s.balances)) for s in samples] == [(0, ["makespan", "kk"]), (1, ["makespan"])]


def test_the_time_of_a_planner_is_that_of_all_steps_and_of_its_slowest_family():
    seconds = {"byted": [0.010] * 10, "video": [0.020] * 9 + [0.120], "huge": []}
    found = planner_speed.summary({"seconds": seconds, "peak": 77})
    assert (found["p50_ms"], found["slowest_family"], found["peak_mib"]) == (15, "video", 77)
    assert found["slowest_p95_ms"] == pytest.approx(75)
    assert found["families_ms"] == {"byted": [10, 10], "video": [20, 75]}


@pytest.mark.timeout(60)
def test_a_planner_that_takes_longer_than_its_deadline_is_reported_as_such():
    assert planner_speed.in_a_process("makespan", 64, 20, 0.01) == {
        "balance": "makespan", "replicas": 64, "seeds": 20, "short": False, "beyond_seconds": 0.01,
    }  # fmt: skip


def test_the_machine_is_named_without_its_host():
    assert machine().endswith("no accelerator")


def result(**figures):
    about = {"command": "make bench-balance", "commit": "abcdef0", "recorded": "2026-01-02", "machine": "a machine"}
    return {**about, "figures": {"seeds": 3, **json.loads(json.dumps(figures))}}


def test_the_table_of_targets_marks_what_is_not_reached_and_names_the_command():
    rows = judge([target(1.0), target(1.2, what="other")], [sample(SMALL, 1.1)])
    lines = placement.targets(result(targets=[row.as_json() for row in rows])).splitlines()
    assert lines[2] == f"| ✗ | what | ≤ 1 | 1.100 | 1.100 | {SMALL.name} |"
    assert lines[3].startswith("| ✓ | other | ≤ 1.2 |")
    assert lines[-1] == "`make bench-balance`: 3 seeds a case; commit abcdef0, 2026-01-02, a machine."


def test_the_table_of_rivals_has_a_column_a_balance_and_brackets_without_barriers():
    made = sample(Case("byted", 64 * K, 64), 1.0, static=2.0, waves=3.0)
    waves = replace(made.balances["waves"], unbarred=2.5)
    uneven = replace(made, case=replace(made.case, speeds="one slow"))
    table = placement.rivals(
        result(balances=beside([replace(made, balances={**made.balances, "waves": waves}), uneven]))
    )
    assert table.splitlines()[0] == "| lengths | replicas | makespan | static | waves |"
    assert table.splitlines()[2:-2] == ["| byted | 64 | 1.00 | 2.00 | 3.00 (2.50) |"]


def test_the_table_of_planners_says_where_one_was_stopped():
    row = {"balance": "kk", "replicas": 12288, "seeds": 5, "short": False, "beyond_seconds": 300.0}
    assert "| 12,288 | kk | | more than 300 s for 5 steps a family | | |" in placement.planners(result(rows=[row]))


def test_every_balance_of_the_table_of_names_is_planned():
    assert set(planners_of(SHORT, list(BALANCES), Seeds(1, 1, 1), 0)) == set(BALANCES)
