"""Digests of 64 bits, summed modulo 2^64 on the device that has the values: of a message, and of state by content.

A content's digest is a sum over elements of their bits times an odd number of their place in the whole tensor. So it does
not depend on how boxes are cut: the sums of all ranks are equal before and after a change of layout.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coxswain.boxes import Box

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_MASK, _LOW = (1 << 64) - 1, (1 << 32) - 1
_CHUNKS = {"cpu": 1 << 17}  # elements that are multiplied at a time: what is made of them stays in the cache
_LARGE_CHUNK = 1 << 22  # on other devices, where a call costs more than what it moves


def digest_of(values: Tensor) -> int:
    """Of dense values in their order, or of a flat buffer of bytes, whose number is a multiple of 8. Signed."""
    words, most = values.reshape(-1).view(_BITS.get(values.element_size(), torch.int64)), _chunk(values.device)
    factors = _span(0, min(most, len(words)), words.device, "message")
    return _read(
        [_message(part, factors[: len(part)]) * (2 * n + 1) for n, part in enumerate(torch.split(words, most))]
    )


def _message(words: Tensor, factors: Tensor) -> Tensor:
    """The sum of words times factors, modulo 2^64."""
    if _is_narrow(words):
        return torch.from_numpy(_dots_of_narrow(words[None], factors))
    return _numbers(words).mul_(factors).sum(0, keepdim=True)


def chained(digests: Sequence[int]) -> int:
    """One of several, in their order. Signed."""
    return _signed(sum(digest * (2 * place + 1) for place, digest in enumerate(digests)))


Known = dict[tuple[str, Box], list[Tensor]]
"""Contents of boxes, by kind, in parts, on the device that has their values."""


def content_of(state: Mapping[str, Mapping[Box, Tensor]], known: Known | None = None) -> int:
    """Of state, by kind and box. Modulo 2^64; contents add up. Waits for the device once.

    `known`: what is in there is not computed; it gets the others.
    """
    known = {} if known is None else known
    boxes = [(kind, box, values) for kind, boxes in state.items() for box, values in boxes.items()]
    for kind, box, values in boxes:
        if (kind, box) not in known:
            known[kind, box] = list(_sums(kind, box, values))
    return _read([part for kind, box, _ in boxes for part in known[kind, box]]) & _MASK


def _sums(kind: str, box: Box, values: Tensor) -> Iterator[Tensor]:
    """Parts of a box's content, modulo 2^64."""
    matrix = values.reshape(box.shape[0], -1).view(_BITS[values.element_size()])
    left = box.offset[1] * (matrix.shape[1] // box.shape[1]) if len(box.shape) > 1 else 0
    columns = _span(left, matrix.shape[1], values.device, "columns")
    rows = _span(box.offset[0], len(matrix), values.device, "rows")
    salt = 2 * zlib.crc32(f"{kind} {box.name}".encode()) + 1
    if _is_narrow(matrix):
        yield torch.from_numpy(_dots_of_narrow(matrix, columns)[None] @ rows.numpy()).mul_(salt)
        return
    each = max(1, _chunk(values.device) // matrix.shape[1])
    for part, factors in zip(torch.split(matrix, each), torch.split(rows, each), strict=True):
        yield (_numbers(part).mul_(columns).sum(1) * factors).sum(0, keepdim=True) * salt


def _is_narrow(words: Tensor) -> bool:
    """Whether numpy sums them up: it converts words in its own small buffers, which takes half the time of torch on a processor.
    Words of 64 bits need more than a conversion."""
    return words.device.type == "cpu" and words.dtype != torch.int64


def _dots_of_narrow(words: Tensor, factors: Tensor) -> npt.NDArray[np.int64]:
    """Each row's sum of words times factors, modulo 2^64."""
    found: npt.NDArray[np.int64] = np.einsum("ij,j->i", words.numpy(), factors.numpy())
    return found


def _chunk(device: torch.device) -> int:
    return _CHUNKS.get(device.type, _LARGE_CHUNK)


def _read(sums: list[Tensor]) -> int:
    """Their sum, signed."""
    return int(torch.cat(sums).sum()) if sums else 0


def _numbers(words: Tensor) -> Tensor:
    """Words as numbers of 64 bits, of the caller's own: products of two types take ten times as long.

    The top bit of a word of 64 bits, a sign in fp64, would count 2^63 whatever its place: two of them would cancel. So the
    high half is put over the low one.
    """
    return words ^ ((words >> 32) & _LOW) if words.dtype == torch.int64 else words.to(torch.int64)


def _span(start: int, length: int, device: torch.device, salt: str) -> Tensor:
    return _factors(_power(start + length), device, salt)[start : start + length]


def _power(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()


@lru_cache(maxsize=64)
def _factors(length: int, device: torch.device, salt: str) -> Tensor:
    """Odd numbers of 64 bits, the same everywhere; a longer list begins with the shorter one."""
    places = torch.arange(length, dtype=torch.int64)
    mixed = (places + zlib.crc32(salt.encode())) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    return ((mixed ^ (mixed >> 27)) | 1).to(device)


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def halves(value: int) -> tuple[float, float]:
    """A number modulo 2^64 as two that fp64 holds exactly."""
    return float((value & _MASK) >> 32), float(value & 0xFFFFFFFF)


def whole(high: float, low: float) -> int:
    return (int(high) << 32) + int(low)
