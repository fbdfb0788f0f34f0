"""Reading a work directory: lenient with what a kill leaves, deaf to secrets."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coxswain.errors import Refused
from coxswain.layout import Device, Seat
from coxswain.wire import StepLine, TaskTiming
from coxswain_cli.reporting.json_report import facts
from coxswain_cli.reporting.mix import source_shares
from coxswain_cli.reporting.model import MeasuredPass
from coxswain_cli.reporting.page import page
from coxswain_cli.reporting.read import mounted_job, read_run, read_steps
from coxswain_cli.reporting.step_selection import chosen_steps
from tests.unit import report_samples as samples


def test_the_last_line_of_a_redone_step_is_the_valid_one(tmp_path: Path) -> None:
    lines = [samples.step_line(k, loss=float(k)) for k in (0, 1, 2, 1, 2)]
    lines[3]["loss"] = 9.0
    samples.write_lines(tmp_path / "steps.jsonl", lines)
    run = read_run(tmp_path)
    assert [(s.step, s.loss) for s in run.steps] == [(0, 0.0), (1, 9.0), (2, 2.0)]
    assert run.redone == 2


def test_a_step_that_a_newer_world_does_again_counts_as_done_again_and_its_line_is_the_valid_one() -> None:
    """Objects of a checkpoint location are in the order of their steps, not of their writing."""
    lines = [samples.step_line(step, worldGeneration=world) for step, world in ((1, 2), (0, 1), (1, 1), (2, 1))]
    steps, redone, unreadable = read_steps(json.dumps(line).encode() for line in lines)
    assert ([(s.step, s.worldGeneration) for s in steps], redone, unreadable) == ([(0, 1), (1, 2)], 1, 0)


def test_a_line_of_events_that_is_none_is_counted(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "events.jsonl", [{"reason": "R"}, {"reason": 5}])
    assert read_run(tmp_path).unreadable == 1


def test_the_job_is_that_of_the_newest_map_that_pods_mount() -> None:
    """One that is immutable holds the job of an attempt as it began: its mix may have been edited since."""
    times = {"old": "2026-01-01T00:00:00Z", "new": "2026-01-02T00:00:00Z", "pinned": "2026-01-03T00:00:00Z"}
    maps: list[dict[str, Any]] = [
        {
            "metadata": {"name": name, "creationTimestamp": time},
            "data": {"job.json": msgspec.json.encode(samples.job(name=name)).decode()},
            "immutable": name == "pinned",
        }
        for name, time in times.items()
    ]
    found = [mounted_job(order) for order in (maps, maps[::-1])]
    assert [job.name if job else None for job in found] == ["new", "new"]
    assert mounted_job(maps[2:]) is None


def test_300_sources_of_a_step_take_no_memory(tmp_path: Path) -> None:
    """A long run has hundreds of thousands of steps."""
    tokens = {f"source-{n:03d}": 10_000 + n for n in range(300)}
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(k, tokens_by_source=tokens) for k in range(500)])
    read_run(tmp_path)  # imports and caches
    tracemalloc.start()
    try:
        run = read_run(tmp_path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 500 * 1_500
    assert run.steps[499].tokens_by_source == tokens
    assert [share.tokens[-1] for share in source_shares(run.steps, ())] == [500 * n for n in tokens.values()]


def test_sources_of_a_file_that_a_run_replaces_by_its_newer_half_are_read_as_they_were(tmp_path: Path) -> None:
    lines = [samples.step_line(k, tokens_by_source={"a": k}) for k in range(4)]
    samples.write_lines(tmp_path / "steps.jsonl", lines)
    run = read_run(tmp_path)
    samples.write_lines(tmp_path / "newer", lines[2:])
    (tmp_path / "newer").replace(tmp_path / "steps.jsonl")
    assert [dict(step.tokens_by_source) for step in run.steps] == [{"a": k} for k in range(4)]


def test_sources_of_a_line_that_is_cut_off_meanwhile_are_none(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(k, tokens_by_source={"a": k}) for k in range(2)])
    run = read_run(tmp_path)
    os.truncate(tmp_path / "steps.jsonl", (tmp_path / "steps.jsonl").stat().st_size - 20)
    assert [dict(step.tokens_by_source) for step in run.steps] == [{"a": 0}, {}]


def test_each_step_keeps_its_own_sources_in_their_order(tmp_path: Path) -> None:
    sources = [{"b": 1, "a": 2}, {"a": 3, "b": 4}, {}, {"a": 5}]
    samples.write_lines(
        tmp_path / "steps.jsonl", [samples.step_line(k, tokens_by_source=s) for k, s in enumerate(sources)]
    )
    found = [s.tokens_by_source for s in read_run(tmp_path).steps]
    assert [list(tokens.items()) for tokens in found] == [list(tokens.items()) for tokens in sources]
    assert [tokens.get("b") for tokens in found] == [1, 4, None, None]


def test_an_incomplete_last_line_is_skipped_and_not_counted(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(0)])
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write(json.dumps(samples.step_line(1))[:40])
    run = read_run(tmp_path)
    assert len(run.steps) == 1
    assert run.unreadable == 0


def test_lines_that_are_no_steps_are_counted_and_do_not_end_the_report(tmp_path: Path) -> None:
    good = json.dumps(samples.step_line(0))
    (tmp_path / "steps.jsonl").write_text(f'{good}\n{{"step": "no"}}\nnonsense\n[1]\n')
    run = read_run(tmp_path)
    assert len(run.steps) == 1
    assert run.unreadable == 3


def test_a_diverged_step_has_no_loss_but_is_there(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(0, loss=None, gradient_norm=None)])
    assert read_run(tmp_path).steps[0].loss is None


def test_the_coordinators_own_step_line_is_read_without_loss(tmp_path: Path) -> None:
    line = StepLine(3, 1, 10, 2, 1.5, "aa", "bb", 2.0, 0.1, 1.05, 0.5, 1e-3, {"code": 10}, 0.2, 99.0)
    (tmp_path / "steps.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    assert msgspec.to_builtins(read_run(tmp_path).steps[0], enc_hook=dict) == msgspec.to_builtins(line)


def test_a_workers_timings_arrive_as_operations(tmp_path: Path) -> None:
    timing = TaskTiming(task=4, kind="B", start=0.5, stop=0.75, waited=0.125)
    rank = {"rank": 0, "timings": [timing], "data_wait": 0.25, "reduce": 0.5, "seat": Seat(0, Device(0, 0), 0, 0, 0)}
    line = {"step": 7, "planned": [], "ranks": [rank], "worldGeneration": 1}
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(7)])
    (tmp_path / "timings.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    assert read_run(tmp_path).chosen[0][0].ranks[0].timings == (MeasuredPass(*msgspec.to_builtins(timing)),)


def test_of_a_redone_step_the_last_timings_are_pictured(tmp_path: Path) -> None:
    samples.write_run(tmp_path, steps=3)
    samples.write_lines(
        tmp_path / "timings.jsonl", [*(samples.timing_line(k) for k in (0, 1, 2)), {"step": 1, "planned": []}]
    )
    (timing, why), *_ = read_run(tmp_path, (1,)).chosen
    assert (timing.step, timing.planned, why) == (1, (), "asked for")


def test_timings_of_an_unknown_shape_do_not_end_the_report(tmp_path: Path) -> None:
    samples.write_run(tmp_path, steps=1)
    line = samples.timing_line(0) | {"ranks": [{"rank": "zero"}]}
    samples.write_lines(tmp_path / "timings.jsonl", [line, {"planned": 3}])
    run = read_run(tmp_path)
    assert [t.step for t, _ in run.chosen] == [0]
    assert run.unreadable == 1


@pytest.mark.parametrize("number", [-1, 100_000, 2**63])
def test_a_damaged_timing_with_a_replica_beyond_all_bounds_draws_no_rows(tmp_path: Path, number: int) -> None:
    samples.write_run(tmp_path, steps=2)
    line = samples.timing_line(1)
    line["planned"][0]["replicas"] = [number]
    samples.write_lines(tmp_path / "timings.jsonl", [samples.timing_line(0), line])
    run = read_run(tmp_path)
    assert ([t.step for t, _ in run.chosen], run.unreadable) == ([0], 1)
    assert page(run)


def test_times_beyond_all_bounds_are_none_and_nesting_without_end_is_unreadable(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(0, time=1e30), samples.step_line(1, time=-7.0)])
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 2, "x": ' + "[" * 100_000 + "\n")
    run = read_run(tmp_path)
    assert run.unreadable == 1
    assert " UTC" not in page(run)


@pytest.mark.parametrize(
    "change", [{"seconds": 1e308}, {"loss": 1e300}, {"tokens": 10**30}, {"tokens_by_source": {"a": 2**64}}]
)
def test_a_line_with_a_number_beyond_all_bounds_is_unreadable(tmp_path: Path, change: dict[str, Any]) -> None:
    lines = [samples.step_line(0), samples.step_line(1, **change), samples.step_line(2)]
    samples.write_lines(tmp_path / "steps.jsonl", lines)
    run = read_run(tmp_path)
    assert ([s.step for s in run.steps], run.unreadable) == ([0, 2], 1)
    assert page(run) and is_plain_json(facts(run))
    found, _, unreadable = read_steps(json.dumps(line).encode() for line in lines)
    assert ([s.step for s in found], unreadable) == ([0, 2], 1)


@pytest.mark.parametrize("seconds", [0.0, 5e-324, 1e-300])
def test_steps_without_a_time_have_no_rates(tmp_path: Path, seconds: float) -> None:
    lines = [samples.step_line(0, seconds=seconds, planned_seconds=1.5, data_wait_seconds=1.0)]
    samples.write_lines(tmp_path / "steps.jsonl", lines)
    run = read_run(tmp_path)
    assert page(run) and is_plain_json(facts(run))
    assert facts(run)["tokens_per_second"] is None and facts(run)["idle_fraction"] is None


@pytest.mark.parametrize("change", [{"data_wait": -1e308}, {"reduce": 1e308}, {"timings": [[0, "F", 0.0, 1e308, 0.0]]}])
def test_timings_beyond_all_bounds_are_not_drawn(tmp_path: Path, change: dict[str, Any]) -> None:
    samples.write_run(tmp_path, steps=2)
    line = samples.timing_line(1)
    line["ranks"][0] |= change
    samples.write_lines(tmp_path / "timings.jsonl", [samples.timing_line(0), line])
    run = read_run(tmp_path)
    assert [bool(timing.ranks) for timing, _ in run.chosen] == [True, False]
    assert page(run) and is_plain_json(facts(run))


def is_plain_json(value: object) -> bool:
    """Without NaN and Infinity, which other languages do not read."""
    return bool(json.dumps(value, allow_nan=False))


def test_timings_that_are_shortened_while_they_are_read_are_not_those_of_another_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples.write_run(tmp_path, steps=3)

    def shortened(*arguments: Any) -> Any:
        """The older half goes, between the two looks at the file."""
        path = tmp_path / "timings.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
        return chosen_steps(*arguments)

    monkeypatch.setattr("coxswain_cli.reporting.read.chosen_steps", shortened)
    (timing, _), *_ = read_run(tmp_path, (0,)).chosen
    assert (timing.step, timing.planned) == (0, ())


def test_event_times_are_read_as_numbers_and_as_iso_texts(tmp_path: Path) -> None:
    times = [1_800_000_060, "2027-01-15T08:00:00Z", None, "soon", 1e300]
    samples.write_lines(tmp_path / "events.jsonl", [{"time": t, "reason": "R", "message": str(t)} for t in times])
    assert [e.time for e in read_run(tmp_path).events] == [1_800_000_060.0, 1_800_000_000.0, 0.0, 0.0, 0.0]


def test_name_weights_and_status_come_from_the_clusters_objects(tmp_path: Path) -> None:
    run = read_run(samples.write_run(tmp_path, steps=2))
    assert run.job == samples.job_of(tmp_path)
    assert run.name == "stdlib"
    assert run.status["lastCheckpoint"]["step"] == 2


def test_secrets_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.write_run(tmp_path, steps=1)
    samples.write_object(tmp_path, "Secret", "stdlib", {"data": {"token": "hush"}})
    opened: list[Path] = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: (opened.append(self), read(self))[1])
    read_run(tmp_path)
    assert opened
    assert not any("Secret" in path.parts for path in opened)


def test_a_folder_without_a_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"{tmp_path}: holds neither steps.jsonl nor events.jsonl"):
        read_run(tmp_path)


@pytest.mark.parametrize(("change", "steps"), [(30, 10), (5, 20)])
def test_numbers_by_trainer_are_those_of_the_last_steps_with_the_ranks_of_the_last(
    tmp_path: Path, change: int, steps: int
) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(k) for k in range(40)])
    lines = [slow_timing(step, ranks=2 if step < change else 4) for step in range(40)]
    samples.write_lines(tmp_path / "timings.jsonl", lines)
    first, second = read_run(tmp_path).trainers
    assert (first.trainer, first.rank, first.steps, first.compute_seconds, first.slowdown) == (1, 3, steps, 3.0, 3.0)
    assert (second.trainer, second.slowdown, second.wait_seconds) == (0, 1.0, 2.75)


def test_timings_without_trainers_give_no_numbers_by_trainer(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(0)])
    samples.write_lines(tmp_path / "timings.jsonl", [{"step": 0, "ranks": [{"rank": 0, "compute": 1.0}]}])
    assert read_run(tmp_path).trainers == ()


def slow_timing(step: int, ranks: int) -> dict[str, Any]:
    """Steps of 4 s in which the last of four ranks computes three times as long."""
    task = {"task": 0, "kind": "pack", "replicas": list(range(ranks)), "start": 0.0, "stop": 1.0}
    rows = [
        {"rank": r, "replica": r, "trainer": r // 2, "seconds": 4.0, "compute": 1.0 + 2 * (r == 3), "data_wait": 0.25}
        for r in range(ranks)
    ]
    return {"step": step, "planned": [task], "ranks": rows}
