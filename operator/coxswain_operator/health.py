"""/healthz, /readyz and /metrics of the operator.

The operator is healthy while its watches, its queue and the renewal of its Lease make progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from coxswain_link.listening import listen
from coxswain_link.metrics import MetricsRegistry

LONGEST_SILENCE = 180.0  # seconds: streams are reopened after 70
LONGEST_STALL = 300.0  # seconds: one pass may take long, all of them may not. A long wait alone is load, no fault
LAG_NAP = 1.0  # seconds between two measurements of the loop
LONGEST_UNRENEWED = 60.0  # seconds, or twice `renew`: a leader that cannot renew its Lease ends long before


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """Measured times, in seconds. An event loop that is stuck does not answer at all."""

    silence: float = 0.0  # since the last message on the quietest stream
    waiting: float = 0.0  # of the job that waits longest
    stalled: float = 0.0  # for which jobs have waited and no pass has ended
    unrenewed: float = 0.0  # since a leader's Lease was last renewed; 0 for a standby
    jobs: int = 0
    lag: float = 0.0  # of the event loop, recently
    renew: float = 0.0  # for which a leader goes on without a renewal

    @property
    def problem(self) -> str:
        """The first limit that is exceeded; empty if none is."""
        if self.silence > LONGEST_SILENCE:
            return f"a watch has been silent for {self.silence:.0f} s; at most {LONGEST_SILENCE:.0f} are normal"
        if self.stalled > LONGEST_STALL:
            return f"jobs wait, and no pass has ended for {self.stalled:.0f} s; at most {LONGEST_STALL:.0f} are normal"
        longest = max(LONGEST_UNRENEWED, 2 * self.renew)
        if self.unrenewed > longest:
            return f"the Lease was last renewed {self.unrenewed:.0f} s ago; at most {longest:.0f} are normal"
        return ""

    @property
    def text(self) -> str:
        """All measurements, for people."""
        lease = (
            f"the Lease was renewed {self.unrenewed:.1f} s ago" if self.unrenewed else "this operator is not the leader"
        )
        lag = f"the event loop was up to {self.lag:.2f} s late"
        heard = f"every watch had a message within the last {self.silence:.1f} s"
        return f"{self.problem or 'ok'}\n{heard}\nno job has waited longer than {self.waiting:.1f} s\n{lease}\n{lag}\n"


class LoopLag:
    """Measures how much longer than asked a sleep takes. Run `measure` as a task."""

    def __init__(self, nap: float = LAG_NAP, clock: Callable[[], float] = time.monotonic) -> None:
        self._nap, self._clock = nap, clock
        self.seconds = 0.0  # the maximum, which decays by a tenth with every nap

    async def measure(self) -> None:
        """Never returns."""
        while True:
            began = self._clock()
            await asyncio.sleep(self._nap)
            self.seconds = max(self._clock() - began - self._nap, 0.9 * self.seconds)


async def serve_health(
    host: str, port: int, status: Callable[[float], HealthStatus], metrics: MetricsRegistry
) -> web.AppRunner:
    """Listens until `cleanup()`; `status` gets time.monotonic(). A standby is ready: it can take over."""

    async def healthz(_: web.Request) -> web.Response:
        now = status(time.monotonic())
        return web.Response(text=now.text, status=503 if now.problem else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready\n")

    async def exposition(_: web.Request) -> web.Response:
        now = status(time.monotonic())
        metrics["coxswain_operator_leader"].set(1 if now.unrenewed else 0)
        metrics["coxswain_operator_jobs"].set(now.jobs)
        metrics["coxswain_operator_queue_seconds"].set(now.waiting)
        metrics["coxswain_operator_silence_seconds"].set(now.silence)
        metrics["coxswain_operator_loop_lag_seconds"].set(now.lag)
        return web.Response(body=metrics.exposition(), content_type="text/plain", charset="utf-8")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await listen(runner, host, port)
    return runner
