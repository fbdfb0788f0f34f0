"""Each rival of the scale bench runs every case on a small control plane and leaves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.scale import cases
from bench.scale.control_plane import Plane
from bench.scale.objects import Scene
from bench.scale.peers import PEERS, peers
from bench.scale.peers.training_operator import API_VERSION, PLURAL
from bench.scale.table import Shape

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the first run builds the rival
TRAINERS = 20
CERTIFICATES = Path("/tmp/k8s-webhook-server")  # where rivals read theirs, each in a mount namespace of its own


def mounted_from(folder: Path) -> list[str]:
    """Processes that have something of a folder mounted."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in (process / "mountinfo").read_text():
                found.append((process / "comm").read_text().strip())
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.parametrize("name", PEERS)
def test_a_rival_makes_exactly_its_pods_also_after_a_sigkill_and_leaves_nothing(name: str) -> None:
    was_there = CERTIFICATES.exists()
    with Plane() as plane:
        [rival] = peers(plane, [name])
        rival.prepare()
        asyncio.run(all_cases(plane, rival))
        assert not mounted_from(plane.root)
    assert CERTIFICATES.exists() == was_there
    assert not plane.root.exists()


async def all_cases(plane: Plane, rival: cases.System) -> None:
    """The cases themselves refuse any other number of pods."""
    await plane.add_nodes(2)
    made = await cases.creation(plane, rival, Shape(1, TRAINERS))
    assert made["pods"] == TRAINERS + rival.others
    assert all(made["requests"][user] for user in rival.users)
    await cases.killed(plane, rival, TRAINERS)


def test_training_operator_replaces_one_pod_or_gives_the_job_up_but_restarts_no_whole_job() -> None:
    with Plane() as plane:
        [rival] = peers(plane, ["training-operator"])
        rival.prepare()
        asyncio.run(fail_twice(plane, rival))


async def fail_twice(plane: Plane, rival: cases.System) -> None:
    """As the table of the bench says it in words."""
    await plane.add_nodes(1)
    async with cases.turn(plane, rival) as (at, seen):
        await rival.submit(at, ["j0"], 3)
        await seen.until(lambda: len(seen.running) == 5, 60)
        first, second, *_ = sorted(name for name in seen.alive.values() if "-worker-" in name)
        await at.fail(first, 137)
        await seen.until(lambda: len(seen.seen) == 6 and len(seen.running) == 5, 60)
        await at.fail(second, 1)
        async with asyncio.timeout(60):
            while not await has_failed(at):  # noqa: ASYNC110 - a poll
                await asyncio.sleep(0.1)
        assert len(seen.seen) == 6
        assert len(seen.running) == 4


async def has_failed(at: Scene) -> bool:
    job = await at.call("GET", at.path(API_VERSION, PLURAL, "j0"))
    return ("Failed", "True") in [(c["type"], c["status"]) for c in job["status"]["conditions"]]
