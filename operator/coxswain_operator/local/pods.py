"""Runs one pod as a kubelet does: volumes, native sidecars, containers, phase."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coxswain import names
from coxswain.errors import Refused
from coxswain_operator.local.addresses import Addresses
from coxswain_operator.local.container_env import ContainerEnv, host_of
from coxswain_operator.local.containers import Container, Frame
from coxswain_operator.local.inherited import seen_from_anywhere
from coxswain_operator.local.memory import MemoryKills
from coxswain_operator.local.probes import Prober, probe_url
from coxswain_operator.local.processes import Command, kill_those_with
from coxswain_operator.local.volumes import Lookup, NotMountable, mount, mount_paths, unmount
from coxswain_operator.views import Manifest

log = logging.getLogger(__name__)

_DEFAULT_GRACE = 30.0  # seconds, Kubernetes' own
_MOUNT_RETRY = 0.2
_NOT_READY = {"reason": "ContainersNotReady"}  # as a kubelet says


@dataclass(frozen=True, slots=True)
class Machine:
    """Shared by all pods of a cluster. `stamp`: the time by its clock. `lock`: its descriptor is inherited by every process.
    `folder`: where the command was typed, from which relative paths in its environment start."""

    workdir: Path
    addresses: Addresses
    prober: Prober
    lookup: Lookup
    stamp: Callable[[], str]
    lock: int
    memory: MemoryKills
    folder: Path

    def volumes(self, pod: str) -> Path:
        return self.workdir / "volumes" / pod

    def log(self, pod: str, container: str) -> Path:
        return self.workdir / "logs" / pod / f"{container}.log"


class Pod:
    """Runs a pod's containers and reports each change of its status.

    Only sidecars restart: the pod's restartPolicy is Never.
    """

    def __init__(self, manifest: Manifest, machine: Machine, on_status: Callable[[Manifest], None]) -> None:
        self._machine, self._on_status = machine, on_status
        self._name: str = manifest["metadata"]["name"]
        self._host = host_of(manifest)
        self.address = machine.addresses.of(self._host)
        self._folder = machine.volumes(self._name)
        self._manifest = _placed(manifest, self.address)
        self._folders: dict[str, Path] = {}
        spec = manifest["spec"]
        self._grace = float(spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE))
        self._sidecars = [self._container(c) for c in spec.get("initContainers", ()) if _is_sidecar(c)]
        self._containers = [self._container(c) for c in spec["containers"]]
        self._phase, self._begun = "Pending", machine.stamp()
        self._problem: Manifest = {}
        self._running, self._stopping = False, False
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Runs to the terminal phase. Cancelled before its containers run, it only cleans up."""
        phase = "Failed"
        try:
            await self._mount()
            await self._start_sidecars()
            phase = await self._run_containers()
        except Refused as error:
            self._problem = {"reason": error.reason, "message": error.message}
        except NotMountable as error:
            self._problem = {"reason": "CreateContainerConfigError", "message": str(error)}
        except OSError as error:  # such as a full disk
            self._problem = {"reason": "MachineTrouble", "message": str(error)}
        except Exception as error:  # a pod that fails without a word would be made again and again
            log.exception("pod %s cannot run", self._name)
            self._problem = {"reason": "PodUnusable", "message": f"{type(error).__name__}: {error}"}
        finally:
            self._stopping = True
            await self._stop_containers()  # a container runs on here only if another one could not start
            await self._stop_sidecars()
            kill_those_with(self._machine.workdir, {mark_of(self._manifest)})
            self._phase = phase
            self._changed()

    async def stop(self, task: asyncio.Task[None], longest: float = math.inf) -> None:
        """Ends the pod as a deletion does; `task` is that of `run`.

        SIGTERM, the grace period (at most `longest` seconds), SIGKILL; sidecars end last.
        """
        self._grace = min(self._grace, longest)
        if not (self._running or self._stopping):  # a cancel while it ends its sidecars would leave them running
            task.cancel()
        self._stopping = True
        await self._stop_containers()
        await asyncio.wait([task])
        unmount(self._folder)

    def status(self) -> Manifest:
        ready = self._phase == "Running" and all(c.ready for c in (*self._sidecars, *self._containers))
        return {
            "phase": self._phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": "127.0.0.1",
            "startTime": self._begun,
            "conditions": [{"type": "Ready", "status": str(ready), **({} if ready else _NOT_READY)}],
            "initContainerStatuses": [c.status() for c in self._sidecars],
            "containerStatuses": [c.status() for c in self._containers],
            **self._problem,
        }

    async def _mount(self) -> None:
        while True:
            try:
                self._folders = mount(
                    self._manifest, self._folder / "volumes", self._machine.workdir, self._machine.lookup
                )
                return
            except NotMountable as error:
                self._problem = {"message": str(error)}
                self._changed()
                await asyncio.sleep(_MOUNT_RETRY)

    async def _start_sidecars(self) -> None:
        """Starts one after the other, each when the one before it has started."""
        self._problem = {}
        for sidecar in self._sidecars:
            task = asyncio.create_task(sidecar.run_for_ever())
            self._tasks.append(task)
            started = asyncio.create_task(sidecar.started.wait())
            await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
            if task.done():
                task.result()  # raises the reason why it did not start

    async def _run_containers(self) -> str:
        self._phase, self._running = "Running", True
        codes = await asyncio.gather(*(c.run() for c in self._containers))
        return "Failed" if any(codes) else "Succeeded"

    async def _stop_containers(self) -> None:
        await asyncio.gather(*(c.stop(self._grace) for c in self._containers))

    async def _stop_sidecars(self) -> None:
        for sidecar in reversed(self._sidecars):
            await sidecar.stop(self._grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _container(self, spec: dict[str, Any]) -> Container:
        machine = self._machine
        frame = Frame(
            self._command, lambda p: machine.prober.ask(p, spec, self.address), self._changed, self._grace, machine.stamp,
            machine.memory,
        )  # fmt: skip
        return Container(spec, frame, self._termination_log(spec))

    def _termination_log(self, spec: dict[str, Any]) -> Path:
        return self._folder / str(spec["name"]) / "termination-log"

    def _command(self, spec: dict[str, Any]) -> Command:
        """The command of a container's spec on this machine."""
        folder = self._folder / spec["name"]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mounts = mount_paths(spec, self._folders, folder / "views")
        around = ContainerEnv(self._manifest, spec, mounts, self._machine.addresses.of, self._machine.lookup)
        marks = {"PWD": str(self._machine.workdir), names.ENV_POD_UID: uid_of(self._manifest)}
        inherited = seen_from_anywhere(os.environ, self._machine.folder) | marks
        environment = around.environment(inherited) | {names.ENV_TERMINATION_LOG: str(self._termination_log(spec))}
        keep = (self._machine.lock, self._machine.addresses.guard(self._host))
        log = self._machine.log(self._name, spec["name"])
        return Command(around.argv(), environment, self._machine.workdir, log, keep)

    def _changed(self) -> None:
        self._on_status(self.status())


@functools.cache
def node_name() -> str:
    return socket.gethostname()


def uid_of(manifest: Manifest) -> str:
    return str(manifest["metadata"]["uid"])


def mark_of(manifest: Manifest) -> str:
    """What all processes of a pod have in their environment. Pods of a copied work directory have the same."""
    return f"{names.ENV_POD_UID}={uid_of(manifest)}"


def check_supported(manifest: Manifest) -> None:
    """Raises Refused for a pod that needs Kubernetes, before any container starts."""
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    if spec.get("restartPolicy", "Always") != "Never":
        raise Refused("UnsupportedPod", f"pod {name}: restartPolicy must be Never on the local cluster")
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for probe in ("startupProbe", "readinessProbe"):
            if probe in container:
                probe_url(container[probe], container, "")
    plain = [c["name"] for c in spec.get("initContainers", ()) if not _is_sidecar(c)]
    if plain:
        raise Refused(
            "UnsupportedPod", f"pod {name}: init containers {plain} must be sidecars (restartPolicy Always) here"
        )


def _is_sidecar(container: dict[str, Any]) -> bool:
    return bool(container.get("restartPolicy") == "Always")


def _placed(manifest: Manifest, address: str) -> Manifest:
    """The pod as its containers see it by `fieldRef`."""
    status = {"podIP": address, "hostIP": "127.0.0.1"}
    return {**manifest, "spec": {**manifest["spec"], "nodeName": node_name()}, "status": status}
