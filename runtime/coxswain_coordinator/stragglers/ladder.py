"""Takes the ladder's rungs above Rebalance for a running job: another layout, and the wish for another node.

A lost device has speed 0. The planner runs in a thread beside the driver. What it says of a world that is over, or of other
speeds, is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from coxswain.config import JobConfig
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
from coxswain_coordinator.capacity import devices_of
from coxswain_coordinator.stragglers.aside import DevicesAside
from coxswain_coordinator.stragglers.drag import Drag
from coxswain_coordinator.stragglers.figures import Measured
from coxswain_coordinator.stragglers.guard import Guard
from coxswain_coordinator.stragglers.judge import JUDGED, judged
from coxswain_coordinator.stragglers.offers import offers
from coxswain_coordinator.stragglers.words import Straggler

log = logging.getLogger(__name__)

MEASURED_STEPS = 16
"""Steps in a new layout until its gain is compared with the predicted one."""

_RECENT = 5  # steps whose median is the seconds of a step
_CHANGES = 64  # that are remembered

Offers = Callable[[JobConfig, int, Layout, Speeds, float], Options]
Judge = Callable[[JobConfig, int, Options, Sequence[Sequence[int]]], Options]
Beside = Callable[..., Awaitable[Options]]
RequestLayout = Callable[[Layout, str], None]
RecordEvent = Callable[[EventReason, str], None]
"""Reason, message."""


@dataclass(frozen=True, slots=True)
class Home:
    """The world that the ladder decides for. `nodes`: by device, where known. `lost`: devices that the job had and shall have."""

    record: Generation
    vocabulary: int
    nodes: Mapping[Device, str]
    lost: frozenset[Device]


@dataclass(frozen=True, slots=True)
class Expected:
    """A change that was requested. `speeds`: those that it was decided for. `before`, `gain`: seconds of a step."""

    layout: Layout
    speeds: Speeds
    because: str
    before: float
    gain: float


class Ladder:
    """`request`: the node that the job wants to leave."""

    def __init__(
        self, job: JobConfig, request_layout: RequestLayout, record_event: RecordEvent,
        beside: Beside = asyncio.to_thread, planner: Offers = offers, joins: Callable[[], bool] = lambda: False,
        judge: Judge = judged,
    ) -> None:  # fmt: skip
        """`joins`: whether a trainer has registered that the next world takes in, whatever is planned for this one."""
        self._job, self._request_layout, self._beside, self._planner = job, request_layout, beside, planner
        self._judge = judge
        self._record_event, self._guarded, self._joins = record_event, Guard(), joins
        self.request: NodeRequest | None = None
        self._home: Home | None = None
        self._step = 0
        self._powers: dict[Device, int] = {}  # of STEP, by slow device
        self._since: dict[Device, int] = {}
        self._planned: Speeds = {}
        self._least_gain = LEAST_GAIN  # 0 in a layout that was formed after a loss, without a search
        self._options: Options | None = None
        self._changes: list[Change] = []
        self._recent: list[float] = []
        self._drag = Drag()
        self._lengths = deque[tuple[int, ...]](maxlen=JUDGED)
        self._expected: Expected | None = None
        self._leaving = False
        self._task: asyncio.Task[None] | None = None
        self._faults = set[str]()
        self._failed = set[Layout]()  # of these pods
        self.aside = DevicesAside()

    @property
    def climbs(self) -> bool:
        return self._job.stragglers.changes_layouts

    @property
    def speeds(self) -> dict[Device, float]:
        """Of slow devices and those that an earlier coordinator has set aside, and 0 of lost ones."""
        slow = {device: speed_of(power) for device, power in sorted(self._powers.items())}
        return slow | dict(self.aside.unknown) | dict.fromkeys(sorted(self._home.lost) if self._home else (), 0.0)

    def speeds_of(self, pods: Mapping[int, str]) -> Speeds:
        """Of the slow devices of these pods, by index of the trainer."""
        record = self._home and self._home.record
        return {d: s for d, s in self.speeds.items() if record and _pod(record, d) == pods.get(d.trainer)}

    def enter(self, record: Generation, world: World, nodes: Sequence[str]) -> None:
        """A new world. Devices of pods that stay keep their speeds; what was planned for the world before is dropped."""
        if not self.climbs:
            return
        before = self._home
        if before:
            self._judge_layout(before.record, record)
            self._forget_unformed(before.record, record)
        self._rewind(record.first_step)
        self._carry(before.record if before else None, record)
        self._home = home = self._home_of(before, record, world, nodes)
        self.aside.settle(self.speeds, record)
        self._expect(before.record if before else None, home)
        self._recent, self._options, self._leaving = [], None, False
        self._drag.enter()
        self._settle_request()
        # While the world forms. A new coordinator has no step yet to judge layouts by.
        if before and not self._least_gain and not self._joins():
            self._plan(home, self.speeds)

    def _forget_unformed(self, before: Generation, record: Generation) -> None:
        """A change that was requested last, and whose world was lost before it, has cost nothing."""
        if self._expected and self._expected.layout not in (before.layout, record.layout):
            del self._changes[-1:]

    def _carry(self, before: Generation | None, record: Generation) -> None:
        """Keeps what is known of devices whose pods stay. One that was on standby has cost nothing until now."""
        kept = {d for d in devices_of(record.layout) if before and _pod(before, d) == _pod(record, d)}
        self._powers = {device: power for device, power in self._powers.items() if device in kept}
        self.aside.enter(self._job, record.layout, kept if before else None)
        idle = set(before.layout.standby) - set(record.layout.standby) if before else ()
        self._since |= dict.fromkeys(idle, record.first_step)

    def _home_of(self, before: Home | None, record: Generation, world: World, nodes: Sequence[str]) -> Home:
        """Devices that this world lost are lost since its first step."""
        lost = self._lost_from(before, record)
        self._since |= dict.fromkeys(lost - before.lost if before else lost, record.first_step)
        known = devices_of(record.layout) - set(self.aside.unknown)
        return Home(record, world.vocabulary, {d: nodes[d.trainer] for d in known if nodes[d.trainer]}, lost)

    def _expect(self, before: Generation | None, home: Home) -> None:
        """What was decided for a layout holds in the first world that has it."""
        layout = home.record.layout
        if before and before.layout == layout:
            self._expected = None
            return
        made = self._expected if self._expected and self._expected.layout == layout else None
        self._expected, self._planned = made, made.speeds if made else self.aside.unknown
        self._least_gain = 0.0 if home.lost and not made else LEAST_GAIN

    def _judge_layout(self, before: Generation, record: Generation) -> None:
        """Whether the former layout may be one that cannot run: its world has made no step, and its pods have another layout."""
        if before.trainers != record.trainers:
            self._failed.clear()
        elif before.layout != record.layout and not self._recent and record.first_step <= before.first_step:
            self._failed.add(before.layout)

    def _lost_from(self, before: Home | None, record: Generation) -> frozenset[Device]:
        """What the job shall have, has not, and had. A new coordinator does not know what it had: all that it shall have."""
        trainers, each = record.size or self._job.trainers, self._job.devices_per_trainer
        whole = {Device(t, d) for t in range(trainers) for d in range(each)}
        had = devices_of(before.record.layout) | before.lost if before else whole
        return frozenset((whole & had) - devices_of(record.layout))

    def _rewind(self, step: int) -> None:
        """Steps from this one on are done again: what was so then has been so since this one at the latest."""
        self._step = min(self._step, step)
        self._since = {device: min(since, step) for device, since in self._since.items()}
        self._changes = [replace(change, step=min(change.step, step)) for change in self._changes]

    def probed(self, device: Device, slowdown: float) -> bool:
        """What a probe says of a device that waits on standby. True: it is well, and the next decision counts it as such."""
        before, heard = self.speeds[device], self.aside.probed(device, slowdown)
        if heard == "Waits":
            return False
        self._since[device] = self._step
        if heard == "Well":
            self._powers.pop(device, None)
            self._planned = {device: before, **self._planned}  # also where no decision has chosen the layout
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
        self._drag.stepped(closed.beside, slowest(self._home.record.layout, self.speeds))
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
        if self._expected is None or self._leaving or len(self._recent) < MEASURED_STEPS:
            return
        expected, self._expected = self._expected, None
        now = median(self._recent)
        self._record_event(
            "LayoutMeasured",
            f"the layout that changed because of {expected.because}: a step takes {now:.3f} s and took "
            f"{expected.before:.3f} s; it gains {expected.before - now:.3f} s, predicted were {expected.gain:.3f} s",
        )

    # --- rungs ----------------------------------------------------------------------------------------

    def _decide(self, home: Home) -> None:
        """One decision at a time: none while a change is on its way, and none that placements make by themselves."""
        if not self._recent or self._leaving or self._joins() or not (self.speeds or self._planned):
            return
        rung = decide(self._view(home))
        if isinstance(rung, Plan):
            self._plan(home, rung.speeds)
        elif isinstance(rung, Relayout):
            self._change(rung)
        elif isinstance(rung, ReplaceNode):
            self._ask(home, rung)

    def _view(self, home: Home) -> View:
        return View(
            action=self._job.stragglers.action, step=self._step + 1, layout=home.record.layout,
            seconds=median(self._recent[-_RECENT:]), beside=self._drag.beside, drag=self._drag.value,
            speeds=self.speeds, planned=self._planned, least_gain=self._least_gain, since=self._since, nodes=home.nodes,
            options=self._options, changes=tuple(self._changes),
            replace=REPLACE_SECONDS if self.request is None else None,
        )  # fmt: skip

    def _plan(self, home: Home, speeds: Speeds) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._take_options(home, speeds))

    def plan_for(self, job: JobConfig) -> None:
        """The job with the layout that mode Auto has chosen."""
        self._job = job

    async def _take_options(self, home: Home, speeds: Speeds) -> None:
        try:
            asked = home.vocabulary, home.record.layout, speeds, self._least_gain
            found = await self._beside(self._planner, self._job, *asked)
            if self._lengths:
                found = await self._beside(self._judge, self._job, home.vocabulary, found, tuple(self._lengths))
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

    def _change(self, rung: Relayout) -> None:
        self._remember(Change(self._step + 1, rung.kind, rung.devices))
        before = median(self._recent[-_RECENT:])
        because = self._words(rung.devices)
        self._expected, self._leaving = Expected(rung.layout, self.speeds, because, before, rung.gain), True
        self._request_layout(
            rung.layout,
            f"because of {because}: {rung.layout.summary()} is predicted to save {rung.gain:.3f} of {before:.3f} s of "
            f"each step, for {rung.cost:.1f} s once{self._standby_words(rung.layout)}",
        )

    def _words(self, devices: frozenset[Device]) -> str:
        """Slow devices by name, lost ones by their trainers."""
        assert self._home
        gone = sorted({device.trainer for device in devices & self._home.lost})
        losses = [f"the loss of {', '.join(f'trainer-{index}' for index in gone)}"] if gone else []
        return " and ".join([*map(_name, sorted(devices - self._home.lost)), *losses])

    def _standby_words(self, layout: Layout) -> str:
        """What becomes of devices that go on standby."""
        assert self._home
        idle = sorted(set(layout.standby) - set(self._home.record.layout.standby))
        if not idle:
            return ""
        return f"; {' and '.join(map(_name, idle))} goes on standby: probed now and then, and planned with again once it is well"

    def _ask(self, home: Home, rung: ReplaceNode) -> None:
        self._remember(Change(self._step + 1, "ReplaceNode", rung.devices))
        slow = " and ".join(
            f"{_name(d)} computes {slowdown:.2f} x as long as its peers since step {self._since[d]}"
            for d, slowdown in rung.evidence
        )
        trainer = min(rung.devices).trainer
        self.request = NodeRequest(rung.node, f"trainer-{trainer}", f"{slow}; it costs {rung.gain:.3f} s of each step")
        log.warning("another node than %s is wanted: %s", rung.node, self.request.evidence)

    def _remember(self, change: Change) -> None:
        self._changes = [*self._changes[1 - _CHANGES :], change]


def _name(device: Device) -> str:
    return f"trainer-{device.trainer} device {device.device}"


def _pod(record: Generation, device: Device) -> str:
    return record.trainers[device.trainer] if device.trainer < len(record.trainers) else ""
