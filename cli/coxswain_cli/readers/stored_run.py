"""What a run has stored at its `checkpoint.uri`: its owner, checkpoints, steps, and mix records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
import zstandard

from coxswain.config import CheckpointConfig, EndpointConfig
from coxswain.errors import CoxswainError, Refused
from coxswain.membership.values import MixRecord
from coxswain.planlog import manifest_key, manifest_steps, mix_key, steps_stem
from coxswain.structs import UNDECODABLE
from coxswain.uris import file_path, file_uri, is_file
from coxswain_cli.reporting.model import MixInForce, RecordedStep
from coxswain_cli.reporting.read import read_steps
from coxswain_link.store import NotFound, Store, open_store

_PATIENCE = 3.0  # seconds for which S3 may be unavailable
_AT_ONCE = 16  # objects that are read side by side
_SEGMENTS, _GENERATIONS, _MANIFESTS, _STEPS = "log/membership/", "log/generations/", "manifests/", "steps/"

T = TypeVar("T")


class Owner(msgspec.Struct, frozen=True):
    """`run.json`: the run that the location belongs to."""

    job: str  # NAMESPACE/NAME


class Checkpoint(msgspec.Struct, frozen=True):
    """What people ask of a checkpoint manifest."""

    step: int
    job: str = ""
    tokens: int = 0
    time: float = 0.0
    stream_digest: str = ""


class _Segment(msgspec.Struct, frozen=True):
    """What the search for a mix record's first step needs of a membership segment."""

    memberships: tuple[_Step, ...]
    mix: int = 0


class _Step(msgspec.Struct, frozen=True):
    step: int


class StoredRun:
    """Reads a checkpoint location. Raises Refused for a damaged object; other CoxswainErrors come from the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def owner(self) -> Owner | None:
        """None: no run has ever used this location."""
        try:
            return _decoded("run.json", self._store.get("run.json"), Owner)
        except NotFound:
            return None

    def checkpoints(self) -> tuple[list[int], Checkpoint | None]:
        """The steps of all checkpoints, and the newest one."""
        saved = self._saved()
        key = manifest_key(saved[-1]) if saved else ""
        return saved, _decoded(key, self._store.get(key), Checkpoint) if key else None

    def _saved(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return manifest_steps(self._keys(_MANIFESTS))

    def generation(self) -> int:
        """Number of the newest world; 0: none yet."""
        return max((_ordinal(key) or 0 for key in self._keys(_GENERATIONS)), default=0)

    def step_lines(self, last: bool = False) -> Iterator[bytes]:
        """Lines of `steps.jsonl` up to the last checkpoint; with `last` only those that the last step is among.

        Few objects are in memory at a time.
        """
        keys = self._last_steps() if last else self._keys(_STEPS)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for start in range(0, len(keys), _AT_ONCE):
                for content in pool.map(self._store.get, keys[start : start + _AT_ONCE]):
                    yield from content.splitlines()

    def _last_steps(self) -> list[str]:
        """The last object, and those of the newest checkpoint: a run that was killed may have left one of later steps."""
        keys, saved = self._keys(_STEPS), self._saved()
        stem = steps_stem(saved[-1]) if saved else None
        return [key for key in keys if key == keys[-1] or (stem is not None and key.startswith(stem))]

    def mixes(self) -> tuple[MixInForce, ...]:
        """Every mix record that a committed step uses, and the first step that it holds for."""
        found: list[MixInForce] = []
        segments: list[str] | None = None
        while (record := self._record(len(found))) is not None:
            first: int | None = 0
            if record.number:
                segments = self._keys(_SEGMENTS) if segments is None else segments
                first = self._first_step(segments, record.number)
            if first is None:
                break  # it was offered, and no step uses it yet
            found.append(MixInForce(first, record))
        return tuple(found)

    def _first_step(self, segments: list[str], number: int) -> int | None:
        """By bisection: the number of the record in force never falls."""
        place = bisect_left(segments, number, key=lambda key: self._read(key, _Segment).mix)
        found = (self._read(key, _Segment).memberships for key in segments[place:])
        return next((steps[0].step for steps in found if steps), None)

    def _record(self, number: int) -> MixRecord | None:
        try:
            return self._read(mix_key(number), MixRecord)
        except NotFound:
            return None

    def _read(self, key: str, type_: type[T]) -> T:
        data = self._store.get(key)
        try:
            return _decoded(key, zstandard.decompress(data), type_)
        except (zstandard.ZstdError, MemoryError) as error:  # a damaged header names any size
            raise _damaged(key, error) from error

    def _keys(self, folder: str) -> list[str]:
        return sorted(o.path for o in self._store.list(folder))


def _decoded(key: str, data: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except UNDECODABLE as error:
        raise _damaged(key, error) from error


def _damaged(key: str, error: Exception) -> Refused:
    why = str(error) or "it is larger than memory"
    return Refused("ObjectDamaged", f"{key} cannot be read ({why}); restore it")


def _ordinal(key: str) -> int | None:
    """The number in a key's name, such as `log/generations/00000004.json`."""
    digits = "".join(c for c in key.rsplit("/", 1)[-1].partition(".")[0] if c.isdecimal())
    return int(digits) if digits else None


def open_location(uri: str, endpoint: EndpointConfig | None = None) -> StoredRun:
    """Opens a checkpoint location with the credentials of this user, never with those of the job."""
    if is_file(uri):
        uri = file_uri(file_path(uri).absolute())
    elif not _is_text(uri):
        raise Refused("NoRun", f"{uri!r} is no UTF-8, as names in S3 are; name a job's checkpoint.uri")
    own = msgspec.structs.replace(endpoint or EndpointConfig(), secret="")
    return StoredRun(open_store(uri, own, patience=_PATIENCE))


def _is_text(word: str) -> bool:
    """False for an argument that is not UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in word)


def mixes_at(checkpoint: CheckpointConfig) -> tuple[tuple[MixInForce, ...], str]:
    """The mix records at a location, and why there are none that could be read."""
    try:
        return open_location(checkpoint.uri, checkpoint.endpoint).mixes(), ""
    except (CoxswainError, OSError) as error:
        return (), f"the mix is drawn as it is now: earlier ones at {checkpoint.uri} cannot be read ({error})"


def steps_before(first: int, checkpoint: CheckpointConfig) -> tuple[tuple[RecordedStep, ...], str]:
    """The steps before `first` as the location has them, and why those that could not be read are missing."""
    try:
        lines, _, _ = read_steps(open_location(checkpoint.uri, checkpoint.endpoint).step_lines())
        return tuple(line for line in lines if line.step < first), ""
    except (CoxswainError, OSError) as error:
        return (), f"steps before {first} are missing: those at {checkpoint.uri} cannot be read ({error})"


def is_location(text: str) -> bool:
    return text.startswith(("s3://", "file:"))
