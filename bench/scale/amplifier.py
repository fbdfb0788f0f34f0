"""A proxy before the API server whose watch of pods brings many changes a second; the server itself manages a hundred here.

    python -m bench.scale.amplifier KUBECONFIG OWN_KUBECONFIG RATE SECONDS

Writes the kubeconfig of its own address once it listens. At SIGUSR1 every pod that it has heard of becomes not ready and ready
in turn, with the resourceVersions that would follow; then one line of JSON says how many changes were taken in how many seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from aiohttp import web

from bench.scale.loop import session
from tests.faults import lines, passed_on

TICK = 0.01  # seconds
Pod = dict[str, Any]


class Amplifier:
    """All calls pass; `storm` speaks on the watch of pods."""

    def __init__(self, upstream: aiohttp.ClientSession) -> None:
        self._upstream = upstream
        self._pods: dict[str, Pod] = {}
        self._watch: web.StreamResponse | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        headers = passed_on(request.headers, "host", "content-encoding", "accept-encoding")
        asked = self._upstream.request(
            request.method, request.rel_url, data=await request.read() or None,
            headers={**headers, "Accept-Encoding": "identity"}, timeout=aiohttp.ClientTimeout(total=None),
        )  # fmt: skip
        async with asked as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            pods = request.path.endswith("/pods") and request.method == "GET"
            if "watch" in request.query:
                await self._pass_watch(answer, response, pods)
            else:
                await response.write(body := await answer.read())
                if pods:
                    self._note(msgspec.json.decode(body).get("items", ()))
            return response

    async def _pass_watch(self, answer: aiohttp.ClientResponse, response: web.StreamResponse, pods: bool) -> None:
        self._watch = response if pods else self._watch
        async for line in lines(answer):
            if pods and (event := msgspec.json.decode(line))["type"] in ("ADDED", "MODIFIED"):
                self._note([event["object"]])
            await response.write(line)

    def _note(self, pods: list[Pod]) -> None:
        self._pods.update({pod["metadata"]["name"]: pod for pod in pods})

    async def storm(self, rate: float, seconds: float) -> tuple[int, float]:
        """Changes that the client took, and the seconds for them: a slow reader holds up the writer."""
        assert self._watch is not None, "no client watches pods"
        changes, begun, sent = _changes(list(self._pods.values())), time.monotonic(), 0
        while (now := time.monotonic()) < begun + seconds:
            due = int((now - begun) * rate) - sent
            await self._watch.write(b"".join(itertools.islice(changes, due)))
            sent += due
            await asyncio.sleep(TICK)
        return sent, time.monotonic() - begun


def _changes(pods: list[Pod]) -> Iterator[bytes]:
    """Watch lines without end, newer than all that was said."""
    versions = itertools.count(1 + max(int(pod["metadata"]["resourceVersion"]) for pod in pods))
    for ready in itertools.cycle(("False", "True")):
        for pod in pods:
            metadata = {**pod["metadata"], "resourceVersion": str(next(versions))}
            conditions = [{**c, "status": ready} if "Ready" in c["type"] else c for c in pod["status"]["conditions"]]
            changed = {"kind": "Pod", "apiVersion": "v1", **pod, "metadata": metadata}
            changed["status"] = {**pod["status"], "conditions": conditions}
            yield msgspec.json.encode({"type": "MODIFIED", "object": changed}) + b"\n"


async def main(config: dict[str, Any], on_kubeconfig: Callable[[str], object], rate: float, seconds: float) -> None:
    """Calls `on_kubeconfig` with the kubeconfig of this proxy."""
    begin = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, begin.set)
    async with session(config, 0) as upstream:
        amplifier, app = Amplifier(upstream), web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", amplifier.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
        on_kubeconfig(yaml.safe_dump(config))
        await begin.wait()
        events, took = await amplifier.storm(rate, seconds)
        print(json.dumps({"events": events, "seconds": took}), flush=True)
        await asyncio.Event().wait()  # the client may go on


if __name__ == "__main__":
    _, upstream_config, own_config, a_second, how_long = sys.argv
    asyncio.run(
        main(
            yaml.safe_load(Path(upstream_config).read_text()),
            Path(own_config).write_text,
            float(a_second),
            float(how_long),
        )
    )
