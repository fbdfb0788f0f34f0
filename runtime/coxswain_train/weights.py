"""Weights in Hugging Face's layout: safetensors files in (`model.initFrom`), by rows, and one file out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import Tensor

from coxswain.boxes import Box
from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain_link.store import Store, open_store

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies: bytes from `start` of the object `key`."""

    key: str
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def load_pretrained(
    uri: str, state: Mapping[Box, Tensor], shapes: Mapping[str, tuple[int, ...]], secrets: Path | None = None
) -> None:
    """Fills boxes of parameters from a safetensors file or a folder of them, reading only the rows that are needed.

    Rows of the vocabulary beyond those of the file keep their values (ours is rounded up to 64). Raises Refused
    "ForeignWeights" where names or shapes do not fit.
    """
    store, keys = _open(uri, secrets)
    stored = {name: entry for key in keys for name, entry in _header(store, key)}
    for box, room in state.items():
        entry = stored.get(box.name)
        if entry is None or not _fits(entry.shape, shapes[box.name]):
            found = "is missing" if entry is None else f"has shape {list(entry.shape)}"
            raise Refused(
                "ForeignWeights",
                f"model.initFrom {uri!r}: {box.name} {found}, this model needs {list(shapes[box.name])}; "
                "change model.config or the file",
            )
        _fill(store, entry, box, room)


def _open(uri: str, secrets: Path | None) -> tuple[Store, list[str]]:
    if not uri.endswith(".safetensors"):
        store = open_store(uri, EndpointConfig(), secrets)
        return store, [o.path for o in store.list() if o.path.endswith(".safetensors")]
    parts = urlsplit(uri)
    folder, _, name = parts.path.rpartition("/")
    return open_store(f"{parts.scheme}://{parts.netloc}{folder}", EndpointConfig(), secrets), [name]


def _header(store: Store, key: str) -> Iterable[tuple[str, Stored]]:
    """The table at the beginning of a safetensors file: its length in 8 bytes, then JSON."""
    size = int.from_bytes(store.get_range(key, 0, 8), "little")
    for name, entry in json.loads(store.get_range(key, 8, 8 + size)).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise Refused(
                "ForeignWeights", f"{key}: {name} is of type {entry['dtype']}; allowed are {', '.join(_DTYPES)}"
            )
        start = 8 + size + entry["data_offsets"][0]
        yield name, Stored(key, start, _DTYPES[entry["dtype"]], tuple(entry["shape"]))


def _fits(found: tuple[int, ...], needed: tuple[int, ...]) -> bool:
    """Equal, or shorter by less than the 64 rows to which a vocabulary is rounded up."""
    return found[1:] == needed[1:] and 0 <= needed[0] - found[0] < 64 and (len(needed) > 1 or found == needed)


def _fill(store: Store, entry: Stored, box: Box, room: Tensor) -> None:
    first, last = box.offset[0], min(box.offset[0] + box.shape[0], entry.shape[0])
    if first >= last:
        return
    row = entry.dtype.itemsize
    for size in entry.shape[1:]:
        row *= size
    data = bytearray(store.get_range(entry.key, entry.start + first * row, entry.start + last * row))
    rows = torch.frombuffer(data, dtype=entry.dtype).view(last - first, *entry.shape[1:])
    columns = tuple(slice(o, o + n) for o, n in zip(box.offset[1:], box.shape[1:], strict=True))
    with torch.no_grad():
        room[: last - first].copy_(rows[(slice(None), *columns)])
