"""What is measured: one function a case. Each returns plain figures; seconds count from the first request."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from bench.scale.audit import Audit
from bench.scale.control_plane import Manifest, Plane
from bench.scale.objects import Scene, scene
from bench.scale.processes import Meter, require_alive
from bench.scale.table import Shape
from bench.scale.watching import Pods
from e2e.cluster.process import Child

Figures = dict[str, Any]
IN_FLIGHT = 64
LIMIT = 300.0  # seconds for one case
CONTROLLERS = "system:kube-controller-manager"
_PIPE = asyncio.subprocess.PIPE


class System(Protocol):
    """What is compared. The systems take turns, each in a process that runs as long as its turn."""

    name: str  # in the table
    users: tuple[str, ...]  # its names in the audit log
    others: int  # its pods of a job beside the trainers
    kinds: tuple[str, ...]  # `apiVersion/plural` of what `submit` makes and `remove` has to delete
    cannot: Mapping[str, str]  # "restart", "killed": why the case does not apply, for the table

    @property
    def processes(self) -> list[Child]:
        """Those that run now."""
        ...

    def prepare(self) -> None:
        """What it needs in the cluster, once."""
        ...

    def start(self) -> None:
        """Returns once it acts."""
        ...

    def kill(self) -> None:
        """SIGKILL of what runs."""
        ...

    async def submit(self, at: Scene, names: list[str], trainers: int) -> None: ...

    def failing(self, pods: Pods) -> str:
        """Name of the pod whose failure restarts the whole job."""
        ...


async def bare(plane: Plane, pods: list[Manifest], restart: bool) -> Figures:
    """The limit: the same pods by a loop that does nothing else; then, if so asked, others in their place."""
    async with scene(plane) as at, Pods(at.http, at.namespace) as seen:
        figures = await _sent(plane, at, seen, [_line(at, pod) for pod in pods], len(pods))
        if restart:
            successors = [{**p, "metadata": {**p["metadata"], "name": f"{p['metadata']['name']}-1"}} for p in pods]
            pairs = zip(seen.alive.values(), successors, strict=True)
            lines = [line for name, pod in pairs for line in (name.encode(), _line(at, pod))]
            figures["restart"] = await _sent(plane, at, seen, lines, 2 * len(pods))
        await at.remove(seen)
    return figures


def _line(at: Scene, pod: Manifest) -> bytes:
    return msgspec.json.encode({**pod, "metadata": {**pod["metadata"], "namespace": at.namespace}})


async def _sent(plane: Plane, at: Scene, seen: Pods, lines: list[bytes], expected: int) -> Figures:
    """Until so many pods have been seen, all that were POSTed now are Running, and all others are gone."""
    config, old = str(plane.control.kubeconfig_of("loop")), set(seen.alive)
    command = [sys.executable, "-m", "bench.scale.loop", config, at.namespace, str(IN_FLIGHT)]
    loop = await asyncio.create_subprocess_exec(*command, stdin=_PIPE, stdout=_PIPE)
    assert loop.stdin is not None and loop.stdout is not None
    loop.stdin.write(b"\n".join(lines))
    loop.stdin.write_eof()
    meter, begin = Meter((), plane.cpu), float(await loop.stdout.readline())
    gone = await seen.until(lambda: not old & seen.alive.keys(), LIMIT)
    figures = {"gone": gone - begin, **await _all_running(seen, expected - len(old), begin, old), **meter.read()}
    await loop.wait()
    return figures


async def creation(plane: Plane, system: System, shape: Shape) -> Figures:
    """All pods of all jobs; then, of one job that can, once more after a failure that restarts it whole."""
    names = [f"j{n}" for n in range(shape.jobs)]
    async with turn(plane, system) as (at, seen):
        audit, meter, begin = Audit(plane.audit_log), Meter(system.processes, plane.cpu), time.monotonic()
        await system.submit(at, names, shape.trainers)
        figures = await _all_running(seen, shape.jobs * (shape.trainers + system.others), begin)
        figures |= {**meter.read(), "requests": await _requests(audit, system)}
        if shape.restarts:
            figures["restart"] = system.cannot.get("restart") or await _restart(plane, at, system, seen)
    return figures


async def killed(plane: Plane, system: System, trainers: int) -> Figures:
    """SIGKILL when a third of the pods exist, and a new process at once: seconds until there are exactly the right pods."""
    expected = trainers + system.others
    async with turn(plane, system) as (at, seen):
        await system.submit(at, ["j0"], trainers)
        await seen.until(lambda: len(seen.seen) >= expected // 3, LIMIT)
        system.kill()
        left, begin = len(seen.seen), time.monotonic()
        system.start()
        acting = time.monotonic()
        end = await seen.until(lambda: len(seen.seen) >= expected, LIMIT)
        await seen.until(lambda: len(seen.running) >= expected, LIMIT)
        if len(seen.seen) != expected or len(set(seen.alive.values())) != expected:
            raise RuntimeError(f"{len(seen.seen)} pods have been created, not {expected}")
    return {"left": left, "acting": acting - begin, "exact": max(0.0, end - acting), "from_start": end - begin}


@asynccontextmanager
async def turn(plane: Plane, system: System) -> AsyncIterator[tuple[Scene, Pods]]:
    """The system acts, in a namespace that is empty again behind it. Fails at once when the system does."""
    system.start()
    try:
        async with scene(plane) as at, Pods(at.http, at.namespace, lambda: require_alive(system.processes)) as seen:
            yield at, seen
            await at.remove(seen, *system.kinds)
    finally:
        system.kill()


async def _restart(plane: Plane, at: Scene, system: System, seen: Pods) -> Figures:
    """Until as many new pods are Running as there were, and the old ones are gone."""
    old = set(seen.alive)
    audit, meter, begin = Audit(plane.audit_log), Meter(system.processes, plane.cpu), time.monotonic()
    await at.fail(system.failing(seen))
    gone = await seen.until(lambda: not old & seen.alive.keys(), LIMIT)
    figures = {"gone": gone - begin, **await _all_running(seen, len(old), begin, old)}
    return {**figures, **meter.read(), "requests": await _requests(audit, system)}


async def _all_running(seen: Pods, expected: int, begin: float, old: Set[str] = frozenset()) -> Figures:
    """Of those that are not `old`. Raises RuntimeError if there have ever been more."""
    end = await seen.until(lambda: len(seen.running.keys() - old) >= expected, LIMIT)
    created = sorted(t for uid, (_, t) in seen.seen.items() if uid not in old)
    if len(created) != expected:
        raise RuntimeError(f"{len(created)} pods were created, not {expected}")
    return {"pods": expected, "first": created[0] - begin, "created": created[-1] - begin, "running": end - begin}


async def _requests(audit: Audit, system: System) -> dict[str, dict[str, int]]:
    await audit.settle()
    counts = audit.counts()
    return {user: dict(counts.get(user, Counter()).most_common()) for user in (*system.users, CONTROLLERS)}
