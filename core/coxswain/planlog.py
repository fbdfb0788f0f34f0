"""Records and keys of the plan log: create-only objects that the coordinator writes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.layout import Layout
from coxswain.live import LiveSource
from coxswain.membership.values import Cursor, Membership
from coxswain.plan.strategy.values import Strategy
from coxswain.plan.values import Placement
from coxswain.structs import prepare

_MANIFEST = re.compile(r"manifests/step-([0-9]{10,})\.json")


class LoaderShare(msgspec.Struct, frozen=True):
    """Loader `loader` owns the blocks of `source` whose ordinal modulo `shares` is `share`."""

    loader: str
    source: str  # name in the mix
    share: int
    shares: int


class Generation(msgspec.Struct, frozen=True):
    """One world: its members from `first_step` on, until the next generation's first step."""

    generation: int
    author: str  # pod of the coordinator that created it
    first_step: int
    layout: Layout
    trainers: tuple[str, ...]  # pod name of each trainer index; empty: that trainer was not there
    loaders: tuple[LoaderShare, ...]
    checkpoint: str = ""  # key of the manifest from which workers load; empty: initialise from the seed
    job: str = ""  # digest of the job's configuration: with another one the world does not go on
    live: LiveSource | UnsetType = UNSET  # where workers take the state from, if not from `checkpoint`
    cursor: Cursor | UnsetType = UNSET  # before `first_step`, with `live`: no checkpoint holds it
    stream_digest: str | UnsetType = UNSET  # before `first_step`, with `live`
    size: int | UnsetType = UNSET  # trainers that the job has, if they are not as many as it began with


class MembershipSegment(msgspec.Struct, frozen=True):
    """Consecutive steps' memberships. Never superseded."""

    segment: int
    phases: str  # JSON of the phases in force: the mix record's, for releases that know no records
    memberships: tuple[Membership, ...]
    after: Cursor  # behind the last of them
    mix: int = 0  # number of the mix record in force


class PlacementSegment(msgspec.Struct, frozen=True):
    """Placements of consecutive steps of a segment, valid in one generation. Large ones are in several parts, in order."""

    generation: int
    segment: int
    first_step: int
    placements: tuple[Placement, ...]
    evaluation: Placement | None = (
        None  # of the held-out sequences, where a step of the segment is followed by an evaluation
    )
    speeds: tuple[float, ...] | UnsetType = UNSET  # of replicas, that these were planned with; UNSET: all are 1


class StrategyRecord(msgspec.Struct, frozen=True):
    """The layout that mode Auto has chosen. It holds as long as the trainers have these devices and the job asks the same."""

    number: int
    author: str  # pod of the coordinator that chose it
    devices: tuple[int, ...]  # of each trainer
    asked: str  # digest of what was asked: model, batch, policy
    strategy: Strategy


def generation_key(generation: int) -> str:
    return f"log/generations/{generation:08d}.json.zst"


def takeover_key(generation: int, number: int) -> str:
    """The claim of the `number`-th coordinator that adopts a generation which continues."""
    return f"log/takeovers/{generation:08d}/{number:04d}.json.zst"


def mix_key(number: int) -> str:
    return f"log/mix/{number:08d}.json.zst"


def strategy_key(number: int) -> str:
    return f"log/strategies/{number:08d}.json.zst"


def membership_key(segment: int) -> str:
    return f"log/membership/{segment:08d}.json.zst"


def placement_key(generation: int, segment: int, part: int = 0) -> str:
    """`part`: of a segment that is too large for one object."""
    behind = f"-{part:02d}" if part else ""
    return f"log/placements/{generation:08d}/{segment:08d}{behind}.json.zst"


def manifest_key(step: int) -> str:
    return f"manifests/step-{step:010d}.json"


def manifest_steps(keys: Iterable[str]) -> list[int]:
    """The steps of those that are keys of manifests, ascending. A copy of one, or one that was renamed, is none."""
    return sorted(step for key in keys if (step := manifest_step(key)) is not None)


def manifest_step(key: str) -> int | None:
    """The step of a manifest with this key; None: another object, such as a copy that a user has made beside it."""
    found = _MANIFEST.fullmatch(key)
    return int(found[1]) if found else None


def steps_key(step: int, generation: int) -> str:
    """Lines of closed steps before `step` that this world has closed or found closed, since the previous object.

    All such objects together are the run's `steps.jsonl`. Names of earlier releases have no generation.
    """
    return f"{steps_stem(step)}-{generation:08d}.jsonl"


def steps_stem(step: int) -> str:
    """What the names of all objects with lines before `step` begin with, whatever world has written them."""
    return f"steps/before-{step:010d}"


prepare(__name__)
