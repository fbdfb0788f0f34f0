"""Reads weights in Hugging Face's layout from safetensors files (`model.initFrom`), by rows, into any boxes.

Every element of every box gets a value: what the files lack is refused by name, but for the rows that round a vocabulary up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from coxswain.boxes import Box
from coxswain.config import EndpointConfig, ModelConfig
from coxswain_link.store import NotFound, Store
from coxswain_train.checkpoint.foreign_files import (
    NOT_AS_AGREED,
    PIECE_BYTES,
    Stored,
    foreign,
    open_files,
    rows_of,
    tensors_of,
)
from coxswain_train.checkpoint.huggingface import differences

log = logging.getLogger(__name__)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROUNDING = 64  # a vocabulary that follows the tokenizer is a multiple of it
_DERIVED = ("rotary_emb.inv_freq",)  # buffers that older files carry and that follow from the config


def load_pretrained(
    uri: str, state: Mapping[Box, Tensor], shapes: Mapping[str, tuple[int, ...]], secrets: Path | None = None,
    endpoint: EndpointConfig | None = None, model: ModelConfig | None = None, ids: int = 0, piece_bytes: int = PIECE_BYTES,
) -> None:  # fmt: skip
    """Fills boxes of parameters from a safetensors file or a folder of them, reading only the rows that are needed.

    `piece_bytes`: of a tensor, in memory at one time.

    `shapes` are those of the whole model; with `model` a config.json beside the weights is compared first. The vocabulary's
    tables may lack the rows that round it up, which no id of the tokenizer needs: with `ids` of them known, these rows become
    zero. A head beside a tied model's embedding must have its rows. Raises Refused "ForeignWeights" where the files are damaged,
    lack a weight, have an unknown one, or where shapes or config do not fit.
    """
    store, keys = open_files(uri, secrets, endpoint)
    has_config = model is not None and _check_config(store, uri, model)
    stored = tensors_of(store, uri, keys)
    _check(uri, stored, shapes, ids, has_config)
    for box, values in state.items():
        if box.name == EMBEDDING and HEAD in stored and HEAD not in shapes:
            _check_tied(store, uri, stored, box, has_config, piece_bytes)
        _fill(store, stored[box.name], box, values, piece_bytes)


def _check_config(store: Store, uri: str, model: ModelConfig) -> bool:
    """Whether there is a config.json. Without one only the tensors' shapes say which model it is."""
    try:
        found = json.loads(store.get("config.json"))
        wrong = [] if model.custom is not None else list(differences(found, model))
    except NotFound:
        log.warning("model.initFrom %r has no config.json: rotation, heads and norms are not compared", uri)
        return False
    except NOT_AS_AGREED as error:
        raise foreign(uri, f"has a config.json that is none of a model ({error})") from error
    if wrong:
        raise foreign(uri, f"has another config.json: {'; '.join(wrong)}")
    return True


def _check(
    uri: str, stored: Mapping[str, Stored], shapes: Mapping[str, tuple[int, ...]], ids: int, has_config: bool
) -> None:
    """Every weight of the model is in the files, and every weight of the files in the model, but for a tied head."""
    for name, shape in shapes.items():
        entry = stored.get(name)
        if entry is None:
            hint = _head_hint("tied: set model.config.head to Tied", has_config, "false") if name == HEAD else ""
            raise foreign(uri, f"{name} is missing, this model needs {list(shape)}{hint}")
        if entry.shape != shape and not _is_rounded_up(name, entry.shape, shape, ids):
            hint = _vocabulary_hint(entry.shape, shape, ids) if name in (EMBEDDING, HEAD) else ""
            raise foreign(uri, f"{name} has shape {list(entry.shape)}, this model needs {list(shape)}{hint}")
    known = shapes.keys() | ({HEAD} if EMBEDDING in shapes else set())
    unknown = sorted(name for name in stored.keys() - known if not name.endswith(_DERIVED))
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise foreign(uri, f"this model has no {', '.join(unknown[:3])}{more}")


def _check_tied(
    store: Store, uri: str, stored: Mapping[str, Stored], box: Box, has_config: bool, piece_bytes: int
) -> None:
    """Published files of tied models may hold the head too. Each worker compares the rows that it reads."""
    table, head = stored[EMBEDDING], stored[HEAD]
    rows = box.offset[0], min(box.offset[0] + box.shape[0], table.shape[0])
    both = (rows_of(store, each, *rows, piece_bytes) for each in (table, head))
    if not _are_alike(table, head) or not all(torch.equal(a, b) for (_, a), (_, b) in zip(*both, strict=True)):
        hint = _head_hint("its own: set model.config.head to Untied", has_config, "true")
        raise foreign(uri, f"{HEAD} is not equal to {EMBEDDING}, and this model's head is tied{hint}")


def _are_alike(table: Stored, head: Stored) -> bool:
    return (table.shape, table.dtype) == (head.shape, head.dtype)


def _head_hint(means: str, has_config: bool, says: str) -> str:
    """A config.json has been found to be the model's: only the files can be wrong."""
    if has_config:
        return f" (config.json says tie_word_embeddings: {says}: correct it, or the files)"
    return f" (its head is {means})"


def _is_rounded_up(name: str, found: tuple[int, ...], needed: tuple[int, ...], ids: int) -> bool:
    """A table of the vocabulary that lacks only rows of no id."""
    is_table = name in (EMBEDDING, HEAD) and len(found) == len(needed) == 2 and found[1] == needed[1]
    return is_table and 0 < ids <= found[0] and 0 < needed[0] - found[0] < ROUNDING


def _vocabulary_hint(found: tuple[int, ...], needed: tuple[int, ...], ids: int) -> str:
    if found[1:] != needed[1:]:
        return ""
    if ids > found[0]:
        return f" (the tokenizer has {ids} ids: give the tokenizer of these weights, or add rows to them)"
    return f" (set model.config.vocabulary to {found[0]})"


def _fill(store: Store, entry: Stored, box: Box, values: Tensor, piece_bytes: int) -> None:
    """Rows behind the file's last one are those that round the vocabulary up: zero."""
    begin, end = box.offset[0], box.offset[0] + box.shape[0]
    stop = min(end, entry.shape[0])
    columns = tuple(slice(o, o + n) for o, n in zip(box.offset[1:], box.shape[1:], strict=True))
    with torch.no_grad():
        for row, rows in rows_of(store, entry, begin, stop, piece_bytes):
            values[row - begin : row - begin + len(rows)].copy_(rows[(slice(None), *columns)])
        values[max(0, stop - begin) :] = 0
