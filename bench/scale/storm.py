"""A thousand pod events a second: what the operator spends on them, and how long a job waits for its turn meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

import aiohttp

from bench.scale.cases import LIMIT, Figures, turn
from bench.scale.control_plane import Plane
from bench.scale.coxswain import Coxswain
from bench.scale.processes import Meter, require_alive
from e2e.cluster.process import Argument, Child

RATE, SECONDS = 1000.0, 20.0


async def storm(plane: Plane, trainers: int) -> Figures:
    """One job whose pods turn ready and not ready all the time, in the sight of its operator."""
    own = plane.root / "kubeconfig.storm"
    operator = Coxswain(plane, own)
    operator.prepare()
    amplifier = _amplifier(plane, operator.name, own)
    expected = trainers + operator.others
    async with turn(plane, operator) as (at, seen):
        await operator.submit(at, ["j0"], trainers)
        await seen.until(lambda: len(seen.running) >= expected, LIMIT)
        before = await _metrics(operator.metrics)
        meter, waits = Meter(operator.processes, plane.cpu), [0.0]
        asking = asyncio.create_task(_ask(operator.metrics, waits))
        measured = await _storming(amplifier)
        used, after = meter.read(), await _metrics(operator.metrics)
        asking.cancel()
    took, events = measured["seconds"], measured["events"]
    rates = {name: (after[metric] - before[metric]) / took for name, metric in _COUNTERS.items()}
    return {
        "pods": expected, "events": events, "rate": events / took, "cores": used["cpu"] / took,
        "event_ms": 1000 * used["cpu"] / events, "queue": max(waits), "peak": used["peak"], **rates,
    }  # fmt: skip


_COUNTERS = {
    "passes": "coxswain_reconcile_seconds_count",
    "writes": 'coxswain_api_requests_total{method="PATCH",status="200"}',
}


def _amplifier(plane: Plane, user: str, own: Path) -> Child:
    config = plane.control.kubeconfig_of(user)
    command: list[Argument] = [sys.executable, "-m", "bench.scale.amplifier", config, own, str(RATE), str(SECONDS)]
    child = plane.run("amplifier", command)
    child.wait_until(own.exists)
    return child


async def _storming(amplifier: Child) -> dict[str, float]:
    """Returns what it says at the end."""
    amplifier.process.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(SECONDS + LIMIT):
        while not (said := amplifier.log.read_text()):
            require_alive([amplifier])
            await asyncio.sleep(0.1)
    found: dict[str, float] = json.loads(said)
    return found


async def _ask(url: str, waits: list[float]) -> None:
    while True:
        waits.append((await _metrics(url))["coxswain_operator_queue_seconds"])
        await asyncio.sleep(0.25)


async def _metrics(url: str) -> dict[str, float]:
    """Prometheus' text, by name and labels."""
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        text = await answer.text()
    return {name: float(value) for name, value in re.findall(r"^(coxswain\S+) (\S+)$", text, re.MULTILINE)}
