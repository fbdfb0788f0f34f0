"""How a worker finds its world and joins the other ranks of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from coxswain import wire
from coxswain.errors import Retryable, Stale
from coxswain_link.http_client import Client
from coxswain_link.outbox import Outbox
from coxswain_train.parallel.process_groups import ProcessGroups, join, listen
from coxswain_train.worker.assignments import Assignment

_POLL = 10.0  # seconds of one long poll
_PATIENCE = 600.0  # seconds without rank 0


def fetch_world(client: Client, assignment: Assignment) -> wire.World:
    """The world of the assignment. Raises Stale when the coordinator has another one, or none."""
    generation = assignment.generation
    world = client.get("/v1/world", wire.World, after=generation - 1, wait=_POLL)
    if world is None or world.generation != generation:
        found = "none" if world is None else world.generation
        raise Stale(f"rank {assignment.rank} was started for generation {generation}, the world's is {found}")
    return world


def rendezvous(
    client: Client, outbox: Outbox, assignment: Assignment, world: wire.World, host: str, device: torch.device,
    is_aborted: Callable[[], bool],
) -> ProcessGroups:  # fmt: skip
    """Rank 0 opens a store and reports its address; every rank joins it."""
    ranks = len(world.seats)
    if assignment.rank == 0:
        store = listen(host, ranks)
        address = wire.Rendezvous(assignment.generation, host, store.port)
        outbox.put("/v1/rendezvous", world.first_step, address)
    else:
        address = _find_rendezvous(client, assignment)
        store = join(address.host, address.port, ranks)
    return ProcessGroups(store, assignment.rank, ranks, device, is_aborted)


def _find_rendezvous(client: Client, assignment: Assignment) -> wire.Rendezvous:
    generation, deadline = assignment.generation, time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        path = f"/v1/rendezvous?generation={generation}&wait={_POLL:g}"
        address = client.get(path, wire.Rendezvous, generation=generation)
        if address is not None:
            return address
    raise Retryable(f"rank {assignment.rank}: rank 0 of generation {generation} did not open its store")
