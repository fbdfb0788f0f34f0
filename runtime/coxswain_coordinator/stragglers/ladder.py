"""Takes the ladder's rungs above Rebalance for a running job: another layout, and the wish for another node.

A lost device has speed 0. The planner runs in a thread beside the driver. What it says of a world that is over, or of other
speeds, is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import ParamSpec, Protocol

from coxswain.config import JobConfig
from coxswain.cost.constants import Hardware
from coxswain.ladder.decide import decide
from coxswain.ladder.drag import slowest
from coxswain.ladder.speeds import bucket, changed, speed_of
from coxswain.ladder.values import (
    LEAST_GAIN,
    REPLACE_SECONDS,
    Change,
    Options,
    Plan,
    Relayout,
    ReplaceNode,
    Speeds,
    View,
)
from coxswain.layout import Device, Layout
from coxswain.names import EventReason
from coxswain.planlog import Generation
from coxswain.wire import NodeRequest, World
from coxswain_coordinator.stragglers.aside import DevicesAside
from coxswain_coordinator.stragglers.drag import Drag
from coxswain_coordinator.stragglers.figures import Measured
from coxswain_coordinator.stragglers.guard import Guard
from coxswain_coordinator.stragglers.home import Home, home_of, kept_devices, lost_devices, pod_of, seated_devices
from coxswain_coordinator.stragglers.judge import JUDGED, judged
from coxswain_coordinator.stragglers.offers import offers
from coxswain_coordinator.stragglers.rung_history import Expected, RungHistory
from coxswain_coordinator.stragglers.rung_words import because, evidence, measured, requested
from coxswain_coordinator.stragglers.words import Straggler

log = logging.getLogger(__name__)

MEASURED_STEPS = 16
"""Steps in a new layout until its gain is compared with the predicted one."""

_RECENT = 5  # steps whose median is the seconds of a step

_P = ParamSpec("_P")


class Offers(Protocol):
    """Offers layouts from this one. `hardware`: of a job with a profile."""

    def __call__(
        self, job: JobConfig, vocabulary: int, layout: Layout, speeds: Speeds, least_gain: float = LEAST_GAIN,
        hardware: Hardware | None = None,
    ) -> Options: ...  # fmt: skip


class Judge(Protocol):
    """Judges the options by the lengths of these steps. `hardware`: of a job with a profile."""

    def __call__(
        self, job: JobConfig, vocabulary: int, options: Options, steps: Sequence[Sequence[int]],
        hardware: Hardware | None = None,
    ) -> Options: ...  # fmt: skip


class Beside(Protocol):
    """Runs one of these two beside the event loop."""

    def __call__(self, func: Callable[_P, Options], /, *args: _P.args, **kwargs: _P.kwargs) -> Awaitable[Options]: ...


RequestLayout = Callable[[Layout, str], None]
RecordEvent = Callable[[EventReason, str], None]
"""Reason, message."""


class Ladder:
    """`request`: the node that the job wants to leave. `job`: with the layout that mode Auto has chosen."""

    def __init__(
        self, job: JobConfig, request_layout: RequestLayout, record_event: RecordEvent,
        beside: Beside = asyncio.to_thread, planner: Offers = offers, joins: Callable[[], bool] = lambda: False,
        judge: Judge = judged,
    ) -> None:  # fmt: skip
        """`beside` runs what takes CPU seconds: `planner`, which offers layouts, and `judge`.

        `joins`: whether a trainer has registered that the next world takes in, whatever is planned for this one.
        """
        self.job, self._request_layout, self.beside, self.planner = job, request_layout, beside, planner
        self.judge = judge
        self._record_event, self._guarded, self._joins = record_event, Guard(), joins
        self.request: NodeRequest | None = None
        self._home: Home | None = None
        self._step = 0
        self._powers: dict[Device, int] = {}  # of STEP, by slow device
        self._since: dict[Device, int] = {}
        self._options: Options | None = None
        self._rungs = RungHistory()
        self._recent: list[float] = []
        self.drag = Drag()
        self._lengths = deque[tuple[int, ...]](maxlen=JUDGED)
        self._leaving = False
        self._task: asyncio.Task[None] | None = None
        self._faults = set[str]()
        self._failed = set[Layout]()  # of these pods
        self.aside = DevicesAside()

    def go_by(self, profile: Hardware) -> None:
        """Layouts are offered and judged by the job's profile, not by what its policy names."""
        self.planner, self.judge = partial(self.planner, hardware=profile), partial(self.judge, hardware=profile)

    @property
    def climbs(self) -> bool:
        return self.job.stragglers.changes_layouts

    @property
    def speeds(self) -> dict[Device, float]:
        """Of slow devices and those that an earlier coordinator has set aside, and 0 of lost ones."""
        slow = {device: speed_of(power) for device, power in sorted(self._powers.items())}
        return slow | dict(self.aside.unknown) | dict.fromkeys(sorted(self._home.lost) if self._home else (), 0.0)

    def speeds_of(self, pods: Mapping[int, str]) -> Speeds:
        """Of the slow devices of these pods, by index of the trainer."""
        record = self._home and self._home.record
        return {d: s for d, s in self.speeds.items() if record and pod_of(record, d) == pods.get(d.trainer)}

    def enter(self, record: Generation, world: World, nodes: Sequence[str]) -> None:
        """A new world. Devices of pods that stay keep their speeds; what was planned for the world before is dropped."""
        if not self.climbs:
            return
        before, lost = self._home, lost_devices(self.job, self._home, record)
        if before:
            self._judge_layout(before.record, record)
        self._rewind(record.first_step)
        self._carry(before, record, lost)
        self._home = home = home_of(record, world, nodes, self.aside.unknown, lost)
        self.aside.settle(self.speeds, record)
        self._rungs.enter(before.record if before else None, home, self.aside.unknown)
        self._recent, self._options, self._leaving = [], None, False
        self.drag.enter()
        self._settle_request()
        # While the world forms. A new coordinator has no step yet to judge layouts by.
        if before and not self._rungs.least_gain and not self._joins():
            self._plan(home, self.speeds)

    def _carry(self, before: Home | None, record: Generation, lost: frozenset[Device]) -> None:
        """Keeps what is known of devices whose pods stay. One that was on standby has cost nothing until now, and one that this
        world lost is lost since its first step."""
        kept = kept_devices(before, record)
        self._powers = {device: power for device, power in self._powers.items() if device in kept}
        self.aside.enter(self.job, record.layout, kept if before else None)
        began = seated_devices(before, record) | (lost - before.lost if before else lost)
        self._since |= dict.fromkeys(began, record.first_step)

    def _judge_layout(self, before: Generation, record: Generation) -> None:
        """Whether the former layout may be one that cannot run: its world has made no step, and its pods have another layout."""
        if before.trainers != record.trainers:
            self._failed.clear()
        elif before.layout != record.layout and not self._recent and record.first_step <= before.first_step:
            self._failed.add(before.layout)

    def _rewind(self, step: int) -> None:
        """Steps from this one on are done again: what was so then has been so since this one at the latest."""
        self._step = min(self._step, step)
        self._since = {device: min(since, step) for device, since in self._since.items()}
        self._rungs.rewind(step)

    def probed(self, device: Device, slowdown: float) -> bool:
        """What a probe says of a device that waits on standby. True: it is well, and the next decision counts it as such."""
        before, heard = self.speeds[device], self.aside.probed(device, slowdown)
        if heard == "Waits":
            return False
        self._since[device] = self._step
        if heard == "Well":
            self._powers.pop(device, None)
            self._rungs.recovered(device, before)
        else:
            self._powers[device] = bucket(slowdown, 0)
        return heard == "Well"

    def stepped(self, closed: Measured, stragglers: Sequence[Straggler]) -> None:
        """`stragglers`: all that are confirmed."""
        if self._home is None:  # also where no rung above Rebalance is allowed
            return
        self._step, self._recent = closed.step, [*self._recent[1 - MEASURED_STEPS :], closed.seconds]
        if closed.lengths:
            self._lengths.append(closed.lengths)
        self._learn(self._home, stragglers)
        self.drag.stepped(closed.beside, slowest(self._home.record.layout, self.speeds))
        self._compare()
        self._decide(self._home)

    def leave(self) -> None:
        """The world is over: what was decided for it is void."""
        self._leaving = True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _learn(self, home: Home, stragglers: Sequence[Straggler]) -> None:
        """A device on standby keeps its speed: without work it is not seen."""
        standby = set(home.record.layout.standby)
        now = {device: power for device, power in self._powers.items() if device in standby}
        for found in stragglers:
            device = Device(found.index, found.device)
            now[device] = bucket(found.slowdown, self._powers.get(device, 0))
        self._since |= dict.fromkeys(changed(self._powers, now), self._step)
        onsets = {Device(found.index, found.device): found.since_step for found in stragglers}
        self._since |= {device: step for device, step in onsets.items() if device not in self._powers}
        self._powers = now
        self._settle_request()

    def _settle_request(self) -> None:
        """A node whose devices are well, or that the job has left, is no longer wanted away."""
        assert self._home
        slow = {self._home.nodes.get(device) for device in self._powers}
        if self.request is not None and self.request.node not in slow:
            self.request = None

    def _compare(self) -> None:
        """Says what a change has gained, once its layout is measured."""
        expected = self._rungs.expected
        if expected is None or self._leaving or len(self._recent) < MEASURED_STEPS:
            return
        self._rungs.expected = None
        self._record_event("LayoutMeasured", measured(expected, median(self._recent)))

    # --- rungs ----------------------------------------------------------------------------------------

    def _decide(self, home: Home) -> None:
        """One decision at a time: none while a change is on its way, and none that placements make by themselves."""
        if not self._recent or self._leaving or self._joins() or not (self.speeds or self._rungs.planned):
            return
        rung = decide(self._view(home))
        if isinstance(rung, Plan):
            self._plan(home, rung.speeds)
        elif isinstance(rung, Relayout):
            self._change(home, rung)
        elif isinstance(rung, ReplaceNode):
            self._ask(home, rung)

    def _view(self, home: Home) -> View:
        return View(
            action=self.job.stragglers.action, step=self._step + 1, layout=home.record.layout,
            seconds=median(self._recent[-_RECENT:]), beside=self.drag.beside, drag=self.drag.value,
            speeds=self.speeds, planned=self._rungs.planned, least_gain=self._rungs.least_gain, since=self._since,
            nodes=home.nodes, options=self._options, changes=tuple(self._rungs.changes),
            replace=REPLACE_SECONDS if self.request is None else None,
        )  # fmt: skip

    def _plan(self, home: Home, speeds: Speeds) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._take_options(home, speeds))

    def plan_for(self, job: JobConfig) -> None:
        """The job with the layout that mode Auto has chosen."""
        self.job = job

    async def _take_options(self, home: Home, speeds: Speeds) -> None:
        try:
            asked = home.vocabulary, home.record.layout, speeds, self._rungs.least_gain
            found = await self.beside(self.planner, self.job, *asked)
            if self._lengths:
                found = await self.beside(self.judge, self.job, home.vocabulary, found, tuple(self._lengths))
        except Exception as error:  # training goes on as it is
            self._warn(f"{type(error).__name__}: {error}")
            found = Options(home.record.layout, speeds, 1.0, 1.0)
        finally:
            self._task = None
        if home is self._home and not self._leaving:
            able = tuple(option for option in found.layouts if option.layout not in self._failed)
            self._options = replace(found, layouts=able)
            self._guarded(self._decide, home)

    def _warn(self, fault: str) -> None:
        if fault not in self._faults:
            self._faults.add(fault)
            log.warning("no layout is planned for stragglers, and training goes on in its layout: %s", fault)

    def _change(self, home: Home, rung: Relayout) -> None:
        self._rungs.add(Change(self._step + 1, rung.kind, rung.devices))
        before, why = median(self._recent[-_RECENT:]), because(rung.devices, home.lost)
        self._rungs.expected, self._leaving = Expected(rung.layout, self.speeds, why, before, rung.gain), True
        self._request_layout(rung.layout, requested(rung, why, before, home.record.layout))

    def _ask(self, home: Home, rung: ReplaceNode) -> None:
        self._rungs.add(Change(self._step + 1, "ReplaceNode", rung.devices))
        trainer = min(rung.devices).trainer
        self.request = NodeRequest(rung.node, f"trainer-{trainer}", evidence(rung, self._since))
        log.warning("another node than %s is wanted: %s", rung.node, self.request.evidence)
