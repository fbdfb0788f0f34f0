"""Sidecars of shards: the boxes of a shard in an object of its own, so that a manifest of a large world stays small.

The manifest says for each shard in which part of which tensors all its boxes lie. A rank opens only the sidecars that may
hold a part of what it needs: an owner has about the same rows of every layer, so these are few.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
import zstandard

from coxswain.boxes import Box
from coxswain.errors import Refused
from coxswain.wire import Hull, Listing, Shard, ShardContents
from coxswain_link.store import NotFound, Store

LARGE_WORLD = 128
"""Ranks from which on shards get sidecars."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def with_listing(store: Store, shard: Shard, generation: int = 0) -> Shard:
    """The shard with its boxes in a sidecar, which is stored first. `generation`: of the world, as in the shard itself."""
    data = zstandard.compress(msgspec.json.encode(ShardContents(shard.boxes, shard.kinds, generation)))
    key = _key(data)
    if not store.create(key, data):
        store.put(key, data)  # the object of this name may be damaged
    return Shard(shard.key, shard.bytes, (), (), Listing(key, len(data), hulls_of(shard.boxes)))


def with_boxes(store: Store, shards: Iterable[Shard], need: Iterable[Box] | None = None) -> Iterator[Shard]:
    """The shards with their boxes; without those that hold no part of the boxes in `need`, if given."""
    needed = None if need is None else hulls_of(need)
    for shard in shards:
        listing = shard.listing
        if not listing:
            yield shard
        elif needed is None or meet(listing.hulls, needed):
            found = _read(store, listing.key)
            yield Shard(shard.key, shard.bytes, found.boxes, found.kinds)


def hulls_of(boxes: Iterable[Box]) -> tuple[Hull, ...]:
    """The hulls of boxes of like tensors of several layers, whose names differ by the layer's number.

    A number may also count unlike ones: in a Sequential of a norm and a matrix, 0.weight is a row and 1.weight a table.
    """
    alike = defaultdict[tuple[str, int], list[tuple[int, Box]]](list)
    for box in set(boxes):
        number = _NUMBER.search(box.name)
        like = _NUMBER.sub("*", box.name, count=1), len(box.shape)
        alike[like].append((int(number[0]) if number else 0, box))
    return tuple(_hull(tensors, alike[tensors, dimensions]) for tensors, dimensions in sorted(alike))


def _hull(tensors: str, boxes: list[tuple[int, Box]]) -> Hull:
    numbers = [number for number, _ in boxes]
    starts = zip(*(box.offset for _, box in boxes), strict=True)
    stops = zip(*([o + n for o, n in zip(box.offset, box.shape, strict=True)] for _, box in boxes), strict=True)
    return Hull(tensors, min(numbers), max(numbers), tuple(map(min, starts)), tuple(map(max, stops)))


def meet(some: Iterable[Hull], others: Iterable[Hull]) -> bool:
    """Whether a hull of each of the two have an element in common."""
    by_kind = {_kind(hull): hull for hull in others}
    return any(_kind(hull) in by_kind and _overlap(hull, by_kind[_kind(hull)]) for hull in some)


def _kind(hull: Hull) -> tuple[str, int]:
    """The tensors' name and their dimensions: boxes have one hull of a kind."""
    return hull.tensors, len(hull.start)


def _overlap(one: Hull, other: Hull) -> bool:
    inside = zip(one.start, one.stop, other.start, other.stop, strict=True)
    return one.first <= other.last and other.first <= one.last and all(a < d and c < b for a, b, c, d in inside)


def _read(store: Store, key: str) -> ShardContents:
    try:
        data = store.get(key)
    except NotFound as error:
        raise torn(f"{key} is missing") from error
    if key != _key(data):
        raise torn(f"{key} is damaged: its content is not what its name says")
    return msgspec.json.decode(zstandard.decompress(data), type=ShardContents)


def _key(data: bytes) -> str:
    return f"shards/{hashlib.sha256(data).hexdigest()}.boxes.json.zst"


def torn(what: str) -> Refused:
    return Refused(
        "TornCheckpoint",
        f"{what}; restore it, or delete this checkpoint's manifest to resume from the one before (with "
        "`cox run --accept-older-checkpoint`)",
    )
