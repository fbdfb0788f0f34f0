"""Which processes of the local cluster the kernel has killed for lack of memory. A kubelet reads it of each container's group."""

from __future__ import annotations

import signal
from collections.abc import Callable

from coxswain.wire import Fault
from coxswain_link import cgroup

WAY_OUT = "free memory of this machine, or raise the limit of the control group that `cox run` runs in"


class MemoryKills:
    """All processes are of one control group, which counts kills: a SIGKILL is one of them where the count has grown."""

    def __init__(self, count: Callable[[], int] = cgroup.oom_kills) -> None:
        self._count, self._known = count, count()

    def fault(self, name: str, code: int) -> Fault | None:
        """Of a container that has ended with this code, negative where a signal killed it. None: memory was not the cause.

        Call it at every end: one with another code may be that of an agent whose worker was killed, which says so itself.
        """
        count = self._count()
        if code != -signal.SIGKILL:
            self._known = count
        if count <= self._known:
            return None
        self._known += 1
        return Fault("OOMKilled", f"{cgroup.killed_for_memory(name)}: {WAY_OUT}", retryable=True)
