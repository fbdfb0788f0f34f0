"""One container: its process, probes, termination message, and, for a sidecar, its restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coxswain.termination import TERMINATION_BYTES
from coxswain_operator.local.memory import MemoryKills
from coxswain_operator.local.probes import number
from coxswain_operator.local.processes import Command, Process, spawn

log = logging.getLogger(__name__)

Probe = Callable[[dict[str, Any]], Awaitable[bool]]

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.25, 10.0  # seconds; shorter than a kubelet's
_LEFT_BACKOFF = 5.0  # a sidecar exits with 0 when its job has ended: the pod ends soon too
_STARTUP_PERIOD = 0.1  # seconds between probes until the first success
_STEADY_AFTER = 60.0  # a sidecar that ran this long starts over with the first back-off
_CANNOT_START = 128


@dataclass(frozen=True, slots=True)
class Frame:
    """The services that a pod offers its container."""

    command: Callable[[dict[str, Any]], Command]  # of a container's spec; may raise Refused or NotMountable
    probe: Probe  # of an httpGet
    changed: Callable[[], None]  # called when the status has changed
    grace: float  # seconds between SIGTERM and SIGKILL of a container that hangs, unless its probe says others
    stamp: Callable[[], str]  # the time by the cluster's clock
    memory: MemoryKills


class Container:
    """Runs one container of a pod; `status()` is its containerStatus."""

    def __init__(self, spec: dict[str, Any], frame: Frame, termination_log: Path) -> None:
        self.name: str = spec["name"]
        self._spec, self._frame, self._termination_log = spec, frame, termination_log
        self._process: Process | None = None
        self._state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
        self._last: dict[str, Any] = {}
        self._restarts, self._ready, self._ending = 0, False, False
        self.started = asyncio.Event()  # running, and past its start-up probe

    def status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "image": self._spec.get("image", ""),
            "ready": self._ready,
            "started": self.started.is_set(),
            "restartCount": self._restarts,
            "state": self._state,
            "lastState": self._last,
        }

    @property
    def ready(self) -> bool:
        return self._ready

    async def run(self) -> int:
        """Runs once; returns the exit code as a kubelet shows it: 128 + n for signal n."""
        if self._ending:
            return self._ended(137, "")
        begun = self._frame.stamp()
        self._termination_log.unlink(missing_ok=True)
        try:
            self._process = spawn(self._frame.command(self._spec))
        except OSError as error:
            what = error.filename or self.name
            return self._ended(_CANNOT_START, begun, f"cannot start {what!r}: {error.strerror}", "StartError")
        self._show({"running": {"startedAt": begun}})
        probers = [
            asyncio.create_task(self._watch_readiness()),
            asyncio.create_task(self._watch_liveness(self._process)),
        ]
        try:
            code = await self._process.wait()
        finally:
            for prober in probers:
                prober.cancel()
        if (fault := self._frame.memory.fault(self.name, code)) is not None:
            return self._ended(128 - code, begun, msgspec.json.encode(fault).decode(), fault.reason)
        return self._ended(128 - code if code < 0 else code, begun, read_termination_message(self._termination_log))

    async def run_for_ever(self) -> None:
        """Runs a sidecar: restarts it after a back-off, whatever its exit code."""
        backoff = _FIRST_BACKOFF
        loop = asyncio.get_running_loop()
        while not self._ending:
            begun = loop.time()
            code = await self.run()
            if self._ending:
                return
            backoff = _FIRST_BACKOFF if loop.time() - begun > _STEADY_AFTER else backoff
            self._last = self._state
            if code == 0:
                await asyncio.sleep(_LEFT_BACKOFF)
            else:
                self._show({"waiting": {"reason": "CrashLoopBackOff", "message": f"restarts in {backoff:g} s"}})
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF)
            log.warning("sidecar %s exited with %d and restarts", self.name, code)
            self._restarts += 1

    async def stop(self, grace: float) -> None:
        self._ending = True
        if self._process is not None:
            await self._process.stop(grace)

    async def _watch_readiness(self) -> None:
        """Runs the start-up probe, then the readiness probe while the process runs.

        Without probes a running container is ready.
        """
        startup, readiness = self._spec.get("startupProbe"), self._spec.get("readinessProbe")
        if startup:
            await self._until_success(startup)
        self.started.set()
        if readiness:
            await self._until_success(readiness)
        self._set_ready(True)
        failures = 0
        while readiness:
            failures = await self._failures(readiness, failures)
            self._set_ready(failures < number(readiness, "failureThreshold") if failures else True)

    async def _watch_liveness(self, process: Process) -> None:
        """Ends a container that hangs, by its liveness probe. Probes that are no httpGet are ignored."""
        liveness = self._spec.get("livenessProbe") or {}
        if "httpGet" not in liveness:
            return
        await self.started.wait()
        await asyncio.sleep(number(liveness, "initialDelaySeconds"))
        failures = 0
        while failures < number(liveness, "failureThreshold"):
            failures = await self._failures(liveness, failures)
        log.warning("container %s is ended: it has not answered its liveness probe %d times", self.name, failures)
        await process.stop(liveness.get("terminationGracePeriodSeconds", self._frame.grace))

    async def _failures(self, probe: dict[str, Any], before: int) -> int:
        """How many probes have failed in a row, with the next one. `before`: without it."""
        await asyncio.sleep(number(probe, "periodSeconds"))
        return 0 if await self._frame.probe(probe) else before + 1

    async def _until_success(self, probe: dict[str, Any]) -> None:
        """Probes more often than a kubelet, so that a local run does not wait for whole seconds."""
        await asyncio.sleep(number(probe, "initialDelaySeconds"))
        pause = min(_STARTUP_PERIOD, number(probe, "periodSeconds"))
        while not await self._frame.probe(probe):  # noqa: ASYNC110  another process has no Event to wait for
            await asyncio.sleep(pause)

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._frame.changed()

    def _show(self, state: dict[str, Any]) -> None:
        self._state, self._ready = state, False
        self._frame.changed()

    def _ended(self, code: int, begun: str, message: str = "", reason: str = "") -> int:
        ending: dict[str, Any] = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
        if code > 128:
            ending["signal"] = code - 128
        self.started.clear()
        ending |= {"message": message, "startedAt": begun, "finishedAt": self._frame.stamp()}
        self._show({"terminated": ending})
        return code


def read_termination_message(path: Path) -> str:
    """The last bytes of a termination log, as many as a kubelet shows; empty without one."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TERMINATION_BYTES))
        return file.read(TERMINATION_BYTES).decode(errors="replace")
    return ""
