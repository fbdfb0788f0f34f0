"""Each rival of the scale bench on a small control plane: every case that it can do, and nothing left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.scale import cases
from bench.scale.peers import PEERS, peers
from bench.scale.plane import Plane
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
