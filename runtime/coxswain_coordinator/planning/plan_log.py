"""The plan log in the object store: create-only records, zstd JSON.

A lost create reads the winner.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import TypeVar

import msgspec
import zstandard
from msgspec.structs import replace

from coxswain.errors import Refused, Stale
from coxswain.membership.values import MixRecord
from coxswain.planlog import (
    Generation,
    MembershipSegment,
    PlacementSegment,
    StrategyRecord,
    generation_key,
    membership_key,
    mix_key,
    placement_key,
    strategy_key,
    takeover_key,
)
from coxswain.structs import UNDECODABLE
from coxswain_link.store import NotFound, Store

T = TypeVar("T")

_LARGEST = 1_000_000
"""Bytes of an object with placements of several steps."""

_TWICE = "if this repeats, two runs share one checkpoint.uri: end one of them, or give it its own"


class PlanLog:
    """Reads and claims records. Blocking: call it from a thread."""

    def __init__(self, store: Store) -> None:
        self._store, self.largest = store, _LARGEST
        self._takeovers = 0  # of the current generation; the last one is ours
        self._created = 0  # the newest generation that is ours; no world may have it
        self._held = 0  # the newest that was read, created or taken over
        self._fence = Lock()  # over both and what the store has of them: collections and planners look in other threads

    def last_generation(self) -> int:
        """Number of the newest generation; 0: none yet."""
        return self._last("log/generations/", 0)

    def read_held(self) -> int:
        """As `last_generation`. `check_held` raises once another coordinator begins after this."""
        self._held = self.last_generation()
        self._takeovers = len(self._store.list(takeovers_of(self._held)))
        return self._held

    def _last(self, folder: str, none: int) -> int:
        """The largest number of a record in a folder."""
        names = (o.path.rsplit("/", 1)[-1].partition(".")[0] for o in self._store.list(folder))
        return max((int(name) for name in names if name.isdecimal()), default=none)

    def generation(self, number: int) -> Generation | None:
        return self._read(generation_key(number), Generation)

    def create_generation(self, record: Generation) -> bool:
        """False when another coordinator took this number."""
        number = record.generation
        with self._fence:
            created = self._store.create(generation_key(number), _pack(record))
            if created:
                self._created, self._held, self._takeovers = number, number, 0
        return created

    def take_over(self, generation: int, author: str) -> bool:
        """Takes a generation over, which fences its coordinator.

        False when another takeover was faster.
        """
        number = len(self._store.list(takeovers_of(generation))) + 1
        created = self._store.create(takeover_key(generation, number), _pack(author))
        if created:
            self._held, self._takeovers = generation, number
        return created

    def check_current(self, generation: int) -> None:
        """The fence: raises Stale if another coordinator has created a newer generation, or taken this one or ours over."""
        with self._fence:
            generation = max(generation, self._created)
            if self._store.exists(generation_key(generation + 1)):
                raise Stale(f"another coordinator has created generation {generation + 1}; {_TWICE}")
            if self._store.exists(takeover_key(generation, self._takeovers + 1)):
                raise Stale(f"another coordinator has taken over generation {generation}; {_TWICE}")

    def check_held(self) -> None:
        """The fence, also where no world has begun yet."""
        self.check_current(self._held)

    def membership(self, segment: int) -> MembershipSegment | None:
        return self._read(membership_key(segment), MembershipSegment)

    def last_membership(self) -> MembershipSegment | None:
        """The newest segment; None: none yet."""
        last = self._last("log/membership/", -1)
        return self.membership(last) if last >= 0 else None

    def mix(self, number: int) -> MixRecord | None:
        return self._read(mix_key(number), MixRecord)

    def claim_mix(self, record: MixRecord) -> MixRecord:
        """The record of this number: this one, or an earlier one."""
        return self._claim(mix_key(record.number), record, MixRecord)

    def last_strategy(self) -> StrategyRecord | None:
        """The newest layout that mode Auto has chosen; None: none yet."""
        return next(self.strategies(), None)

    def strategies(self) -> Iterator[StrategyRecord]:
        """The layouts that mode Auto has chosen, the newest first."""
        for number in range(self._last("log/strategies/", -1), -1, -1):
            if (record := self._read(strategy_key(number), StrategyRecord)) is not None:
                yield record

    def claim_strategy(self, record: StrategyRecord) -> StrategyRecord:
        """The record of this number: this one, or another coordinator's."""
        return self._claim(strategy_key(record.number), record, StrategyRecord)

    def claim_membership(self, record: MembershipSegment) -> MembershipSegment:
        """The committed segment: this one, or an earlier one."""
        return self._claim(membership_key(record.segment), record, MembershipSegment)

    def placement(self, generation: int, segment: int, part: int = 0) -> PlacementSegment | None:
        return self._read(placement_key(generation, segment, part), PlacementSegment)

    def placements_before(self, segment: int) -> list[str]:
        """Keys of the placements of earlier segments, of all generations."""
        first = f"{segment:08d}"
        return [o.path for o in self._store.list("log/placements/") if o.path.rpartition("/")[2] < first]

    def claim_placement(self, record: PlacementSegment, part: int = 0) -> PlacementSegment:
        """The committed part of a segment: an earlier one, or as many steps of this one as an object may hold."""
        fits, packed = fitting(record, self.largest)
        return self._claim(placement_key(record.generation, record.segment, part), fits, PlacementSegment, packed)

    def _claim(self, key: str, record: T, type_: type[T], packed: bytes = b"") -> T:
        if self._store.create(key, packed or _pack(record)):
            return record
        return _unpack(key, self._store.get(key), type_)

    def _read(self, key: str, type_: type[T]) -> T | None:
        try:
            return _unpack(key, self._store.get(key), type_)
        except NotFound:
            return None


def takeovers_of(generation: int) -> str:
    """The folder of its takeovers."""
    return f"log/takeovers/{generation:08d}/"


def fitting(record: PlacementSegment, largest: int) -> tuple[PlacementSegment, bytes]:
    """The record, packed, with only its first steps if all of them take more than `largest` bytes; at least one.

    The size of the first step says how many may fit: packing all of them again and again took longer than planning them.
    """
    one = _pack(_first(record, 1))
    record = _first(record, max(1, largest // len(one)))
    packed = _pack(record)
    while len(record.placements) > 1 and len(packed) > largest:
        record = _first(record, len(record.placements) - 1)
        packed = _pack(record)
    return record, packed


def _first(record: PlacementSegment, steps: int) -> PlacementSegment:
    return replace(record, placements=record.placements[:steps])


def _pack(record: object) -> bytes:
    return zstandard.compress(msgspec.json.encode(record))


def _unpack(key: str, data: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(zstandard.decompress(data), type=type_)
    except (*UNDECODABLE, zstandard.ZstdError) as error:
        raise Refused(
            "TornPlanLog",
            f"{key} cannot be read ({error}); restore it, or start a new run with a fresh checkpoint.uri",
        ) from error
