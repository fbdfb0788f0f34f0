"""Holding a Lease: what is asked of the API server, and when a holder knows that it is one no more."""

from __future__ import annotations

from typing import Any, cast

from coxswain_operator.cluster import Conflict
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.leader import Leader


class Server:
    """One Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.calls: list[str] = []

    async def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.calls.append(method)
        if method == "GET" and self.lease is None:
            raise NotFound("no Lease")
        if method == "PUT" and (self.lease is None or body["metadata"] != self.lease["metadata"]):
            raise Conflict("another version")
        if method != "GET":
            self.version += 1
            self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    def steal(self) -> None:
        assert self.lease is not None
        self.version += 1
        head = {**self.lease["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**self.lease, "metadata": head, "spec": {**self.lease["spec"], "holderIdentity": "another"}}


def candidate(server: Server, name: str = "a") -> Leader:
    return Leader(cast("Connection", server), "ns", "lease", name)


async def test_a_holder_renews_with_one_request() -> None:
    server = Server()
    leader = candidate(server)
    assert await leader._attempt() and await leader._attempt()
    server.calls.clear()
    assert await leader._attempt()
    assert server.calls == ["PUT"]


async def test_a_holder_whose_lease_was_taken_sees_it_at_the_next_renewal() -> None:
    server = Server()
    leader = candidate(server)
    assert await leader._attempt() and await leader._attempt()
    server.steal()
    assert not await leader._attempt()


async def test_a_renewal_whose_answer_was_lost_costs_a_look_and_no_lease() -> None:
    server = Server()
    leader = candidate(server)
    assert await leader._attempt() and await leader._attempt()
    assert server.lease is not None
    await server.call("PUT", "", server.lease)
    server.calls.clear()
    assert await leader._attempt()
    assert server.calls == ["PUT", "GET", "PUT"]
