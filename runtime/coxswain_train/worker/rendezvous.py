"""How a worker finds its world and meets the other ranks of it."""

from __future__ import annotations

import time

import torch

from coxswain import wire
from coxswain.errors import Retryable, Stale
from coxswain_link.http_client import Client
from coxswain_link.outbox import Outbox
from coxswain_train.parallel.process_groups import ProcessGroups, join, listen
from coxswain_train.worker.assignments import Assignment

_POLL = 10.0  # seconds of one long poll
_PATIENCE = 600.0  # seconds without rank 0


def fetch_world(client: Client, place: Assignment) -> wire.World:
    """The world that the agent started us for. Raises Stale when there is a newer one."""
    record = client.get("/v1/world", wire.World, after=place.generation - 1, wait=_POLL)
    if record is None or record.generation != place.generation:
        found = "none" if record is None else record.generation
        raise Stale(f"rank {place.rank} was started for generation {place.generation}, the world's is {found}")
    return record


def rendezvous(
    client: Client, outbox: Outbox, place: Assignment, record: wire.World, host: str, device: torch.device
) -> ProcessGroups:
    """Rank 0 opens the store and says where; everybody joins."""
    ranks = len(record.seats)
    if place.rank == 0:
        store = listen(host, ranks)
        here = wire.Rendezvous(place.generation, host, store.port)
        outbox.put("/v1/rendezvous", record.first_step, here)
    else:
        there = _find_rendezvous(client, place)
        store = join(there.host, there.port, ranks)
    return ProcessGroups(store, place.rank, ranks, device)


def _find_rendezvous(client: Client, place: Assignment) -> wire.Rendezvous:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        path = f"/v1/rendezvous?generation={place.generation}&wait={_POLL:g}"
        there = client.get(path, wire.Rendezvous, generation=place.generation)
        if there is not None:
            return there
    raise Retryable(f"rank {place.rank}: rank 0 of generation {place.generation} did not open its store")
