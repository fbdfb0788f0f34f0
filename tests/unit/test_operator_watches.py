"""What the watches add to the queue, and what happens when one ends."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import pytest

from coxswain.api.kinds import BY_NAME, KINDS
from coxswain.errors import Retryable
from coxswain.names import API_VERSION, LABEL_JOB
from coxswain_operator import kopf_watches
from coxswain_operator.cluster import Denied, WatchEvent
from coxswain_operator.kopf_watches import run_watches
from coxswain_operator.kubernetes import KubernetesCluster
from coxswain_operator.kubernetes.access import Access
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.informer import SILENCE_SECONDS
from coxswain_operator.views import Manifest
from coxswain_operator.workqueue import Key
from tests.unit.fake_cluster import data_mix

pytestmark = pytest.mark.looptime(start=1000)

ACCESS = Access("https://api", authorization=lambda: "Bearer secret")


def manifest(kind: str, name: str, namespace: str = "lab", **labels: str) -> Manifest:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": labels or None}}


class Watched:
    """A cluster with two jobs in `lab`. `pods` are the events of its watch, which goes on if `goes_on`."""

    def __init__(self, *pods: Manifest, goes_on: bool = True) -> None:
        self._pods, self._goes_on = pods, goes_on
        self.noted: list[WatchEvent] = []
        self.asked: list[str] = []
        self.ours = False  # a change is the operator's own write

    async def served(self, plurals: list[str]) -> None:
        self.asked.append("kinds")

    async def listed(self, kind: str, namespace: str) -> None:
        await self.list(kind, namespace)

    async def list(self, kind: str, namespace: str) -> list[Manifest]:
        """The first job reads mix `a` of source `s`, the second reads source `t` by a mix of its own; both have policies."""
        if kind == "DataMix":
            return [data_mix("a", "s"), data_mix("b", "t")]
        assert kind == "TrainingJob"
        self.asked.append(f"jobs in {namespace}")
        first = {"mixRef": {"name": "a"}, "parallelismRef": {"name": "p"}}
        second = {"mix": data_mix("", "t")["spec"], "parallelismRef": {"name": "q"}}
        return [{**manifest(kind, name), "spec": spec} for name, spec in (("first", first), ("second", second))]

    async def watch(self, kind: str, namespace: str) -> AsyncIterator[WatchEvent]:
        self.asked.append(f"pods in {namespace}")
        for pod in self._pods:
            yield WatchEvent("ADDED", pod)
        if self._goes_on:
            await asyncio.sleep(1e9)

    def note(self, change: WatchEvent) -> bool:
        self.noted.append(change)
        return not self.ours


async def for_ever(*_: Any) -> None:
    await asyncio.sleep(1e9)


async def lingers() -> None:
    """Goes on, and takes a second to end."""
    try:
        await for_ever()
    finally:
        await asyncio.sleep(1)


SPAWNED: list[dict[str, Any]] = []


async def watched(
    monkeypatch: pytest.MonkeyPatch,
    cluster: Any,
    kopf: Callable[..., Awaitable[None]] = for_ever,
    *scopes: str,
    access: Access = ACCESS,
    **options: Any,
) -> list[Key]:
    """The keys that the watches add within five minutes. `kopf`: one of its tasks; another goes on."""

    async def spawn_tasks(**options: Any) -> list[asyncio.Task[None]]:
        """Takes the signals, as kopf's does."""
        SPAWNED.append(options)
        signalled = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signalled.set)
        works = (kopf(options), lingers(), signalled.wait())
        return [asyncio.create_task(work) for work in works]  # type: ignore[arg-type]

    monkeypatch.setattr(kopf_watches.kopf, "spawn_tasks", spawn_tasks)
    SPAWNED.clear()
    added, before = list[Key](), asyncio.all_tasks()
    try:
        async with asyncio.timeout(300):
            await run_watches(cluster, access, added.append, scopes, **options)
    except TimeoutError:
        pass
    finally:
        left = [t for t in asyncio.all_tasks() - before if not t.get_name().startswith("informer")]
        assert left == [], "a task is left"
    return added


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `watched` gives kopf to call: `log in`, and for changes by the plural of the kind."""
    given: dict[str, Any] = {}

    def event(group: str, version: str, plural: str, **_: Any) -> Callable[[Any], Any]:
        return lambda handler: given.setdefault(plural, handler)

    monkeypatch.setattr(kopf_watches.kopf.on, "event", event)
    monkeypatch.setattr(kopf_watches.kopf.on, "login", lambda **_: lambda handler: given.setdefault("log in", handler))
    return given


async def test_a_change_of_a_pod_adds_the_job_of_its_label_and_of_no_other_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, foreign = manifest("Pod", "p", **{LABEL_JOB: "demo"}), manifest("Pod", "q", app="x")
    cluster = Watched(mine, foreign, manifest("Pod", "r"))
    assert await watched(monkeypatch, cluster) == [("lab", "demo")]
    assert cluster.asked == ["kinds", "jobs in ", "jobs in ", "pods in "]  # before each watch


async def test_jobs_of_a_namespace_are_read_before_its_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Watched()
    await watched(monkeypatch, cluster, for_ever, "a", "b")
    for namespace in ("a", "b"):
        jobs, pods = f"jobs in {namespace}", f"pods in {namespace}"
        assert cluster.asked.index("kinds") < cluster.asked.index(jobs) < cluster.asked.index(pods)


@pytest.mark.parametrize("scopes", [(), ("a", "b")])
async def test_kopf_watches_all_namespaces_or_each_of_those_that_are_named_by_itself(
    monkeypatch: pytest.MonkeyPatch, scopes: tuple[str, ...]
) -> None:
    await watched(monkeypatch, Watched(), for_ever, *scopes)
    each = [(False, (n,)) for n in scopes]
    assert [(o["clusterwide"], o["namespaces"]) for o in SPAWNED] == (each or [(True, ())])
    assert len(SPAWNED) == max(1, len(scopes))
    for options in SPAWNED:
        assert options["standalone"] and isinstance(options["registry"], kopf_watches.kopf.OperatorRegistry)
        assert options["settings"].watching.inactivity_timeout == SILENCE_SECONDS


async def test_a_watch_of_pods_that_ends_ends_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="the watch of pods or of quarantines has ended; restart the operator"):
        await watched(monkeypatch, Watched(goes_on=False))


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    ("lasts", "pauses"), [(0.0, [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]), (14.0, [1.0, 2.0]), (15.0, [0.5, 0.5, 0.5])]
)
async def test_kopf_is_started_again_after_a_growing_pause_until_sigterm_ends_it(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lasts: float,
    pauses: list[float],
    fails: bool,
) -> None:
    drawn: list[float] = []

    def uniform(least: float, most: float) -> float:
        assert least == 0.1
        drawn.append(most)
        return most

    monkeypatch.setattr(kopf_watches.random, "uniform", uniform)

    async def kopf(*_: Any) -> None:
        await asyncio.sleep(lasts)
        if len(drawn) == len(pauses):
            signal.raise_signal(signal.SIGTERM)
            await for_ever()
        if fails:
            raise ConnectionError("half a line")

    began = asyncio.get_running_loop().time()
    await watched(monkeypatch, Watched(), kopf)
    assert drawn == pauses
    assert caplog.text.count("restarting its watches") == 1  # a warning: the same end is said once
    assert asyncio.get_running_loop().time() - began < 300, "the signal did not end it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_between_two_runs_of_kopf_ends_the_watches(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(kopf_watches.random, "uniform", lambda least, most: 30.0)

    async def kopf(*_: Any) -> None:
        asyncio.get_running_loop().call_later(10, signal.raise_signal, number)  # in the pause of 30 s
        raise ConnectionError("half a line")

    began = asyncio.get_running_loop().time()
    await watched(monkeypatch, Watched(), kopf)
    assert asyncio.get_running_loop().time() - began == pytest.approx(11, abs=1)  # a second for what lingers


async def test_a_run_of_kopf_that_ends_arms_no_kill_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf's own: no task of it is replaced. By default it kills the process ten minutes after it was cancelled."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(signal, "pthread_kill", lambda *what: killed.append(what))
    registry = kopf_watches.kopf.OperatorRegistry()

    async def log_in(**_: Any) -> None:
        await for_ever()

    kopf_watches.kopf.on.login(registry=registry)(log_in)
    spawn_tasks = kopf_watches.kopf.spawn_tasks
    monkeypatch.setattr(
        kopf_watches.kopf, "spawn_tasks", lambda **options: spawn_tasks(**{**options, "registry": registry})
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await run_watches(cast("KubernetesCluster", Watched()), ACCESS, lambda key: None, ("lab",))
    await asyncio.sleep(3600)
    assert killed == []


class DeniesOne:
    """An API server's connection with a job in team-a. It denies team-b, and is away for the first `away` seconds."""

    def __init__(self, away: float = 0.0) -> None:
        self._back = asyncio.get_running_loop().time() + away

    def _check(self, path: str) -> None:
        if asyncio.get_running_loop().time() < self._back:
            raise Retryable("connection refused")
        if "/team-b/" in path:
            raise Denied("Forbidden", f"cannot list {path}")

    async def call(self, method: str, path: str) -> Manifest:
        self._check(path)
        return {"resources": [{"name": kind.plural} for kind in KINDS]}

    async def send(self, method: str, path: str, **params: str) -> bytes:
        self._check(path)
        owner = {"apiVersion": API_VERSION, "kind": "TrainingJob", "name": "demo", "uid": "j", "controller": True}
        head = {"namespace": "team-a", "name": "p", "uid": "u", "resourceVersion": "3", "ownerReferences": [owner]}
        items = [{"metadata": head}] if "/team-a/" in path else []
        return json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode()

    async def lines(self, path: str, silence: float, **params: str) -> AsyncIterator[bytes]:
        await for_ever()
        yield b""


@pytest.mark.parametrize("away", [0.0, 40.0])
async def test_a_namespace_that_is_gone_takes_no_other_from_the_operator_and_a_server_that_is_away_is_awaited(
    monkeypatch: pytest.MonkeyPatch, away: float
) -> None:
    async with KubernetesCluster(cast("Connection", DeniesOne(away)), namespaced=True) as cluster:
        added = await watched(monkeypatch, cluster, for_ever, "team-a", "team-b")
    assert added == [("team-a", "demo")]
    assert [o["namespaces"] for o in SPAWNED] == [("team-a",)]  # kopf's turn in team-b comes with its rights


async def test_kopf_that_fails_in_one_namespace_runs_on_in_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails_in_b(options: dict[str, Any]) -> None:
        if options["namespaces"] == ("b",):
            raise PermissionError("the Role of b is gone")
        await for_ever()

    await watched(monkeypatch, Watched(), fails_in_b, "a", "b")
    assert [o["namespaces"] for o in SPAWNED].count(("a",)) == 1 < len(SPAWNED) - 1


async def test_a_quarantine_adds_every_job_of_the_namespaces_that_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Watched(manifest("NodeQuarantine", "n"))
    assert await watched(monkeypatch, cluster, for_ever, "lab") == []
    assert await watched(monkeypatch, cluster, for_ever, "lab", quarantine=True) == [
        ("lab", "first"),
        ("lab", "second"),
    ]


class WithoutQuarantines(DeniesOne):
    """Serves all kinds but NodeQuarantine."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def _check(self, path: str) -> None:
        if "nodequarantines" in path:
            raise NotFound("404 page not found")

    async def call(self, method: str, path: str) -> Manifest:
        found = await super().call(method, path)
        return {"resources": [r for r in found["resources"] if r["name"] != "nodequarantines"]}


async def test_jobs_are_followed_though_the_kind_of_quarantines_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with KubernetesCluster(cast("Connection", WithoutQuarantines())) as cluster:
        assert await cluster.list("NodeQuarantine", "") == []
        await watched(monkeypatch, cluster, for_ever, quarantine=True)
    assert len(SPAWNED) == 1


async def test_an_error_that_restarting_kopf_cannot_mend_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise ConnectionError("half a line")

    def uniform(least: float, most: float) -> float:
        raise MemoryError

    monkeypatch.setattr(kopf_watches.random, "uniform", uniform)
    with pytest.raises(MemoryError):
        await watched(monkeypatch, Watched(), fail)


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        ("TrainingJob", "changed", [("lab", "changed")]),
        ("DataSource", "s", [("lab", "first")]),
        ("DataSource", "t", [("lab", "second")]),
        ("DataMix", "a", [("lab", "first")]),
        ("DataMix", "b", []),
        ("ParallelismPolicy", "q", [("lab", "second")]),
        ("ParallelismPolicy", "neither's", []),
    ],
)
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize(("type_", "noted"), [("DELETED", "DELETED"), ("MODIFIED", "MODIFIED"), (None, "MODIFIED")])
async def test_a_change_is_noted_before_it_adds_the_jobs_that_read_the_object_and_an_own_write_adds_none(
    handlers: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    name: str,
    keys: list[Key],
    ours: bool,
    type_: str | None,
    noted: str,
) -> None:
    cluster = Watched()
    added = await watched(monkeypatch, cluster)
    cluster.asked.clear()
    cluster.ours = ours
    item = manifest(kind, name)
    await handlers[BY_NAME[kind].plural](event={"type": type_, "object": item})
    assert [(change.kind, change.object) for change in cluster.noted] == [(noted, item)]
    assert added == ([] if ours else keys)
    assert cluster.asked == ([] if ours or kind == "TrainingJob" else ["jobs in lab"])


async def test_kopf_goes_on_asking_and_leaves_scanning_peering_and_events_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await watched(monkeypatch, Watched(), silence=55.0)
    settings = SPAWNED[0]["settings"]
    assert list(islice(settings.networking.error_backoffs, 8)) == [0.5, 1, 2, 4, 8, 15, 15, 15]
    assert settings.process.ultimate_exiting_timeout is None
    assert (settings.posting.enabled, settings.peering.standalone, settings.scanning.disabled) == (False, True, True)
    assert (settings.watching.inactivity_timeout, settings.watching.chunk_size) == (55.0, 500)


@pytest.mark.parametrize(("header", "scheme", "token"), [("Bearer secret", "Bearer", "secret"), ("", None, None)])
async def test_kopf_connects_with_the_operators_own_rights(
    handlers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, header: str, scheme: str | None, token: str | None
) -> None:
    await watched(monkeypatch, Watched(), access=replace(ACCESS, authorization=lambda: header))
    info = await handlers["log in"]()
    assert (info.server, info.scheme, info.token) == ("https://api", scheme, token)


@pytest.mark.parametrize("proxy", [None, "http://proxy:3128"])
async def test_kopf_reaches_the_server_in_the_way_of_the_operators_own_requests(
    handlers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, proxy: str | None
) -> None:
    await watched(monkeypatch, Watched(), access=replace(ACCESS, proxy=proxy))
    info = await handlers["log in"]()
    assert info.proxy_url == proxy
