"""Reads weights in Hugging Face's layout from safetensors files (`model.initFrom`), by rows, into any boxes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coxswain.boxes import Box
from coxswain.config import EndpointConfig, ModelConfig
from coxswain.errors import Refused
from coxswain.uris import folder_and_key
from coxswain_link.store import BucketNotFound, NotFound, Store, open_store
from coxswain_train.checkpoint.huggingface import differences

HEAD = "lm_head.weight"
_DERIVED = ("rotary_emb.inv_freq",)  # buffers that older files carry and that follow from the config
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor is stored: bytes from `start` of the object `key`."""

    key: str
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def load_pretrained(
    uri: str, state: Mapping[Box, Tensor], shapes: Mapping[str, tuple[int, ...]], secrets: Path | None = None,
    endpoint: EndpointConfig | None = None, model: ModelConfig | None = None, ids: int = 0,
) -> None:  # fmt: skip
    """Fills boxes of parameters from a safetensors file or a folder of them, reading only the rows that are needed.

    `shapes` are those of the whole model; with `model` a config.json beside the weights is compared first. Of the rows
    of the vocabulary that the file lacks (the job rounds it up to 64), the tokenizer's `ids` keep their values and the rest
    becomes zero; with 0 all keep them. Raises Refused "ForeignWeights"
    where the files are damaged, lack a weight, have an unknown one, or where shapes or config do not fit.
    """
    store, keys = _open(uri, secrets, endpoint)
    if model is not None:
        _check_config(store, uri, model)
    stored = {name: entry for key in keys for name, entry in _header(store, key)}
    _check(uri, stored, shapes)
    for box, values in state.items():
        _fill(store, stored[box.name], box, values)
        if ids and stored[box.name].shape != shapes[box.name]:
            values[max(0, max(ids, stored[box.name].shape[0]) - box.offset[0]) :] = 0


def _open(uri: str, secrets: Path | None, endpoint: EndpointConfig | None) -> tuple[Store, list[str]]:
    folder, name = folder_and_key(uri) if uri.endswith(".safetensors") else (uri, "")
    try:
        store = open_store(folder, endpoint or EndpointConfig(), secrets)
        keys = (
            [name]
            if name and store.exists(name)
            else [o.path for o in store.list() if not name and _is_weights(o.path)]
        )
    except (NotFound, BucketNotFound) as error:
        raise _foreign(uri, "does not exist") from error
    if not keys:
        raise _foreign(uri, "holds no safetensors file" if not name else "does not exist")
    return store, keys


def _is_weights(path: str) -> bool:
    return path.endswith(".safetensors") and "/" not in path


def _check_config(store: Store, uri: str, model: ModelConfig) -> None:
    """Accepts a folder without a config.json."""
    try:
        found = json.loads(store.get("config.json"))
    except NotFound:
        return
    except ValueError as error:
        raise _foreign(uri, f"has a config.json that is no JSON ({error})") from error
    if wrong := list(differences(found, model)):
        raise _foreign(uri, f"has another config.json: {'; '.join(wrong)}")


def _check(uri: str, stored: Mapping[str, Stored], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every weight of the model is in the files, and every weight of the files in the model."""
    for name, shape in shapes.items():
        entry = stored.get(name)
        if entry is None or not _fits(entry.shape, shape):
            found = "is missing" if entry is None else f"has shape {list(entry.shape)}"
            hint = " (its head is tied: set model.config.head to Tied)" if name == HEAD and entry is None else ""
            raise _foreign(uri, f"{name} {found}, this model needs {list(shape)}{hint}")
    unknown = sorted(name for name in stored.keys() - shapes.keys() if not name.endswith(_DERIVED))
    if unknown:
        hint = " (its head is its own: set model.config.head to Untied)" if unknown == [HEAD] else ""
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise _foreign(uri, f"this model has no {', '.join(unknown[:3])}{more}{hint}")


def _foreign(uri: str, what: str) -> Refused:
    return Refused(
        "ForeignWeights", f"model.initFrom {uri!r}: {what}; change model.config, or give the weights of this model"
    )


def _header(store: Store, key: str) -> Iterator[tuple[str, Stored]]:
    """The table at the beginning of a safetensors file: its length in 8 bytes, then JSON."""
    where, size = f"{store.uri.rstrip('/')}/{key}", store.head(key).size
    try:
        length = int.from_bytes(store.get_range(key, 0, min(8, size)), "little")
        if not 0 < length <= size - 8:
            raise ValueError(f"its table has {length} bytes, the file {size}")
        table = json.loads(store.get_range(key, 8, 8 + length))
        table.pop("__metadata__", None)
        found = [(name, _stored(key, 8 + length, name, entry)) for name, entry in table.items()]
        ends = [8 + length + entry["data_offsets"][1] for entry in table.values()]
        if max(ends, default=size) != size:
            raise ValueError(f"its tensors end at byte {max(ends)}, the file at {size}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _foreign(where, f"is damaged or no safetensors file ({error})") from error
    yield from found


def _stored(key: str, begin: int, name: str, entry: Mapping[str, Any]) -> Stored:
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"{name} is of type {entry['dtype']}; allowed are {', '.join(_DTYPES)}")
    return Stored(key, begin + entry["data_offsets"][0], _DTYPES[entry["dtype"]], tuple(entry["shape"]))


def _fits(found: tuple[int, ...], needed: tuple[int, ...]) -> bool:
    """Equal, or shorter by less than the 64 rows to which a vocabulary is rounded up."""
    return found[1:] == needed[1:] and 0 <= needed[0] - found[0] < 64 and (len(needed) > 1 or found == needed)


def _fill(store: Store, entry: Stored, box: Box, values: Tensor) -> None:
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
        values[: last - first].copy_(rows[(slice(None), *columns)])
