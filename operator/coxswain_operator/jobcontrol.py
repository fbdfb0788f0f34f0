"""`JobControl` over HTTP: the operator's calls to a job's coordinator."""

from __future__ import annotations

import base64
from typing import Any

from coxswain.errors import CoxswainError, Refused
from coxswain.names import PORT_COORDINATOR, host_port
from coxswain.wire import JobReport, Size, SizeReply, StopRequest
from coxswain_link.http_client import AsyncClient
from coxswain_operator.children.job_token import TokenKeys, mounted_name, secret_name
from coxswain_operator.cluster import Cluster
from coxswain_operator.reconcile.context import COORDINATOR
from coxswain_operator.views import Manifest, PodView

DEADLINE_SECONDS = 2.0  # for one attempt; the next pass asks again
MOST_BYTES = (
    4 * 1024**2
)  # of an answer: the coordinator's image may be the user's own, and the operator serves all jobs


class HttpJobControl:
    """Calls the coordinator at its pod's address with the job's token. Keeps one client a job."""

    def __init__(
        self, cluster: Cluster, port: int = PORT_COORDINATOR, keys: TokenKeys | None = None,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:  # fmt: skip
        self._cluster, self._port, self._keys, self._deadline = cluster, port, keys or TokenKeys(), deadline
        self._clients: dict[str, tuple[str, AsyncClient]] = {}  # by the job's uid: address and token, client

    async def report(self, job: Manifest, after: str = "", wait: float = 0.0) -> JobReport | None:
        """With `after`, the revision of a report: waits up to `wait` seconds for another revision."""
        query: dict[str, Any] = {"after": after, "wait": wait} if wait else {}
        try:
            client = await self._client(job)
            return await client.get("/v1/report", JobReport, **query) if client else None
        except CoxswainError:  # from the coordinator, or from the API server when it is asked for the token
            return None

    async def resize(self, job: Manifest, trainers: int) -> SizeReply | None:
        """A coordinator of an earlier release knows no such call, which is a refusal."""
        try:
            client = await self._client(job)
            return await client.post("/v1/size", Size(trainers), SizeReply) if client else None
        except Refused as error:
            return SizeReply("Refused", 0, str(error))
        except CoxswainError:
            return None

    async def checkpoint_and_stop(self, job: Manifest, reason: str, at_step: int = -1) -> bool:
        try:
            client = await self._client(job)
            if client is None:
                return False
            await client.post("/v1/stop", StopRequest(reason, at_step))
        except CoxswainError:
            return False
        return True

    async def forget(self, job: Manifest) -> None:
        """Closes the job's connection."""
        known = self._clients.pop(job["metadata"]["uid"], None)
        if known is not None:
            await known[1].close()

    async def close(self) -> None:
        for _, client in self._clients.values():
            await client.close()

    async def _client(self, job: Manifest) -> AsyncClient | None:
        """The client for the coordinator's current address; None while it has none."""
        meta = job["metadata"]
        address = await self._address(job)
        token = await self._token(job) if address else ""
        if not token:
            return None
        key, known = f"{address} {token}", self._clients.get(meta["uid"])
        if known and known[0] == key:
            return known[1]
        url = f"http://{host_port(address, self._port)}"
        client = AsyncClient(url, token, self._deadline, retry=False, most=MOST_BYTES)
        self._clients[meta["uid"]] = (key, client)  # before the wait: a call beside this one takes the same client
        if known:
            await known[1].close()
        return client

    async def coordinator_pod(self, job: Manifest) -> PodView | None:
        """The coordinator's pod, if it is ready. A request to one that starts would block."""
        meta = job["metadata"]
        pods = await self._cluster.pod_views(meta["namespace"], meta["uid"])
        ready = [p for p in pods if p.role == COORDINATOR and p.phase == "Running" and p.ready]
        return ready[-1] if ready else None

    async def _address(self, job: Manifest) -> str:
        pod = await self.coordinator_pod(job)
        return pod.ip if pod else ""

    async def _token(self, job: Manifest) -> str:
        """Of a token that no key makes, the Secret is read, where the operator may."""
        name = mounted_name(job)
        made = (token for token in self._keys.tokens(job) if secret_name(job, token) == name)
        if token := next(made, ""):
            return token
        secret = await self._cluster.get("Secret", job["metadata"]["namespace"], name)
        data = (secret or {}).get("data") or {}
        token = base64.b64decode(data.get("token", "")).decode(errors="replace")
        return token if token.isascii() else ""  # no header takes it, so no coordinator can have it
