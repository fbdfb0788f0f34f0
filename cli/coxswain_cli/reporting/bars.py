"""Turns a step's timing into bars: row, start and stop, look, texts. No markup here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from coxswain.plan.values import Operation
from coxswain.wire import TaskTiming
from coxswain_cli.reporting.formatting import seconds
from coxswain_cli.reporting.looks import Look
from coxswain_cli.reporting.model import PlannedTask, RankTiming, StepTiming


@dataclass(frozen=True, slots=True)
class Bar:
    """[start, stop) in seconds; `look` is the class in timeline.css, `words` appear on touch."""

    start: float
    stop: float
    look: str
    label: str
    words: str


SEEN = 1 / 200  # of the step: a shorter wait of one of many ranks is less than a pixel or two

Rows = dict[int, tuple[Bar, ...]]  # by replica (planned) or rank (measured)


def planned_rows(timing: StepTiming, look: Look) -> Rows:
    replicas = [r.replica if r.replica >= 0 else r.rank for r in timing.ranks]
    return task_rows(timing.planned, max(replicas, default=-1) + 1, look)


def task_rows(tasks: Sequence[PlannedTask], replicas: int, look: Look) -> Rows:
    """The bars of each replica's tasks; at least so many replicas."""
    count = max([replicas - 1, *(r for task in tasks for r in task.replicas)]) + 1
    rows: dict[int, list[Bar]] = {replica: [] for replica in range(count)}
    for task in tasks:
        bar = _planned(task, look(task.task))
        for replica in task.replicas:
            rows[replica].append(bar)
    return {replica: tuple(row) for replica, row in rows.items()}


def operation_row(
    operations: Sequence[Operation], spans: Sequence[tuple[float, float]], tasks: Sequence[PlannedTask], look: Look
) -> tuple[Bar, ...]:
    """One stage's planned operations at their times."""
    whole = {task.task: _planned(task, look(task.task)) for task in tasks}
    pairs = zip(operations, spans, strict=True)
    return tuple(_pass(replace(whole[o.task], start=start, stop=stop), o.kind == "F") for o, (start, stop) in pairs)


def _pass(bar: Bar, forward: bool) -> Bar:
    if forward:
        return replace(bar, look=f"{bar.look} light", label="", words=f"forward of {bar.words}")
    return replace(bar, words=f"backward of {bar.words}")


def measured_rows(timing: StepTiming, look: Look) -> Rows:
    return {r.rank: tuple(_measured(timing, r, look)) for r in sorted(timing.ranks, key=lambda r: r.rank)}


def coarse_rows(timing: StepTiming, look: Look) -> Rows:
    """Measured rows of so many ranks that one is a pixel: a bar a task, both passes, and only waits that can be seen."""
    least = SEEN * max((o.stop for r in timing.ranks for o in r.timings), default=0.0)
    return {r.rank: tuple(_coarse(r, look, least)) for r in sorted(timing.ranks, key=lambda r: r.rank)}


def deep(timing: StepTiming) -> bool:
    """Whether a replica has several ranks."""
    return any(r.stage or r.tensor for r in timing.ranks)


def place(timing: StepTiming, rank: RankTiming) -> str:
    """`rank 3`; where a replica has several, with its place."""
    name = f"rank {rank.rank}"
    return f"{name} (replica {rank.replica}, stage {rank.stage}, tensor {rank.tensor})" if deep(timing) else name


def end(rows: Rows) -> float:
    return max((bar.stop for row in rows.values() for bar in row), default=0.0)


def _planned(task: PlannedTask, look: str) -> Bar:
    over = f"ring over {len(task.replicas)} replicas" if task.kind == "ring" else "pack"
    what = f"{len(task.sequences)} sequences" if len(task.sequences) != 1 else f"sequence {task.sequences[0]}"
    length = seconds(task.stop - task.start)
    words = f"task {task.task}: {over}, {what}, {task.tokens:,} tokens, planned {length}"
    return Bar(task.start, task.stop, look, str(task.task), words)


def _measured(timing: StepTiming, rank: RankTiming, look: Look) -> Iterator[Bar]:
    name = place(timing, rank)
    if rank.data_wait > 0:
        yield Bar(0.0, rank.data_wait, "wait", "", f"{name}: waited {seconds(rank.data_wait)} for data")
    for operation in rank.timings:
        yield from _operation(timing, name, operation, look)
    if rank.reduce > 0:
        last = max((o.stop for o in rank.timings), default=rank.data_wait)
        words = f"{name}: reduction and update took {seconds(rank.reduce)}"
        yield Bar(last, last + rank.reduce, "reduce", "", words)


def _coarse(rank: RankTiming, look: Look, least: float) -> Iterator[Bar]:
    """Waits of a task are summed, at its front."""
    ended = rank.data_wait
    for task, passes in groupby(rank.timings, key=attrgetter("task")):
        found = tuple(passes)
        begun, ended, waited = found[0].start, found[-1].stop, sum(o.waited for o in found)
        words = f"rank {rank.rank}, task {task}: {seconds(ended - begun)}, waited {seconds(waited)}"
        yield Bar(begun, ended, look(task), str(task), words)
        if waited >= least:
            yield Bar(begun, begun + waited, "wait", "", words)
    for start, length, name in ((0.0, rank.data_wait, "wait"), (ended, rank.reduce, "reduce")):
        if length >= least:
            yield Bar(start, start + length, name, "", f"rank {rank.rank}: {seconds(length)}")


def _operation(timing: StepTiming, name: str, o: TaskTiming, look: Look) -> Iterator[Bar]:
    """Yields the operation with its waits hatched at its front: their places are not measured."""
    forward = o.kind == "F"
    shade = look(o.task) + (" light" if forward else "")
    side = "forward" if forward else "backward"
    words = f"{name}, task {o.task} {side}: {seconds(o.stop - o.start)}"
    yield Bar(o.start, o.stop, shade, "" if forward else str(o.task), words)
    peers = "ring peers and other stages" if deep(timing) else "ring peers"
    if o.waited > 0:
        yield Bar(
            o.start, o.start + o.waited, "wait", "", f"{words}, of it {seconds(o.waited)} waiting for {peers}"
        )  # fmt: skip
