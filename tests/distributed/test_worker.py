"""A worker against a coordinator and a constructor that say what the test wants. One rank, in this process."""

from __future__ import annotations

import socket
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import uuid4

import msgspec
import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from safetensors import safe_open

from coxswain import names, wire
from coxswain.config import (
    BatchConfig,
    CheckpointConfig,
    JobConfig,
    MixConfig,
    OptimizerConfig,
    ParallelConfig,
)
from coxswain.errors import Refused, Retryable, Stale
from coxswain.layout import Device, uniform_layout
from coxswain_link.environment import Environment
from coxswain_link.handover import HandoverServer
from coxswain_link.step_buffer import Buffer, pack
from coxswain_link.store import open_store
from coxswain_train.engine.draws import seed_draws
from coxswain_train.engine.engine import StepInput, StepResult
from coxswain_train.live.state import Cut, LiveState
from coxswain_train.parallel.process_groups import WorldAborter
from coxswain_train.parallel.state import State
from coxswain_train.worker import release, worker, worlds
from coxswain_train.worker.assignments import Assignment, Leave
from tests.distributed import training
from tests.fake_coordinator import FakeCoordinator
from tests.step_samples import LENGTH, arrays, plan

LAYOUT = uniform_layout([Device(0, 0)], layers=training.MODEL.layers)


class OneRankCoordinator(FakeCoordinator):
    """Has one world of one rank. The directive of step `steps` is `end`. `agent`: the worker's, for tests that play it."""

    agent: socket.socket

    def __init__(
        self, steps: int = 3, end: str = "Completed", generation: int = 1, checkpoint: str = "", first_step: int = 0
    ) -> None:
        super().__init__("secret")
        self.steps, self.end, self.generation = steps, end, generation
        self.current = wire.World(
            generation=generation, first_step=first_step, layout=LAYOUT, seats=LAYOUT.ranks(), trainers=("trainer-0",),
            loaders=(), checkpoint=checkpoint, vocabulary=training.VOCABULARY,
        )  # fmt: skip
        self.answers |= {"/v1/steps": self._directive, "/v1/plans": self._plans, "/v1/beats": self._beat}
        self.answers["/v1/world"] = lambda *_: self.current

    @property
    def reports(self) -> list[wire.StepReport]:
        return self.received["/v1/reports"]

    @property
    def saves(self) -> list[wire.ShardsSaved]:
        return self.received["/v1/saved"]

    def _directive(self, query: dict[str, str], _: None) -> wire.StepDirective:
        step = int(query["step"])
        if step >= self.steps:
            return wire.StepDirective(step=step, checkpoint=True, end=self.end, plan=None)  # type: ignore[arg-type]
        return wire.StepDirective(step=step, checkpoint=False, end="", plan=plan(step))

    def _plans(self, query: dict[str, str], _: None) -> wire.StepPlans | None:
        found = tuple(plan(step) for step in range(int(query["from"]), self.steps))
        return wire.StepPlans(found) if found else None

    def _beat(self, *_: Any) -> wire.Ack:
        """What was saved is a checkpoint by the next heartbeat."""
        return wire.Ack("one", self.saves[-1].step if self.saves else 0)


def job(folder: Path) -> JobConfig:
    return JobConfig(
        name="small",
        namespace="default",
        uid="u",
        seed=training.SEED,
        model=training.MODEL,
        mix=MixConfig(name="mix", seed=1, sources=()),
        parallelism=ParallelConfig(),
        batch=BatchConfig(tokens_per_step=LENGTH, max_sequence_tokens=LENGTH),
        optimizer=OptimizerConfig(learning_rate=1e-2, gradient_clip=1.0),
        stop_steps=6,
        trainers=1,
        devices_per_trainer=1,
        min_trainers=1,
        loaders=1,
        checkpoint=CheckpointConfig(uri=f"file://{folder}"),
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a worker with a coordinator and the arrays that the constructor hands over; returns its exit code."""

    def start(
        coordinator: OneRankCoordinator, hand_over: Any = arrays, agent_goes: bool = False, sockets: Any = dict
    ) -> int:
        def provide(generation: int, step: int, rank: int, wait: float) -> Buffer:
            return pack(hand_over(step))

        pod = uuid4().hex
        agent, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        monkeypatch.setenv("COXSWAIN_ORDERS", str(mine.detach()))  # the worker closes it
        # An abort would cut the sockets of the coordinator in this process.
        monkeypatch.setattr(worker, "WorldAborter", lambda: WorldAborter(sockets))
        agent.send(msgspec.json.encode(Assignment(1, 0)))
        coordinator.agent = agent
        if agent_goes:
            agent.shutdown(socket.SHUT_WR)
        constructor = HandoverServer(names.constructor_socket(pod), "secret", provide)
        try:
            with coordinator:
                return worker.main(environment(tmp_path, coordinator.url, pod))
        finally:
            agent.close()
            constructor.close()
            if dist.is_initialized():  # a worker that fails ends its process, which this one must survive
                dist.destroy_process_group()

    return start


def environment(folder: Path, url: str, pod: str) -> Environment:
    return Environment(
        name="trainer-0",
        index=0,
        coordinator_url=url,
        job=job(folder),
        token="secret",
        pod_name="small-trainer-0-0",
        pod_ip="127.0.0.1",
        pod_uid=pod,
    )


def test_a_worker_steps_to_the_end_saves_and_leaves_with_zero(run: Any) -> None:
    coordinator = OneRankCoordinator()
    assert run(coordinator) == 0
    assert [r.step for r in coordinator.reports] == [0, 1, 2]
    assert coordinator.reports[2].loss_sum < coordinator.reports[0].loss_sum
    (saved,) = coordinator.saves
    assert (saved.step, saved.rank, saved.ranks, saved.end) == (3, 0, 1, "Completed")
    assert {kind for shard in saved.shards for kind in shard.kinds} == {"parameter", "exp_avg", "exp_avg_sq"}


def test_a_worker_keeps_no_plan_of_a_step_behind_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bool] = []

    class Feed(worker.PlanFeed):
        def forget_before(self, step: int) -> None:
            super().forget_before(step)
            left.append(any(self.peek(before) for before in range(step)))

    monkeypatch.setattr(worker, "PlanFeed", Feed)
    run(OneRankCoordinator())
    assert left == [False] * 3


def test_a_world_of_the_seed_or_a_checkpoint_frees_the_world_before_ahead_of_its_own_model(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, seen = LiveState(Cut(1, 0, 5, State()), weights={}), list[Any]()

    def engine(*_: Any) -> None:
        seen.extend([live.all_held(0), live.weights])
        raise Refused("NoRoom", "for two models")

    monkeypatch.setattr(worker, "LiveState", lambda: live)
    monkeypatch.setattr(worker, "Engine", engine)
    with pytest.raises(Refused, match="for two models"):
        run(OneRankCoordinator(), agent_goes=True)
    assert seen == [(), None]


def test_a_worker_says_in_its_heartbeats_which_step_it_has_begun(run: Any) -> None:
    coordinator = OneRankCoordinator(steps=2)
    beats, saved = coordinator.received["/v1/beats"], coordinator.answers["/v1/beats"]
    coordinator.answers["/v1/rendezvous"] = lambda *_: wire.Ack("one", 0, heartbeat_seconds=0.01)
    coordinator.answers["/v1/beats"] = lambda *call: replace(saved(*call), heartbeat_seconds=0.01)

    def late(step: int) -> Any:
        if step == 0:
            coordinator.wait_until(lambda: any(beat.begun == 0 for beat in beats))
        return arrays(step)

    assert run(coordinator, late) == 0
    assert [beat.begun for beat in beats] == sorted(beat.begun for beat in beats)


def test_the_shards_of_a_worker_name_the_world_that_has_saved_them(run: Any, tmp_path: Path) -> None:
    """So a deletion that comes late from an earlier world's coordinator never meets one."""
    coordinator = OneRankCoordinator(steps=1)
    run(coordinator)
    for shard in coordinator.saves[0].shards:
        with safe_open(tmp_path / shard.key, "pt") as found:
            assert found.metadata() == {"generation": "1"}


def test_a_suspended_worker_leaves_with_three(run: Any) -> None:
    assert run(OneRankCoordinator(steps=1, end="Suspended")) == 3


def test_what_layers_draw_follows_from_the_jobs_seed_and_the_step(run: Any) -> None:
    run(OneRankCoordinator())
    drawn = torch.initial_seed()  # in its last step, the third
    seed_draws(training.SEED, 0, 2)
    assert drawn == torch.initial_seed()


def test_timings_count_from_the_begin_of_the_step_and_lie_within_it(run: Any) -> None:
    coordinator = OneRankCoordinator(steps=1)
    run(coordinator)
    (report,) = coordinator.reports
    assert [(t.task, t.kind) for t in report.timings] == [(0, "F"), (0, "B")]
    assert report.data_wait_seconds <= report.timings[0].start <= report.timings[1].start < report.seconds


def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(run: Any, tmp_path: Path) -> None:
    baseline, first = OneRankCoordinator(steps=4), OneRankCoordinator(steps=2, end="Suspended")
    run(baseline)
    run(first)
    store_manifest(tmp_path, first.saves[0])
    second = OneRankCoordinator(steps=4, first_step=2, checkpoint="manifests/m.json")
    assert run(second) == 0
    joined = [r.loss_sum for r in first.reports + second.reports]
    assert joined == [r.loss_sum for r in baseline.reports]


def test_a_checkpoint_whose_shard_is_gone_is_refused_by_name(run: Any, tmp_path: Path) -> None:
    first = OneRankCoordinator(steps=1, end="Suspended")
    run(first)
    store_manifest(tmp_path, first.saves[0])
    key = first.saves[0].shards[0].key
    open_store(f"file://{tmp_path}").delete(key)
    with pytest.raises(Refused, match=key) as refused:
        run(OneRankCoordinator(steps=2, first_step=1, checkpoint="manifests/m.json"))
    assert refused.value.reason == "TornCheckpoint"


def store_manifest(folder: Path, saved: wire.ShardsSaved) -> None:
    manifest = training.manifest(saved.step, saved.shards)
    open_store(f"file://{folder}").put("manifests/m.json", msgspec.json.encode(manifest))


def test_a_worker_of_an_older_generation_is_stale(run: Any) -> None:
    with pytest.raises(Stale, match="started for generation 1, the world's is 2"):
        run(OneRankCoordinator(generation=2), agent_goes=True)


def test_a_worker_whose_save_before_a_change_fails_ends_with_the_reason(run: Any, tmp_path: Path) -> None:
    """The change waits for the manifest, while the worker's heartbeats go on."""
    (tmp_path / "shards").write_text("a file where shards belong")
    coordinator = OneRankCoordinator(steps=1, end="Moved")
    with pytest.raises(Retryable, match="shards"):
        run(coordinator, agent_goes=True)
    assert not coordinator.saves


def test_a_worker_that_waits_for_a_directive_leaves_a_world_that_is_over(run: Any) -> None:
    """Its peers have reached the end of a planned change before it has asked. The order to leave cuts its calls, so it hears of
    that end no more."""
    coordinator, ordered, asked = OneRankCoordinator(steps=2), threading.Event(), list[None]()
    directive_of_step = coordinator.answers["/v1/steps"]

    def directive(query: dict[str, str], body: Any) -> Any:
        if int(query["step"]) == 2 and not agent.is_alive():
            agent.start()
        if int(query["step"]) < 2 or len(asked) > 3:  # else the test would have no end where that wait has none
            return directive_of_step(query, body)
        asked.extend([None] * ordered.is_set())
        raise Retryable("this call is cut")

    def leave() -> None:
        coordinator.agent.send(msgspec.json.encode(Leave(1)))
        while b'"Left"' not in (message := coordinator.agent.recv(4096)):
            if b'"Leaving"' in message:
                ordered.set()
        coordinator.agent.shutdown(socket.SHUT_WR)

    agent = threading.Thread(target=leave)
    coordinator.answers["/v1/steps"] = directive
    with pytest.raises(Stale, match="generation 1 is over"):
        run(coordinator)
    assert [r.step for r in coordinator.reports] == [0, 1] and len(asked) <= 3


class Noted(worker.Engine):
    """Notes its engines. The step of one that `breaks` loses a peer in its update."""

    made: ClassVar[list[weakref.ref[Noted]]] = []
    breaks: ClassVar[bool] = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.made.append(weakref.ref(self))

    def step(self, work: StepInput, began: float) -> StepResult:
        found = super().step(work, began)
        if self.breaks:
            raise Retryable("no data") from RuntimeError("Connection reset by peer")
        return found


@pytest.mark.parametrize(("breaks", "words"), [(False, "the agent is gone"), (True, "no data")])
def test_a_worker_that_waits_for_its_next_world_holds_no_model_of_the_world_before(
    run: Any, monkeypatch: pytest.MonkeyPatch, breaks: bool, words: str
) -> None:
    """After a planned change, and where the error that broke the world is still to be named."""
    left: list[bool] = []

    def free_world() -> None:
        release.free_world()
        left.extend(made() is not None for made in Noted.made)

    monkeypatch.setattr(Noted, "made", [])
    monkeypatch.setattr(Noted, "breaks", breaks)
    monkeypatch.setattr(worker, "Engine", Noted)
    monkeypatch.setattr(worlds, "free_world", free_world)
    with pytest.raises(Retryable, match=words):
        run(OneRankCoordinator(steps=1, end="Moved"), agent_goes=True)
    assert left == [False]


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), Refused("SourceChanged", "it is another")])
def test_a_worker_that_fails_in_mid_step_aborts_its_world_before_anything_waits_for_what_is_under_way(
    run: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A collective that waits for this rank would keep its device, and its clean-up, waiting for ever. The fault is its own."""
    said, running = list[str](), list[bool]()

    class Failing:
        def __init__(self, *_: Any) -> None:
            self.outbox = SimpleNamespace(close=lambda: said.append("outbox"))

        def run(self) -> int:
            running.append(True)
            raise error

        def close(self) -> None:
            running.clear()
            said.append("close")

    def sockets() -> dict[str, int]:
        said.extend(["abort"] * len(running))  # before, those of no world are listed
        return {}

    monkeypatch.setattr(worker, "Worker", Failing)
    monkeypatch.setattr(worlds, "leave_world", lambda: said.append("leave"))
    monkeypatch.setattr(worker.AssignmentChannel, "leave", lambda *_: said.append("a peer's"))
    with pytest.raises((Retryable, Refused), match=str(error)):
        run(OneRankCoordinator(), agent_goes=True, sockets=sockets)
    assert said == ["abort", "close", *["leave"] * isinstance(error, RuntimeError), "outbox"]


def test_what_a_world_has_left_unsent_is_given_up_as_the_next_one_begins(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a new coordinator may need its messages; behind that its thread would send for ever."""
    said, coordinator = list[str](), OneRankCoordinator()

    class Moving:
        def __init__(self, env: Any, assignment: Assignment, *_: Any) -> None:
            self._number = assignment.generation
            self.outbox = SimpleNamespace(close=lambda: said.append(f"outbox {self._number}"))
            said.append(f"world {self._number}")

        def run(self) -> int | None:
            if self._number == 2:
                return 0
            coordinator.agent.send(msgspec.json.encode(Assignment(2, 0)))
            return None

        def close(self) -> None: ...

    monkeypatch.setattr(worker, "Worker", Moving)
    assert run(coordinator) == 0
    assert said == ["world 1", "outbox 1", "world 2", "outbox 2"]
