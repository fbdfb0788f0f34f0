"""One process that changes the Ready condition of pods, so many times a second, as long as it is told.

    python -m bench.scale.flips KUBECONFIG NAMESPACE RATE SECONDS < names of pods, one a line

Prints how many changes the server took.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from bench.scale.loop import session

AT_ONCE = 64


def body(ready: bool) -> bytes:
    """What a kubelet says of a readiness probe."""
    word = "True" if ready else "False"
    conditions = [{"type": kind, "status": word} for kind in ("Ready", "ContainersReady")]
    return msgspec.json.encode({"status": {"conditions": conditions}})


async def flip(http: aiohttp.ClientSession, path: str, names: list[str], rate: float, seconds: float) -> int:
    """Each pod in turn becomes not ready, then ready again."""
    begun, done = time.monotonic(), itertools.count()
    todo = iter([(name, n % 2 == 1) for n in range(int(rate * seconds / len(names)) + 1) for name in names])
    kind = {"Content-Type": "application/strategic-merge-patch+json"}
    taken = 0

    async def some() -> None:
        nonlocal taken
        for name, ready in todo:
            await asyncio.sleep(begun + next(done) / rate - time.monotonic())
            if time.monotonic() > begun + seconds:
                return
            async with http.patch(f"{path}/{name}/status", data=body(ready), headers=kind) as answer:
                answer.raise_for_status()
                await answer.read()
                taken += 1

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return taken


async def main(config: dict[str, Any], namespace: str, rate: float, seconds: float, names: list[str]) -> None:
    async with session(config, AT_ONCE) as http:
        print(await flip(http, f"/api/v1/namespaces/{namespace}/pods", names, rate, seconds))


if __name__ == "__main__":
    _, where, space, a_second, how_long = sys.argv
    asyncio.run(
        main(yaml.safe_load(Path(where).read_text()), space, float(a_second), float(how_long), sys.stdin.read().split())
    )
