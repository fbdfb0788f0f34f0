"""When the operations of pipelines run, and how they are drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from msgspec.structs import replace

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.layout import Layout
from coxswain.plan.pipelines.operations import operations, times
from coxswain.plan.step import loss_layers, plan_step
from coxswain.plan.values import Operation, Placement, StageOperations, Task
from coxswain_cli.reporting import plan_picture
from tests.layouts import layout_of

MODEL = ModelConfig(layers=4, hidden=128, heads=4, kv_heads=2, feed_forward=384, vocabulary=1024)
FOUR = [(1, 1), (1, 2), (1, 3), (1, 4)]
DEEP = layout_of(FOUR, FOUR)


def planned(layout: Layout, lengths: list[int]) -> Placement:
    parallel = ParallelConfig(tokens_per_replica=1024, max_degree=2, hardware="cpu")
    return plan_step(lengths, layout, parallel, MODEL)


def packs(count: int, seconds: float = 3.0) -> list[Task]:
    return [Task(i, "pack", (0,), (), seconds) for i in range(count)]


@pytest.mark.parametrize("count", [1, 4, 9])
def test_equal_packs_in_equal_stages_take_the_time_of_1f1b(count: int) -> None:
    layout = layout_of(FOUR)
    found = times(layout, packs(count), operations(layout, packs(count)))
    assert max(stop for spans in found.values() for _, stop in spans) == pytest.approx(3.0 * (4 - 1 + count))


@pytest.mark.parametrize("lengths", [[900] * 12, [1800, 1500, 300, 1024, 7, 900, 800, 1000], [2048] * 3])
def test_an_operation_waits_for_its_input_and_the_last_one_ends_with_the_plan(lengths: list[int]) -> None:
    plan = planned(DEEP, lengths)
    found = times(DEEP, plan.tasks, plan.operations, loss_layers(MODEL))
    spans = {
        (*seat, o.kind, o.task): span
        for seat, o, span in (
            ((x.replica, x.stage), o, span)
            for x in plan.operations
            for o, span in zip(x.operations, found[x.replica, x.stage], strict=True)
        )
    }
    for (replica, stage, kind, task), (start, _) in spans.items():
        before = stage - 1 if kind == "F" else stage + 1
        if (replica, before, kind, task) in spans:
            assert start >= spans[replica, before, kind, task][1] * (1 - 1e-9)
        for member in plan.tasks[task].replicas:
            assert spans[member, stage, kind, task][0] == pytest.approx(start)
    assert max(stop for _, stop in spans.values()) == pytest.approx(plan.makespan_seconds)


def test_operations_of_a_stage_do_not_overlap_and_a_later_wave_begins_behind_all_of_the_one_before() -> None:
    tasks = [replace(task, wave=k) for k, task in enumerate(packs(3))]
    for found in (times(layout_of(FOUR), t, operations(layout_of(FOUR), t)) for t in (packs(5), tasks)):
        for spans in found.values():
            assert all(second[0] >= first[1] * (1 - 1e-9) for first, second in pairwise(spans))
        assert all(stop > start for spans in found.values() for start, stop in spans)
    assert [spans[2][0] for spans in found.values()] == pytest.approx([12.0, 13.0, 14.0, 15.0])


def test_lists_that_wait_for_each_other_are_refused() -> None:
    tasks = [Task(0, "ring", (0, 1), (), 1.0), Task(1, "ring", (0, 1), (), 1.0)]
    one, two = (tuple(Operation(kind, task) for task in order for kind in ("F", "B")) for order in ((0, 1), (1, 0)))
    lists = [StageOperations(0, 0, one), StageOperations(1, 0, two)]
    with pytest.raises(ValueError, match="these lists hang"):
        times(layout_of([(1, 4)], [(1, 4)]), tasks, lists)


def test_a_pipeline_has_a_row_a_stage_with_a_pale_forward_and_a_full_backward_of_each_task() -> None:
    plan = planned(DEEP, [1800, 900, 300])
    root = ET.fromstring(plan_picture.picture_of([plan_picture.stage_panel(plan, DEEP, loss_layers(MODEL))]))
    svg = "{http://www.w3.org/2000/svg}"
    assert [t.text for t in root.iter(f"{svg}text") if t.attrib.get("class") == "y"] == [
        f"{replica}.{stage}" for replica in range(2) for stage in range(4)
    ]
    bars = [
        r for r in root.iter(f"{svg}rect") if re.match(r"d\d", r.attrib["class"]) and r.find(f"{svg}title") is not None
    ]
    spans = [span for spans in times(DEEP, plan.tasks, plan.operations, loss_layers(MODEL)).values() for span in spans]
    drawn = [float(b.attrib["x"][:-1]) / 100 * plan.makespan_seconds for b in bars]
    assert drawn == pytest.approx([start for start, _ in spans], abs=1e-5 * plan.makespan_seconds)
    assert (
        sum("light" in b.attrib["class"] for b in bars) == len(bars) / 2 == sum(len(t.replicas) * 4 for t in plan.tasks)
    )
