"""A namespace for one case, and what is done to the objects in it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import aiohttp
import msgspec

from bench.scale.control_plane import Manifest, Plane
from bench.scale.watching import Pods

MERGE = "application/merge-patch+json"
CLEARED = 300.0  # seconds in which a namespace has to become empty


class ServerTimeout(RuntimeError):
    """The server has not done all that a request asks for in its time; it may have done a part."""


@dataclass(frozen=True)
class Scene:
    """A namespace, and the bench's own client."""

    http: aiohttp.ClientSession
    namespace: str

    def path(self, api_version: str, plural: str, name: str = "") -> str:
        root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def call(
        self, method: str, path: str, body: Manifest | None = None, kind: str = "application/json"
    ) -> Manifest:
        data = None if body is None else msgspec.json.encode(body)
        async with self.http.request(method, path, data=data, headers={"Content-Type": kind}) as answer:
            if answer.status >= 300:
                fault = ServerTimeout if answer.status == 504 else RuntimeError
                raise fault(f"{method} {path}: {await answer.text()}")
            found: Manifest = msgspec.json.decode(await answer.read())
            return found

    async def create(self, plural: str, manifest: Manifest) -> None:
        await self.call("POST", self.path(manifest["apiVersion"], plural), manifest)

    async def fail(self, pod: str, code: int = 1) -> None:
        """Says of a pod what its kubelet would after an exit with that code."""
        path = self.path("v1", "pods", pod)
        found = await self.call("GET", path)
        ended = {
            "exitCode": code,
            "reason": "Error",
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:01Z",
        }
        statuses = [{**c, "ready": False, "state": {"terminated": ended}} for c in found["status"]["containerStatuses"]]
        conditions = [{**c, "status": "False"} if "Ready" in c["type"] else c for c in found["status"]["conditions"]]
        status = {"phase": "Failed", "containerStatuses": statuses, "conditions": conditions}
        await self.call("PATCH", f"{path}/status", {"status": status}, MERGE)

    async def remove(self, seen: Pods, *owners: str) -> None:
        """Deletes owners first, or they would create their pods again. `owners`: apiVersion and plural, such as v1/configmaps."""
        for owner in owners:
            api_version, _, plural = owner.rpartition("/")
            await self.call("DELETE", self.path(api_version, plural))
        while seen.alive:
            with suppress(ServerTimeout):  # thousands of pods on a busy server: what is left is deleted next
                await self.call("DELETE", self.path("v1", "pods") + "?gracePeriodSeconds=0")
            await asyncio.wait({asyncio.create_task(seen.until(lambda: not seen.alive, CLEARED))}, timeout=5)


@asynccontextmanager
async def scene(plane: Plane) -> AsyncIterator[Scene]:
    name = f"b-{uuid.uuid4().hex[:6]}"
    async with plane.session("watcher") as http:
        at = Scene(http, name)
        await at.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        while (await http.get(at.path("v1", "serviceaccounts", "default"))).status != 200:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(0.05)
        yield at
