"""How a decision is carried out: in which order, with how many requests at once, and what a refusal stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coxswain.errors import Refused, Retryable
from coxswain.names import LABEL_JOB_UID
from coxswain.wire import Fault
from coxswain_operator.cluster import AlreadyExists, Conflict, Denied
from coxswain_operator.executor import ActionExecutor
from coxswain_operator.reconcile.actions import (
    Action,
    CheckpointAndStop,
    Create,
    CreatePod,
    Decision,
    Delete,
    EndQuarantine,
    LeaveQueue,
    Quarantine,
    RequeueAt,
    WriteStatus,
)
from coxswain_operator.refusals import fault_of
from coxswain_operator.views import Event, Manifest
from tests.unit.fake_cluster import training_job
from tests.unit.reconcile_scenes import Scene

pytestmark = pytest.mark.looptime(start=1000)

JOB: Manifest = training_job()
JOB["metadata"]["uid"] = "u"
OTHER: Manifest = {"metadata": {"name": "other", "namespace": "lab", "uid": "o"}}
CREATE = next(a for a in Scene().decide().of(CreatePod) if isinstance(a, CreatePod))
WRITE, OLD = WriteStatus("TrainingJob", "demo", {}, "7"), Delete("ConfigMap", "demo-config", "c")
CONFIG = Create({"kind": "ConfigMap", "metadata": {"name": "demo-config", "namespace": "lab"}})
STOP, LEAVE, EVENT = CheckpointAndStop("suspended", 7), LeaveQueue("old", "p", "uid-p"), Event("Suspended", "saved")


def pod(number: int) -> CreatePod:
    return CreatePod(CREATE.plan, "trainer-1", number)


def gone(number: int) -> Delete:
    return Delete("Pod", f"demo-trainer-1-{number}", f"uid-{number}", force=number == 1)


class Server:
    """Notes what it is asked, and for how many things at once. Each request takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.seconds, self.under_way, self.most = seconds, 0, 0
        self.refuses: Callable[[str], Exception | None] = lambda name: None
        self.stops = True
        self.quarantines: list[Manifest] = []

    async def _ask(self, *what: object) -> None:
        self.asked.append(what)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self.seconds)
        self.under_way -= 1

    async def patch_status(self, *what: object) -> None:
        await self._ask("patch", *what)
        if error := self.refuses(str(what[0])):
            raise error

    async def delete(self, *what: object) -> None:
        await self._ask("delete", *what)
        if what[0] == "NodeQuarantine":
            self.quarantines = [q for q in self.quarantines if q["metadata"]["uid"] != what[3]]

    async def create(self, manifest: Manifest) -> None:
        name: str = manifest["metadata"]["name"]
        await self._ask("create", name)
        if error := self.refuses(name):
            raise error
        if manifest["kind"] == "NodeQuarantine":
            self.quarantines.append(manifest)

    async def list(self, kind: str, namespace: str) -> list[Manifest]:
        assert (kind, namespace) == ("NodeQuarantine", "")
        return [*self.quarantines]

    async def leave_queue(self, *what: object) -> None:
        await self._ask("leave", *what)

    async def publish(self, job: Manifest, event: Event) -> None:
        await self._ask("publish", event)

    async def checkpoint_and_stop(self, job: Manifest, reason: str, at_step: int) -> bool:
        await self._ask("stop", reason, at_step)
        return self.stops


def executing(server: Server, at_once: int = 4) -> ActionExecutor:
    return ActionExecutor(server, server, at_once)  # type: ignore[arg-type]


async def execute(executor: ActionExecutor, *actions: Action, job: Manifest = JOB) -> bool:
    return await executor.execute(job, Decision(actions))


async def test_a_status_comes_before_events_these_before_objects_then_pods_and_all_else_after() -> None:
    server = Server()
    given = (EVENT, LEAVE, STOP, pod(1), gone(0), gone(1), CONFIG, OLD, RequeueAt(7.0), WRITE)
    assert await execute(executing(server), *given)
    assert server.asked == [
        ("patch", "TrainingJob", "lab", "demo", {}, "7"),
        ("publish", EVENT),
        ("delete", "ConfigMap", "lab", "demo-config", "c", False),
        ("create", "demo-config"),
        ("delete", "Pod", "lab", "demo-trainer-1-0", "uid-0", False),
        ("create", "demo-trainer-1-1"),
        ("delete", "Pod", "lab", "demo-trainer-1-1", "uid-1", True),
        ("leave", "lab", "old", "p", "uid-p"),
        ("stop", "suspended", 7),
    ]


async def test_after_a_status_write_that_fails_nothing_is_done() -> None:
    server = Server()
    server.refuses = lambda name: Conflict(name)
    with pytest.raises(Conflict):
        await execute(executing(server), WRITE, CONFIG, pod(1), EVENT)
    assert [what[0] for what in server.asked] == ["patch"]


@pytest.mark.parametrize("error", [Denied("Forbidden", "no"), Refused("Invalid", "no")])
async def test_a_status_of_the_job_that_is_refused_is_an_event_and_fails_the_pass(error: Refused) -> None:
    """Nothing may be done that the status does not account for, and the status cannot say it."""
    server = Server()
    server.refuses = lambda name: error if name == "TrainingJob" else None
    with pytest.raises(type(error)):
        await execute(executing(server), WRITE, EVENT, CONFIG, pod(1))
    said = "the status of TrainingJob demo is refused for now: no; it is tried again; until then nothing is done for the job"
    assert server.asked[1:] == [("publish", Event("FailedUpdate", f"{error.reason}: {said}", warning=True))]


SOURCE = WriteStatus("DataSource", "code", {}, "3")


@pytest.mark.parametrize("error", [Conflict("DataSource"), Retryable("503")])
async def test_a_status_of_a_source_that_cannot_be_written_loses_no_event_and_stops_no_pod(error: Exception) -> None:
    """Events are published once: the next pass finds the job's status written, and reports nothing again."""
    server = Server()
    server.refuses = lambda name: error if name == "DataSource" else None
    with pytest.raises(type(error)):
        await execute(executing(server), WRITE, SOURCE, EVENT, CONFIG, pod(1), STOP)
    assert [what[:2] for what in server.asked] == [
        ("patch", "TrainingJob"), ("publish", EVENT), ("create", "demo-config"), ("create", "demo-trainer-1-1"),
        ("stop", "suspended"), ("patch", "DataSource"),
    ]  # fmt: skip


@pytest.mark.parametrize("error", [Denied("Forbidden", "no"), Refused("Invalid", "no")])
async def test_a_status_of_a_source_that_is_refused_fails_no_pass_and_ends_no_job(error: Refused) -> None:
    """A pass that fails again and again is repeated each minute only: losses of pods would wait for it."""
    server = Server()
    server.refuses = lambda name: error if name == "DataSource" else None
    executor = executing(server)
    assert not await execute(executor, WRITE, SOURCE, pod(1))
    assert [what[0] for what in server.asked] == ["patch", "create", "patch"]
    fault = executor.refusals(JOB).rejection
    assert fault is not None and fault.retryable
    assert fault.message.startswith("the status of DataSource code is refused for now: no")


@pytest.mark.parametrize(("limit", "made"), [(1, 1), (2, 2), (3, 3), (4, 3)])
async def test_jobs_that_ask_at_once_quarantine_no_more_nodes_than_the_limit_and_only_those_are_events(
    limit: int, made: int
) -> None:
    """A person's quarantine does not count."""
    server = Server(seconds=0.1)
    server.quarantines = [{"kind": "NodeQuarantine", "metadata": {"name": "fan", "labels": None}}]
    executor = executing(server)

    async def ask(node: str) -> None:
        head = {"name": node, "labels": {LABEL_JOB_UID: f"of-{node}"}}
        wanted = {"kind": "NodeQuarantine", "metadata": head}
        await execute(executor, Quarantine(wanted, Event("NodeQuarantined", node), limit), job=JOB)

    await asyncio.gather(*(ask(node) for node in ("a", "b", "c")))
    found = [what[1] for what in server.asked if what[0] == "publish" and isinstance(what[1], Event)]
    assert (
        [e.message for e in found] == [q["metadata"]["name"] for q in server.quarantines[1:]] == ["a", "b", "c"][:made]
    )


async def test_of_jobs_that_end_a_quarantine_at_once_one_deletes_it_and_says_so() -> None:
    """Each of 200 jobs sees that another node has the name."""
    server = Server(seconds=0.1)
    server.quarantines = [{"kind": "NodeQuarantine", "metadata": {"name": "gpu-17", "uid": "q"}}]
    executor, ended = executing(server), EndQuarantine("gpu-17", "q", Event("NodeReadmitted", "gpu-17"))
    assert all(await asyncio.gather(*(execute(executor, ended, job=job) for job in (JOB, OTHER, JOB))))
    assert [what[0] for what in server.asked] == ["delete", "publish"] and server.quarantines == []


@pytest.mark.parametrize("stops", [True, False])
async def test_a_coordinator_that_cannot_be_asked_to_stop_is_an_unexpected_result(stops: bool) -> None:
    server = Server()
    server.stops = stops
    assert await execute(executing(server), STOP, EVENT) is stops
    assert len(server.asked) == 2


@pytest.mark.parametrize(("action", "asked"), [(CONFIG, 2), (pod(1), 3)])
async def test_a_name_that_is_taken_is_an_unexpected_result_and_stops_only_pods_that_need_the_object(
    action: Action, asked: int
) -> None:
    server = Server()
    server.refuses = lambda name: AlreadyExists(name) if name in ("demo-config", "demo-trainer-1-1") else None
    executor = executing(server)
    assert not await execute(executor, action, pod(2), EVENT)
    assert len(server.asked) == asked
    assert executor.refusals(JOB).rejection is None
    assert len(executor.refusals(JOB).taken) == 1


async def test_of_several_pauses_that_the_server_asks_for_in_one_pass_the_longest_is_kept() -> None:
    pauses = {"demo-trainer-1-1": 30.0, "demo-trainer-1-2": 1.0}
    server = Server(seconds=1.0)
    server.refuses = lambda name: Retryable("429", after=pauses[name]) if name in pauses else None
    with pytest.raises(Retryable) as raised:
        await execute(executing(server), pod(0), pod(1), pod(2))  # two at once behind the first
    assert raised.value.after == 30.0


async def test_a_workload_that_is_there_already_holds_no_name_that_is_looked_at() -> None:
    """Its name is made of the job's uid: the next look at Workloads finds it."""
    server = Server()
    server.refuses = AlreadyExists
    executor = executing(server)
    workload = Create({"kind": "Workload", "metadata": {"name": "demo-u-0", "namespace": "lab"}})
    assert not await execute(executor, workload)
    assert executor.refusals(JOB).taken == [] and executor.refusals(JOB).rejection is None


async def test_where_the_server_fails_with_a_pod_all_else_is_done_and_then_the_error_raised() -> None:
    """A webhook that does not answer is a 500: a job that is scaled must be asked to stop all the same."""
    server = Server()
    server.refuses = lambda name: Retryable("failed calling webhook", after=30.0) if "trainer" in name else None
    executor = executing(server)
    with pytest.raises(Retryable, match="failed calling webhook") as raised:
        await execute(executor, pod(1), pod(2), LEAVE, STOP, EVENT)
    assert raised.value.after == 30.0  # that the server asks for
    assert [what[0] for what in server.asked] == ["publish", "create", "leave", "stop"]
    text = "Pod demo-trainer-1-1: the API server fails: failed calling webhook; it is tried again"
    assert executor.refusals(JOB).rejection == Fault("ServerUnavailable", text, retryable=True)
    server.refuses = lambda name: None
    assert await execute(executor, pod(1))
    assert executor.refusals(JOB).rejection is None


async def test_a_create_that_conflicts_with_a_quotas_status_is_an_unexpected_result_and_stops_no_other() -> None:
    server = Server()
    server.refuses = lambda name: Conflict("resourcequotas") if name.endswith("-1") else None
    executor = executing(server)
    assert not await execute(executor, pod(1), pod(2))
    assert len(server.asked) == 2 and executor.refusals(JOB).rejection is None


@pytest.mark.parametrize("error", [Retryable("503"), Refused("Invalid", "no"), AlreadyExists("n")])
async def test_a_node_that_cannot_be_quarantined_fails_no_pass(error: Exception) -> None:
    server = Server()
    server.refuses = lambda name: error
    wanted = {"kind": "NodeQuarantine", "metadata": {"name": "n", "labels": {LABEL_JOB_UID: "u"}}}
    assert await execute(executing(server), Quarantine(wanted, Event("NodeQuarantined", "n"), 1), STOP)
    assert [what[0] for what in server.asked] == ["create", "stop"]


NO_CLASS, QUOTA = Refused("Invalid", "no such runtime class"), Denied("Forbidden", "exceeded quota: gpus")


@pytest.mark.parametrize(
    ("error", "rejection"),
    [(NO_CLASS, Fault("Invalid", NO_CLASS.message)), (QUOTA, fault_of("Pod demo-trainer-1-1", QUOTA))],
)
async def test_a_refused_pod_stops_the_other_pods_and_is_kept_until_the_jobs_next_pass(
    error: Refused, rejection: Fault
) -> None:
    server = Server()
    server.refuses = lambda name: error
    executor = executing(server)
    assert not await execute(executor, pod(1), pod(2), EVENT)
    assert server.asked == [("publish", EVENT), ("create", "demo-trainer-1-1")]
    assert (executor.refusals(JOB).rejection, executor.refusals(OTHER).rejection) == (rejection, None)
    server.refuses = lambda name: None
    assert await execute(executor, CONFIG, job=OTHER)
    assert executor.refusals(JOB).rejection == rejection  # another job's success says nothing
    assert await execute(executor, pod(1))
    assert executor.refusals(JOB).rejection is None


async def test_a_restart_whose_pods_are_refused_deletes_all_and_asks_for_one_pod_a_pass() -> None:
    server = Server()
    executor = executing(server)
    server.refuses = lambda name: Refused("Forbidden", "no")
    for _ in range(2):
        server.asked.clear()
        assert not await execute(executor, *[gone(n) for n in range(10)], *[pod(n) for n in range(10)])
        verbs = [what[0] for what in server.asked]
        assert (len({what for what in server.asked if what[0] == "delete"}), verbs.count("create")) == (10, 1)


@pytest.mark.parametrize("creates", [True, False])
async def test_deletions_and_creations_overlap_for_half_a_second_and_go_on_with_as_many(creates: bool) -> None:
    """One pass alone would create thousands of pods beside those that it deletes."""
    server = Server(seconds=0.2)
    executor = executing(server)
    deletes = [gone(n) for n in range(2, 60)]
    made = [pod(n) for n in range(2, 60)] if creates else []
    began = asyncio.get_running_loop().time()
    assert await execute(executor, *deletes, *made)
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.6)
    assert [server.asked[0][0], server.asked[1][0]] == ["delete", "create" if creates else "delete"]
    assert len(server.asked) == 1 + 2 + 4
    server.most = 0
    server.refuses = lambda name: Refused("Forbidden", "no")
    await execute(executor, *[pod(n) for n in range(10)])
    assert server.most == (4 if creates else 1)
    server.most = 0
    await execute(executor, *[pod(n) for n in range(10)])
    assert server.most == 1  # a batch that went wrong begins again with one


@pytest.mark.parametrize(("gone_job", "most"), [("demo", 1), ("other", 4)])
async def test_a_job_that_is_gone_leaves_nothing_to_one_of_its_name(gone_job: str, most: int) -> None:
    server = Server(seconds=0.2)
    executor = executing(server)
    await execute(executor, *[gone(n) for n in range(2, 60)], *[pod(n) for n in range(2, 60)])
    executor.forget("lab", gone_job)
    server.most, server.refuses = 0, lambda name: QUOTA
    await execute(executor, *[pod(n) for n in range(10)])
    assert server.most == most
    executor.forget("lab", gone_job)
    assert (executor.refusals(JOB).rejection is None) is (gone_job == "demo")


async def test_creations_alone_start_slowly_each_time() -> None:
    server = Server(seconds=0.2)
    executor = executing(server)
    for _ in range(2):
        server.asked.clear()
        began = asyncio.get_running_loop().time()
        assert await execute(executor, *[pod(n) for n in range(15)])
        assert len(server.asked) == 15
        assert asyncio.get_running_loop().time() - began == pytest.approx(1.0)  # 1, 2, 4, 4, 4
