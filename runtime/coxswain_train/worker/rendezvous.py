"""How a worker finds its world and joins the other ranks of it."""

from __future__ import annotations

import time

import torch

from coxswain import wire
from coxswain.errors import Retryable, Stale
from coxswain_link.http_client import Client
from coxswain_link.outbox import Outbox
from coxswain_train.parallel.process_groups import ProcessGroups, join, listen
from coxswain_train.worker.assignments import Assignment
from coxswain_train.worker.world_check import WorldCheck

_POLL = 10.0  # seconds of the long poll for the world
_ASK = 2.0  # and of one for the address of rank 0: between two of them a rank looks whether its world is over
_LOOK = 0.25  # seconds to wait for a coordinator that does not answer
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
    check_world: WorldCheck,
) -> ProcessGroups:  # fmt: skip
    """Rank 0 opens a store and reports its address; every rank joins it. `client` must not retry. Raises as `check_world`."""
    ranks = len(world.seats)
    if assignment.rank == 0:
        store = listen(host, ranks)
        address = wire.Rendezvous(assignment.generation, host, store.port)
        outbox.put("/v1/rendezvous", world.first_step, address)
    else:
        address = _find_rendezvous(client, outbox, assignment, check_world)
        store = join(address.host, address.port, ranks)
    return ProcessGroups(store, assignment.rank, ranks, device, check_world.is_aborted)


def _find_rendezvous(
    client: Client, outbox: Outbox, assignment: Assignment, check_world: WorldCheck
) -> wire.Rendezvous:
    generation, deadline = assignment.generation, time.monotonic() + _PATIENCE
    path = f"/v1/rendezvous?generation={generation}&wait={_ASK:g}"
    while time.monotonic() < deadline:
        check_world()
        outbox.check()
        try:
            address = client.get(path, wire.Rendezvous, generation=generation)
        except Retryable:  # there is no coordinator, or the order to leave has cut this call
            outbox.mark_unreachable()
            outbox.await_answer(_LOOK)
            continue
        if address is not None:
            return address
    raise Retryable(f"rank {assignment.rank}: rank 0 of generation {generation} did not open its store")
