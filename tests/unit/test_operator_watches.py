"""What the watches add to the queue, and what happens when one ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from coxswain.names import LABEL_JOB
from coxswain_operator import kopf_watches
from coxswain_operator.cluster import WatchEvent
from coxswain_operator.kopf_watches import run_watches
from coxswain_operator.kubernetes.informer import SILENCE_SECONDS
from coxswain_operator.views import Manifest
from coxswain_operator.workqueue import Key

pytestmark = pytest.mark.looptime(start=1000)

ACCESS = SimpleNamespace(
    url="https://api", ca="ca.crt", verify=True, certificate=None, key=None, authorization=lambda: "Bearer secret"
)


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

    async def list(self, kind: str, namespace: str) -> list[Manifest]:
        assert kind == "TrainingJob"
        self.asked.append(f"jobs in {namespace}")
        return [manifest(kind, name) for name in ("first", "second")]

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
    monkeypatch: pytest.MonkeyPatch, cluster: Watched, kopf: Callable[..., Awaitable[None]] = for_ever, *scopes: str
) -> list[Key]:
    """The keys that the watches add within a minute. `kopf`: one of its tasks; another goes on."""

    async def spawn_tasks(**options: Any) -> list[asyncio.Task[None]]:
        SPAWNED.append(options)
        return [asyncio.create_task(work()) for work in (kopf, lingers)]  # type: ignore[arg-type]

    monkeypatch.setattr(kopf_watches.kopf, "spawn_tasks", spawn_tasks)
    SPAWNED.clear()
    added: list[Key] = []
    try:
        async with asyncio.timeout(60):
            await run_watches(cluster, ACCESS, added.append, scopes)  # type: ignore[arg-type]
    except TimeoutError:
        pass
    finally:
        assert len(asyncio.all_tasks()) == 1, "a task is left"
    return added


async def test_a_change_of_a_pod_adds_the_job_of_its_label_and_of_no_other_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, foreign = manifest("Pod", "p", **{LABEL_JOB: "demo"}), manifest("Pod", "q", app="x")
    cluster = Watched(mine, foreign, manifest("Pod", "r"))
    assert await watched(monkeypatch, cluster) == [("lab", "demo")]
    assert cluster.asked == ["kinds", "jobs in ", "pods in "]


async def test_jobs_of_all_namespaces_are_read_before_any_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Watched()
    await watched(monkeypatch, cluster, for_ever, "a", "b")
    assert cluster.asked == ["kinds", "jobs in a", "jobs in b", "pods in a", "pods in b"]


@pytest.mark.parametrize("scopes", [(), ("a", "b")])
async def test_kopf_watches_all_namespaces_or_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch, scopes: tuple[str, ...]
) -> None:
    await watched(monkeypatch, Watched(), for_ever, *scopes)
    (options,) = SPAWNED
    assert (options["clusterwide"], options["namespaces"], options["standalone"]) == (not scopes, scopes, True)
    assert isinstance(options["registry"], kopf_watches.kopf.OperatorRegistry)
    assert options["settings"].watching.inactivity_timeout == SILENCE_SECONDS


async def test_a_watch_of_pods_that_ends_ends_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="the watch of pods or of quarantines has ended; restart the operator"):
        await watched(monkeypatch, Watched(goes_on=False))


@pytest.mark.parametrize(
    ("lasts", "pauses"), [(0.0, [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]), (14.0, [1.0, 2.0]), (15.0, [0.5, 0.5, 0.5])]
)
async def test_kopf_is_started_again_after_a_growing_pause_until_sigterm_ends_it(
    monkeypatch: pytest.MonkeyPatch, lasts: float, pauses: list[float]
) -> None:
    drawn: list[float] = []

    def uniform(least: float, most: float) -> float:
        assert least == 0.1
        drawn.append(most)
        return most

    monkeypatch.setattr(kopf_watches.random, "uniform", uniform)

    async def kopf(*_: Any) -> None:
        await asyncio.sleep(lasts)
        if len(drawn) < len(pauses):
            raise ConnectionError("half a line")

    await watched(monkeypatch, Watched(), kopf)
    assert drawn == pauses


async def test_an_error_that_restarting_kopf_cannot_mend_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise ConnectionError("half a line")

    def uniform(least: float, most: float) -> float:
        raise MemoryError

    monkeypatch.setattr(kopf_watches.random, "uniform", uniform)
    with pytest.raises(MemoryError):
        await watched(monkeypatch, Watched(), fail)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("TrainingJob", [("lab", "changed")]),
        ("DataSource", [("lab", "first"), ("lab", "second")]),
        ("DataMix", [("lab", "first"), ("lab", "second")]),
    ],
)
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize(("type_", "noted"), [("DELETED", "DELETED"), ("MODIFIED", "MODIFIED"), (None, "MODIFIED")])
async def test_a_change_is_noted_before_it_adds_its_jobs_and_an_own_write_adds_none(
    kind: str, keys: list[Key], ours: bool, type_: str | None, noted: str
) -> None:
    cluster, added = Watched(), list[Key]()
    cluster.ours = ours
    registry = kopf_watches._registry(cluster, ACCESS, added.append)  # type: ignore[arg-type]
    handlers: dict[str, Any] = {handler.id: handler.fn for handler in registry._watching._handlers}
    item = manifest(kind, "changed")
    await handlers[f"{kind.lower()}s".replace("xs", "xes")](event={"type": type_, "object": item})
    assert [(change.kind, change.object) for change in cluster.noted] == [(noted, item)]
    assert added == ([] if ours else keys)


def test_kopf_goes_on_asking_and_leaves_scanning_peering_and_events_alone() -> None:
    settings = kopf_watches._settings(55.0)
    assert list(islice(settings.networking.error_backoffs, 8)) == [0.5, 1, 2, 4, 8, 15, 15, 15]
    assert (settings.posting.enabled, settings.peering.standalone, settings.scanning.disabled) == (False, True, True)
    assert (settings.watching.inactivity_timeout, settings.watching.chunk_size) == (55.0, 500)


@pytest.mark.parametrize(("header", "scheme", "token"), [("Bearer secret", "Bearer", "secret"), ("", None, None)])
async def test_kopf_connects_with_the_operators_own_rights(header: str, scheme: str | None, token: str | None) -> None:
    access = SimpleNamespace(**{**vars(ACCESS), "authorization": lambda: header, "certificate": "c", "key": "k"})
    registry = kopf_watches._registry(Watched(), access, lambda key: None)  # type: ignore[arg-type]
    (log_in,) = registry._activities._handlers
    info: Any = await log_in.fn()
    assert (info.server, info.ca_path, info.insecure) == ("https://api", "ca.crt", False)
    assert (info.scheme, info.token, info.certificate_path, info.private_key_path) == (scheme, token, "c", "k")
