"""Initial values of parameters from a counter: the same for any box of any layout.

Element `i` of the tensor `name` is a normal variate from words 2i and 2i+1 of a stream keyed (job seed, name), by the
finalizer of splitmix64 and Box-Muller. No element depends on another, so a box computes just its own.
"""

from __future__ import annotations

import hashlib
import struct
from math import prod

import numpy as np
from numpy.typing import NDArray

from coxswain.boxes import Box
from coxswain.config import ModelConfig

_ELEMENTS = 1 << 20  # about so many at one time, in whole rows
_STD = 0.02


def init_box(seed: int, box: Box, shape: tuple[int, ...], model: ModelConfig) -> NDArray[np.float32]:
    """Values of a box of the parameter `box.name`, whose whole shape is `shape`. Norms begin at one, biases at zero."""
    if (bias := box.name.endswith("bias")) or len(shape) == 1:
        return np.full(box.shape, not bias, dtype=np.float32)
    key, out = _key(seed, box.name), np.empty(box.shape, dtype=np.float32)
    rows = max(1, _ELEMENTS // prod(box.shape[1:]))
    for start in range(0, len(out), rows):
        part = out[start : start + rows]
        place = Box(box.name, (box.offset[0] + start, *box.offset[1:]), part.shape)
        part[...] = _normal(key, _offsets(place, shape))
    out *= np.float32(_deviation(box.name, model))
    return out


def _deviation(name: str, model: ModelConfig) -> float:
    """Divides projections into the residual stream by the square root of their number, as GPT-2 does."""
    residual = name.endswith(("o_proj.weight", "down_proj.weight", "c_proj.weight"))
    return _STD / (2 * model.layers) ** 0.5 if residual else _STD


def _offsets(box: Box, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Row-major offset of every element of the box within the whole tensor."""
    out: NDArray[np.uint64] = np.zeros(1, dtype=np.uint64)
    for offset, size, whole in zip(box.offset, box.shape, shape, strict=True):
        along = np.arange(offset, offset + size, dtype=np.uint64)
        out = np.asarray(out[..., None] * np.uint64(whole) + along, dtype=np.uint64)
    return out


def _key(seed: int, name: str) -> np.uint64:
    digest = hashlib.sha256(struct.pack("<q", seed) + name.encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def _normal(key: np.uint64, offsets: NDArray[np.uint64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        first, second = (_uniform(key + (offsets << np.uint64(1)) + np.uint64(i)) for i in (0, 1))
    radius: NDArray[np.float64] = np.sqrt(-2.0 * np.log(first))
    return radius * np.cos(2.0 * np.pi * second)


def _uniform(counter: NDArray[np.uint64]) -> NDArray[np.float64]:
    """In (0, 1]. splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    x = counter * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
