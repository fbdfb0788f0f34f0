"""The two digests that prove the stream.

`stream_digest` covers what was loaded, `delivered_digest` what was trained on.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from coxswain.membership.values import Sequence

STREAM_SEED = hashlib.sha256(b"coxswain stream v1").hexdigest()
_MASK = 0xFFFFFFFFFFFFFFFF


def tokens_digest(tokens: NDArray[np.integer]) -> str:
    """SHA-256 of token ids as little-endian uint32, as the loader served them."""
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<u4").tobytes()).hexdigest()


def chain(previous: str, step: int, sequences: Seq[Sequence], token_digests: Seq[str]) -> str:
    """Returns the stream digest after `step`.

    It covers the previous digest, the step's number and its sequences in membership order.
    """
    h = hashlib.sha256(bytes.fromhex(previous))
    h.update(struct.pack("<Q", step))
    for s, digest in zip(sequences, token_digests, strict=True):
        name = s.source.encode()
        h.update(struct.pack("<I", len(name)) + name + struct.pack("<QQQQ", s.epoch, s.index, s.start, s.stop))
        h.update(bytes.fromhex(digest))
    return h.hexdigest()


def delivered(sequence: int | NDArray[np.integer], positions: NDArray[np.integer], tokens: NDArray[np.integer]) -> int:
    """Sums a 64-bit mix of (sequence's place, position in it, token id) modulo 2^64.

    `positions` and `tokens` have one entry per token, `sequence` too if there are several. Any
    slicing of a step's sequences gives the same total.
    """
    with np.errstate(over="ignore"):
        x = (positions.astype(np.uint64) << np.uint64(32)) | tokens.astype(np.uint64)
        x ^= _mix(np.atleast_1d(sequence).astype(np.uint64) + np.uint64(1))
        return int(_mix(x).sum(dtype=np.uint64))


def add(a: int, b: int) -> int:
    return (a + b) & _MASK


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64-bit words."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
