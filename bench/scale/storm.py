"""A thousand pod events a second: what the operator spends on them, and how long a job waits for its turn meanwhile."""

from __future__ import annotations

import asyncio
import re
import sys
import time

import aiohttp

from bench.scale.cases import LIMIT, Figures, turn
from bench.scale.coxswain import Coxswain
from bench.scale.plane import Plane
from bench.scale.processes import Meter

RATE, SECONDS = 1000.0, 20.0
_PIPE = asyncio.subprocess.PIPE


async def storm(plane: Plane, operator: Coxswain, trainers: int) -> Figures:
    """One job whose pods turn ready and not ready all the time."""
    expected = trainers + operator.others
    async with turn(plane, operator) as (at, seen):
        await operator.submit(at, ["j0"], trainers)
        await seen.until(lambda: len(seen.running) >= expected, LIMIT)
        before, events, begun = await _metrics(operator.metrics), seen.events, time.monotonic()
        meter, waits = Meter(operator.processes, plane.cpu), [0.0]
        asking = asyncio.create_task(_ask(operator.metrics, waits))
        await _flips(plane, at.namespace, list(seen.alive.values()))
        took, used = time.monotonic() - begun, meter.read()
        asking.cancel()
        after = await _metrics(operator.metrics)
        rates = {name: (after[metric] - before[metric]) / took for name, metric in _COUNTERS.items()}
        heard = seen.events - events
    return {
        "pods": expected, "events": heard, "rate": heard / took, "cores": used["cpu"] / took, "queue": max(waits),
        "peak": used["peak"], "servers": used["servers"], **rates,
    }  # fmt: skip


_COUNTERS = {
    "passes": "coxswain_reconcile_seconds_count",
    "writes": 'coxswain_api_requests_total{method="PATCH",status="200"}',
}


async def _flips(plane: Plane, namespace: str, names: list[str]) -> None:
    config = str(plane.control.kubeconfig_of("loop"))
    command = [sys.executable, "-m", "bench.scale.flips", config, namespace, str(RATE), str(SECONDS)]
    flips = await asyncio.create_subprocess_exec(*command, stdin=_PIPE, stdout=_PIPE)
    await flips.communicate("\n".join(names).encode())
    if flips.returncode:
        raise RuntimeError(f"bench.scale.flips ended with exit code {flips.returncode}")


async def _ask(url: str, waits: list[float]) -> None:
    while True:
        waits.append((await _metrics(url))["coxswain_operator_queue_seconds"])
        await asyncio.sleep(0.25)


async def _metrics(url: str) -> dict[str, float]:
    """Prometheus' text, by name and labels."""
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        text = await answer.text()
    return {name: float(value) for name, value in re.findall(r"^(coxswain\S+) (\S+)$", text, re.MULTILINE)}
