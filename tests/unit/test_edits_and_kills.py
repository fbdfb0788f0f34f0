"""Edits, kills and suspensions in any order: a step contains the same, and all pods of an attempt are equal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.membership.mix_record import without_record
from coxswain.membership.stream import initial_cursor
from coxswain.membership.values import Cursor, Sequence
from coxswain_coordinator.planning.committer import Committer
from coxswain_operator.controller import Controller
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest
from tests.draws import draws
from tests.unit.fake_cluster import (
    NAMESPACE,
    FakeCluster,
    data_mix,
    data_source,
    manifest,
    member_of,
    report,
    report_text,
    training_job,
)  # fmt: skip
from tests.unit.test_coordinator_committer import committer
from tests.unit.test_reconcile_attempt import images

SEGMENTS, STEPS = 4, 8
WIDE = {"hybridData": {"tokensPerReplica": 256, "maxDegree": 4}}
SIZES = {"minCount": 1, "maxCount": 3}


Edit = tuple[Any, ...]
Disturbance = tuple[str, str]
Disturbances = dict[int, list[Disturbance]]
"""By segment."""


def sources(code: int, docs: int) -> list[Manifest]:
    return [{"name": n, "sourceRef": {"name": n}, "weight": w} for n, w in (("code", code), ("docs", docs))]


class Lab(FakeCluster):
    """A cluster whose pods read their configuration when they start, and whose coordinator keeps a plan log."""

    def __init__(self, folder: Path) -> None:
        job = training_job(
            parallelismRef={"name": "wide"}, batch={"tokensPerStep": 512, "maxSequenceTokens": 256},
            trainers={"count": 2, **SIZES}, checkpoint={"uri": f"file://{folder}/store"}, failurePolicy={"maxRestarts": 1000},
        )  # fmt: skip
        del job["spec"]["parallelism"]
        mix = data_mix("mix", "code", "docs")
        mix["spec"]["sources"] = sources(700, 300)
        policy = manifest("ParallelismPolicy", "wide", WIDE)
        super().__init__(*map(data_source, ("code", "docs", "notes")), mix, policy, job)
        self.settings, self.generation, self.at, self.saved = Settings(), 0, 0, 0
        self.read: dict[str, tuple[JobConfig, dict[str, str]]] = {}  # by the pod's uid
        self.mix: Manifest = {"sources": sources(700, 300), "phases": []}
        self.breaks = ""  # the reason of the refusal that the last edit brings at the next attempt
        self.steps: dict[int, tuple[Sequence, ...]] = {}
        self.cursors: dict[int, Cursor] = {}
        self.committer: Committer | None = None
        self.refused = 0

    def run(self, pod: Manifest) -> None:
        super().run(pod)
        config = self.mounted(pod)
        self.read[pod["metadata"]["uid"]] = (config, images(pod))
        if member_of(pod) == "coordinator":
            self.generation += 1
            self.committer, self.at = committer(config, self.generation), self.saved
            self.cursors = self.cursors or {0: initial_cursor(config.mix)}

    def mounted(self, pod: Manifest) -> JobConfig:
        (name,) = [v["configMap"]["name"] for v in pod["spec"]["volumes"] if v["name"] == "job"]
        text = self.objects["ConfigMap", name]["data"]["job.json"]
        return msgspec.json.decode(text.encode(), type=JobConfig)

    async def settle(self) -> None:
        for _ in range(6):
            await Controller(self, self, self.clock, self.settings).pass_once(NAMESPACE, "demo")
            self.reap()
            self.run_all()
            self.check_equal()
            self.leave_as_asked()
            self.tick(61)  # longer than any back-off

    def leave_as_asked(self) -> None:
        """The coordinator saves and leaves, and everybody with it."""
        if self.calls:
            self.saved, self.report_now = self.at, None
            for pod in self.pods():
                if pod["status"]["phase"] == "Running":
                    self.end(pod, 3, report_text("Suspended", step=self.at))
        self.calls.clear()

    def check_equal(self) -> None:
        """All pods that run have read one configuration, and have one image a container."""
        pods = [
            p for p in self.pods() if p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"]
        ]
        found = [self.read[p["metadata"]["uid"]] for p in pods]
        assert len({msgspec.json.encode(replace(c, mix=without_record(c.mix))) for c, _ in found}) <= 1
        named = {(container, image) for _, of_pod in found for container, image in of_pod.items()}
        assert len(named) == len({container for container, _ in named})

    async def train(self, meanwhile: list[Disturbance]) -> None:
        """The next segment: planned, disturbed, saved. The coordinator follows the mix in job.json."""
        target = self.saved + STEPS
        await self.plan(target)
        for what in meanwhile:
            await self.disturb(what)
        await self.plan(target)
        self.saved, self.report_now = self.at, report("Running", self.at)
        await self.settle()

    async def plan(self, target: int) -> None:
        if not self.trains:
            await self.restore()
        assert self.committer is not None
        self.committer.mixes.offer(self.mounted(self.pod("coordinator") or {}).mix)
        while self.at < target:
            found = self.committer.commit(self.cursors[self.at], 10_000)
            for plan in found.plans:
                assert self.steps.setdefault(plan.step, plan.sequences) == plan.sequences, f"step {plan.step} changed"
            self.cursors |= found.cursors
            self.at = found.next

    @property
    def trains(self) -> bool:
        running = {member_of(p) for p in self.pods() if p["status"]["phase"] == "Running"}
        return {"coordinator", "loader-0", "trainer-0"} <= running

    async def restore(self) -> None:
        """What is recorded cannot be reproduced: the job says so, keeps its checkpoint, and goes on once the specs are back."""
        validated = self.condition("Validated")
        assert (validated["status"], validated["reason"]) == ("False", self.breaks), self.job["status"]
        assert self.state == "Queued" and self.job["status"]["lastCheckpoint"]["step"] == self.saved
        self.refused += 1
        await self.take_back()
        assert self.trains, self.job["status"]

    async def take_back(self) -> None:
        """The specs as they were before an edit that cannot be in effect."""
        self.breaks = ""
        self.edit("ParallelismPolicy", "wide", **WIDE)
        self.edit("DataMix", "mix", seed=7, **self.mix)
        await self.settle()

    # --- what the test does --------------------------------------------------------------------------------------

    async def change(self, edit: Edit) -> None:
        match edit:
            case ("weights", code, docs, phase):
                weights = [{"name": "docs", "weight": 1}]
                self.mix = {
                    "sources": sources(code, docs),
                    "phases": [{"fromStep": phase, "weights": weights}] * (phase > 0),
                }
                self.edit("DataMix", "mix", **self.mix)
            case ("policy", degree):
                self.edit("ParallelismPolicy", "wide", hybridData={"tokensPerReplica": 256, "maxDegree": degree})
            case ("narrow",):
                self.breaks = "CapacityTooSmall"
                self.edit("ParallelismPolicy", "wide", hybridData={"tokensPerReplica": 8, "maxDegree": 1})
            case ("seed", seed):
                self.breaks = "StreamChanged"
                self.edit("DataMix", "mix", seed=seed)
            case ("sources", *names):
                self.breaks = "StreamChanged"
                self.edit("DataMix", "mix", sources=sources_of(names))
            case ("stop", steps):
                self.edit("TrainingJob", "demo", stop={"steps": steps})
            case ("images", number):
                self.settings = Settings(data_image=f"data:{number}", train_image=f"train:{number}")
            case ("scale", count):
                self.edit("TrainingJob", "demo", trainers={"count": count, **SIZES})
        await self.settle()

    async def disturb(self, what: Disturbance) -> None:
        fate, member = what
        pod = self.pod(member)
        if fate == "suspend":
            self.edit("TrainingJob", "demo", suspend=True)
            await self.settle()
            self.edit("TrainingJob", "demo", suspend=False)
        elif pod is not None and pod["status"]["phase"] == "Running":
            if fate == "vanish":
                self.vanish(pod)
            else:
                self.end(pod, 1, disrupted=fate == "disrupt")
        await self.settle()


def sources_of(names: list[str]) -> list[Manifest]:
    return [{"name": n, "sourceRef": {"name": n}, "weight": 1} for n in names]


async def history(folder: Path, edits: dict[int, Edit], before: Disturbances, meanwhile: Disturbances) -> Lab:
    lab = Lab(folder)
    await lab.settle()
    await lab.train([])
    for segment in range(SEGMENTS):
        if lab.breaks:
            await lab.take_back()
        if segment in edits:
            await lab.change(edits[segment])
        for what in before.get(segment, []):
            await lab.disturb(what)
        await lab.train(meanwhile.get(segment, []))
    return lab


EDITS = st.dictionaries(
    st.integers(0, SEGMENTS - 1),
    st.one_of(
        st.tuples(st.just("weights"), st.integers(0, 9), st.integers(1, 9), st.sampled_from([0, 12, 24])),
        st.tuples(st.just("policy"), st.integers(1, 3)),
        st.just(("narrow",)),
        st.tuples(st.just("seed"), st.integers(8, 9)),
        st.sampled_from([("sources", "code"), ("sources", "code", "docs", "notes"), ("sources", "code", "notes")]),
        st.tuples(st.just("stop"), st.integers(101, 200)),
        st.tuples(st.just("images"), st.integers(1, 3)),
        st.tuples(st.just("scale"), st.integers(1, 3)),
    ),
)
FATES = st.one_of(
    st.tuples(
        st.sampled_from(["vanish", "fail", "disrupt"]), st.sampled_from(["coordinator", "loader-0", "trainer-0"])
    ),
    st.just(("suspend", "coordinator")),
)
DISTURBANCES = st.dictionaries(st.integers(0, SEGMENTS - 1), st.lists(FATES, min_size=1, max_size=2))


# An example takes a third of a second: none is made smaller.
@settings(max_examples=draws(6, 15), phases=[Phase.explicit, Phase.generate])
@given(edits=EDITS, before=DISTURBANCES, meanwhile=DISTURBANCES)
def test_the_same_edits_give_the_same_steps_whatever_is_killed_and_suspended(
    tmp_path_factory, edits, before, meanwhile
):
    async def scenario() -> None:
        plain = await history(tmp_path_factory.mktemp("a"), edits, {}, {})
        disturbed = await history(tmp_path_factory.mktemp("b"), edits, before, meanwhile)
        assert plain.refused == 0
        assert disturbed.steps == plain.steps
        assert set(plain.steps) == set(range((SEGMENTS + 1) * STEPS))

    asyncio.run(scenario())


@pytest.mark.parametrize("edit", [("narrow",), ("seed", 8), ("sources", "code"), ("sources", "code", "docs", "notes")])
async def test_a_spec_that_cannot_reproduce_what_is_recorded_is_refused_at_a_suspension_and_restored(tmp_path, edit):
    lab = await history(tmp_path / "a", {1: edit}, {1: [("fail", "coordinator"), ("suspend", "coordinator")]}, {})
    assert lab.refused == 1
    assert lab.steps == (await history(tmp_path / "b", {}, {}, {})).steps
