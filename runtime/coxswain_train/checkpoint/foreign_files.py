"""Safetensors files of others, in any store: which there are, where each tensor lies, and its rows, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from torch import Tensor

from coxswain.config import EndpointConfig
from coxswain.errors import Refused
from coxswain.structs import prepare
from coxswain.uris import folder_and_key
from coxswain_link.store import BucketNotFound, NotFound, Store, open_store

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PIECE_BYTES = 16 << 20  # of a tensor, in memory at one time
TABLE_BYTES = 100_000_000  # at most, as the safetensors library has it
NOT_AS_AGREED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""What is raised where others' JSON is not as agreed."""
_Count = Annotated[int, msgspec.Meta(ge=0)]
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class _Entry(msgspec.Struct):
    """Of a tensor, in a file's table. Offsets count from the table's end."""

    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]  # by tensor, the name of its file


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor is stored: bytes from `start` of the object `key` with that etag."""

    key: str
    etag: str
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize


def foreign(uri: str, what: str) -> Refused:
    return Refused(
        "ForeignWeights", f"model.initFrom {uri!r}: {what}; change model.config, or give the weights of this model"
    )


def open_files(uri: str, secrets: Path | None, endpoint: EndpointConfig | None) -> tuple[Store, list[str]]:
    """The store and the keys of a file, or of those of a folder that `transformers` reads; all, where it has no index."""
    folder, name = folder_and_key(uri) if uri.endswith(".safetensors") else (uri, "")
    try:
        store = open_store(folder, endpoint or EndpointConfig(), secrets)
        if name and not store.exists(name):
            raise foreign(uri, "does not exist")
        keys = [name] if name else _of_folder(store, uri)
    except (NotFound, BucketNotFound) as error:
        raise foreign(uri, "does not exist") from error
    if not keys:
        raise foreign(uri, "holds no safetensors file")
    return store, keys


def tensors_of(store: Store, uri: str, keys: list[str]) -> dict[str, Stored]:
    """Every tensor of the files. Raises Refused where a file is absent or damaged, or where two have one tensor."""
    found: dict[str, Stored] = {}
    for key in keys:
        for name, entry in _header(store, uri, key):
            if name in found:
                raise foreign(uri, f"{name} is in {found[name].key} and in {key}")
            found[name] = entry
    return found


def rows_of(
    store: Store, entry: Stored, first: int, last: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[int, Tensor]]:
    """Rows [first, last) of a tensor: the number of the first row of a piece, and the piece (a row at least)."""
    step = max(1, piece_bytes // max(1, entry.row_bytes))
    for row in range(first, last, step):
        stop = min(row + step, last)
        begin, end = (entry.start + at * entry.row_bytes for at in (row, stop))
        data = bytearray(store.get_range(entry.key, begin, end, entry.etag))
        yield row, torch.frombuffer(data, dtype=entry.dtype).view(stop - row, *entry.shape[1:])


def _of_folder(store: Store, uri: str) -> list[str]:
    """`save_pretrained` leaves the index of an earlier save beside a single file: the index does not name it then."""
    named = _indexed(store, uri)
    if named and SINGLE not in named and store.exists(SINGLE):
        return [SINGLE]
    return named or [o.path for o in store.list() if _is_weights(o.path)]


def _is_weights(path: str) -> bool:
    return path.endswith(".safetensors") and "/" not in path


def _indexed(store: Store, uri: str) -> list[str]:
    """The files that the folder's index names; empty without an index."""
    try:
        return sorted(set(msgspec.json.decode(store.get(INDEX), type=_Index).weight_map.values()))
    except NotFound:
        return []
    except NOT_AS_AGREED as error:
        raise foreign(uri, f"has a damaged {INDEX} ({error})") from error


def _header(store: Store, uri: str, key: str) -> Iterator[tuple[str, Stored]]:
    """The table at the beginning of a safetensors file: its length in 8 bytes, then JSON."""
    where = f"{store.uri.rstrip('/')}/{key}"
    try:
        listed = store.head(key)
        size, etag = listed.size, listed.etag
        length = int.from_bytes(store.get_range(key, 0, min(8, size), etag), "little")
        if not 0 < length <= min(size - 8, TABLE_BYTES):
            raise ValueError(f"its table has {length} bytes, the file {size}; a table has at most {TABLE_BYTES}")
        table = _table(store.get_range(key, 8, 8 + length, etag))
        found = [(name, _stored(key, etag, 8 + length, name, entry)) for name, entry in table.items()]
        ends = [8 + length + entry.data_offsets[1] for entry in table.values()]
        if max(ends, default=size) != size:
            raise ValueError(f"its tensors end at byte {max(ends)}, the file at {size}")
    except NotFound as error:
        raise foreign(uri, f"its {INDEX} names {key}, which does not exist") from error
    except NOT_AS_AGREED as error:
        raise foreign(where, f"is damaged or no safetensors file ({error})") from error
    yield from found


def _table(data: bytes) -> dict[str, _Entry]:
    entries = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    entries.pop("__metadata__", None)
    return {name: msgspec.json.decode(entry, type=_Entry) for name, entry in entries.items()}


def _stored(key: str, etag: str, begin: int, name: str, entry: _Entry) -> Stored:
    if entry.dtype not in _DTYPES:
        raise ValueError(f"{name} is of type {entry.dtype}; allowed are {', '.join(_DTYPES)}")
    start, stop = entry.data_offsets
    found = Stored(key, etag, begin + start, _DTYPES[entry.dtype], entry.shape)
    if stop - start != prod(found.shape) * found.dtype.itemsize:
        raise ValueError(f"{name} has {stop - start} bytes, which are not those of {entry.dtype} {list(found.shape)}")
    return found


prepare(__name__)
