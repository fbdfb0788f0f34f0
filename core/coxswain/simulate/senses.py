"""What a job measures in virtual time: each rank's compute with noise, and probes, as the detector is given them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coxswain.layout import Device, Layout
from coxswain.plan.layouts.settle import Draft
from coxswain.simulate.run import Measured, Run
from coxswain.simulate.truth import Truth
from coxswain.stragglers.detector import Detector
from coxswain.stragglers.surprise import StepLengths
from coxswain.stragglers.values import Floats, Place, Report, Step

NOISE = 0.02  # sigma of a rank's compute in one step; of the probe a half
SPREAD = 0.04  # healthy devices differ by up to so much for good
PROBE = 0.001  # seconds of one product of the probe on a healthy accelerator, at most (`coxswain_train.engine.probe`)
ROUNDS = 5  # products that count; one before them warms up
ANSWER = 2  # steps from the one that makes a suspect to the one whose reports have the probe: the one between has begun
SHORT, LONG = 4096.0, 32768.0  # tokens of a replica's longest sequence where its step takes 1 and 1.5 times as long
STEADY = 16  # steps of one truth after which the detector may have settled: no longer has it figures of another
AHEAD = 8  # steps before the truth changes that are observed again: so many make its windows


class Senses:
    """The real detector and what it is shown. `skips`: steps that can show it nothing but noise are not observed."""

    def __init__(self, seed: int, skips: bool = True) -> None:
        self._seed, self._skips = seed, skips
        self._detector: Detector | None = None
        self._steady: tuple[float, int] = -1.0, 0  # since when the truth is as it is, and steps observed since
        self._lengths = StepLengths()
        self._asked: tuple[int, tuple[int, ...]] | None = None  # the step before which these ranks probe, and they

    def begin(self, run: Run, draft: Draft, layout: Layout, replaced: Mapping[int, int]) -> None:
        """A new layout: ranks have new places. `replaced`: how often each node was; its devices are others then."""
        seats, nodes = layout.ranks(), run.trace.nodes
        numbers = [s.device.trainer + nodes * replaced.get(s.device.trainer, 0) for s in seats]
        places = [
            Place(s.replica, s.stage, s.tensor, number, s.device.device, s.device.trainer)
            for s, number in zip(seats, numbers, strict=True)
        ]
        self._detector = self._detector.moved(places) if self._detector else Detector(places)
        self.seats = [s.device for s in seats]
        self.rank_of = {device: rank for rank, device in enumerate(self.seats)}
        self._replicas = np.array([s.replica for s in seats])
        stages = {(s.replica, s.stage) for s in seats}
        work = {stage: _stage_work(run, draft, *stage) for stage in stages}
        self._work = np.array([work[s.replica, s.stage] for s in seats])
        self._natural = np.array([_own(run, d) for d in self.seats])
        self._steady, self._asked, self._lengths = (-1.0, 0), None, StepLengths()

    def observe(self, run: Run, measured: Measured) -> Report | None:
        """What is found after a step, by probes too where they were asked for. None: nothing but noise could be."""
        assert self._detector
        surprising = self._lengths.surprises(measured.seconds, run.draft.seconds) and run.world.costs.limit is not None
        if not surprising and self._shows_nothing(run, measured):
            self._detector.passed(1)
            return None
        if surprising:
            self._asked = run.steps, tuple(range(len(self.seats)))
        report = self._detector.observe(replace(self.figures(run, measured), probes=self._answers(run)))
        if report.probes and self._asked is None:
            self._asked = run.steps + ANSWER, report.probes
        return report

    def _shows_nothing(self, run: Run, measured: Measured) -> bool:
        """The truth has been as it is for long, and stays so for longer than the detector's windows; it has settled."""
        truth = run.truth
        since, steps = self._steady
        self._steady = truth.since, steps + 1 if truth.since == since else 0
        if not self._skips or self._steady[1] < STEADY or truth.long > 1 or truth.pauses or len(measured.parts) > 1:
            return False
        if self._asked:
            return False
        assert self._detector
        left = run.timeline.next_change(run.now) - run.now
        return left > AHEAD * measured.seconds and self._detector.settled

    def figures(self, run: Run, measured: Measured) -> Step:
        true = np.sum([part * self._true(truth) for part, truth in measured.parts], axis=0)
        work = self._work * np.array(run.draft.counts)[self._replicas]
        compute = work * true * measured.long[self._replicas] * self._random(run, 0, NOISE, len(work))
        for rank, seconds in measured.pauses.items():
            compute[rank] += seconds
        return Step(run.steps, compute, work, SHORT + (LONG - SHORT) * 2 * (measured.long[self._replicas] - 1))

    def _true(self, truth: Truth) -> Floats:
        found = self._natural * truth.fleet
        for (node, device), x in truth.key:
            rank = self.rank_of.get(Device(node, device))
            if rank is not None and math.isfinite(x):
                found[rank] *= x
        return found

    def _random(self, run: Run, purpose: int, sigma: float, shape: int | tuple[int, int]) -> Floats:
        """Noise of one step, which is the same whatever of other steps was observed."""
        generator = np.random.Generator(np.random.Philox(key=[self._seed, 4 * run.steps + purpose]))
        found: Floats = np.exp(generator.normal(0, sigma, shape))
        return found

    def _answers(self, run: Run) -> dict[int, float]:
        """Those that were asked probe before the step that has ended and behind it, as long as the slowest one does; all ranks
        behind a step that surprises them."""
        if self._asked is None or run.steps < self._asked[0]:
            return {}
        true, ranks, self._asked = self._true(run.truth), list(self._asked[1]), None
        run.wait(2 * (1 + ROUNDS) * PROBE * float(true[ranks].max()), "probes")
        rounds = self._random(run, 1, NOISE / 2, (ROUNDS, len(true))).min(axis=0)
        return {rank: float(PROBE * true[rank] * rounds[rank]) for rank in ranks}

    def aside(self, run: Run, device: Device) -> float:
        """What a probe of a device on standby says. Infinite: it is lost."""
        each = run.trace.devices
        noise = self._random(run, 2, NOISE / 2, (ROUNDS, run.trace.nodes * each)).min(axis=0)
        return run.truth.of(device) * float(noise[device.trainer * each + device.device])


def _stage_work(run: Run, draft: Draft, replica: int, stage: int) -> float:
    """Seconds of one micro-batch at speed 1."""
    chain = draft.chains[replica]
    group = chain.groups[stage]._replace(slowdown=1.0)
    loss = run.world.costs.loss_seconds(group) if stage == len(chain.groups) - 1 else 0.0
    return run.world.costs.layer_seconds(group.degree, 1.0) * chain.layers[stage] + loss


def _own(run: Run, device: Device) -> float:
    """How much a healthy device differs from others for good; the same in every run."""
    number = device.trainer * run.trace.devices + device.device
    return 1 + SPREAD * (2 * (number * 0.6180339887 % 1) - 1)
