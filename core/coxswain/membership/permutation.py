"""A keyed permutation of [0, n): constant memory, random access, the same on every machine.

A Feistel network over the smallest power of two that holds n, with cycle walking: an image outside
[0, n) goes through again until it falls inside (Black and Rogaway, CT-RSA 2002). Halves may differ
by one bit, so the domain is below 2n and a walk takes less than two passes on average.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VERSION = 1
"""Version of all that orders the stream: permutation, windows, draw. Another one cannot resume."""

_ROUNDS = 6  # even, so that uneven halves are back in place at the end
_Words = NDArray[np.uint64]


def key_of(*parts: str | int) -> bytes:
    """Names one permutation, e.g. (seed, source, pass). Length prefixes keep tuples apart."""
    h = hashlib.sha256(f"coxswain permutation {VERSION}".encode())
    for part in parts:
        text = str(part).encode()
        h.update(len(text).to_bytes(4, "little") + text)
    return h.digest()


@dataclass(frozen=True, slots=True)
class Permutation:
    """The bijection of [0, size) that `key` names."""

    size: int
    key: bytes

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Images of `positions` (each in [0, size))."""
        keys, bits = self._round_keys(), (self.size - 1).bit_length()
        out = _feistel(positions.astype(np.uint64), keys, bits)
        outside = np.flatnonzero(out >= self.size)
        while outside.size:
            out[outside] = _feistel(out[outside], keys, bits)
            outside = outside[out[outside] >= self.size]
        return out.astype(np.int64)

    def _round_keys(self) -> list[np.uint64]:
        stream = hashlib.shake_256(self.key).digest(8 * _ROUNDS)
        return [np.uint64(int.from_bytes(stream[8 * r : 8 * r + 8], "little")) for r in range(_ROUNDS)]


def _feistel(x: _Words, keys: list[np.uint64], bits: int) -> _Words:
    """Passes `bits`-bit words through all rounds.

    The left half has bits // 2 bits; the halves change places each round.
    """
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = x >> np.uint64(right_bits), x & _mask(right_bits)
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & _mask(left_bits))
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


def _mix(x: _Words) -> _Words:
    """The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
