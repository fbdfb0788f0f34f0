"""A second, slow implementation of membership in plain integers, to compare the fast one with.

It follows the documented algorithm and shares no code with `coxswain.membership`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from typing import NamedTuple

from coxswain.config import BatchConfig, MixConfig

WORD = 2**64
Lengths = list[list[int]]
"""Token counts of a source's samples, one list a block."""


def key(*parts: str | int) -> bytes:
    texts = [str(part).encode() for part in parts]
    return hashlib.sha256(
        b"coxswain permutation 1" + b"".join(len(t).to_bytes(4, "little") + t for t in texts)
    ).digest()


def image(size: int, name: bytes, position: int) -> int:
    """Walks the cycle of a Feistel network of six rounds over the least power of two >= size."""
    while True:
        position = _feistel(name, position, max(size - 1, 0).bit_length())
        if position < size:
            return position


def _feistel(name: bytes, word: int, bits: int) -> int:
    widths = [bits // 2, bits - bits // 2]
    left, right = divmod(word, 2 ** widths[1])
    stream = hashlib.shake_256(name).digest(48)
    for r in range(6):
        mixed = _splitmix((right + int.from_bytes(stream[8 * r : 8 * r + 8], "little")) % WORD)
        left, right = right, left ^ (mixed % 2 ** widths[r % 2])
    return left * 2 ** widths[1] + right


def _splitmix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def pass_order(seed: int, source: str, epoch: int, lengths: Lengths) -> list[tuple[int, int]]:
    """(index, length) of every draw of a pass: blocks are permuted, then samples in windows of 8."""
    first = [sum(len(block) for block in lengths[:b]) for b in range(len(lengths))]
    name = (seed, source, epoch)
    blocks = [image(len(lengths), key(*name, "blocks"), b) for b in range(len(lengths))]
    out = []
    for window in range((len(blocks) + 7) // 8):
        samples = [(first[b] + i, n) for b in blocks[8 * window : 8 * window + 8] for i, n in enumerate(lengths[b])]
        own = key(*name, "window", window)
        out += [samples[image(len(samples), own, n)] for n in range(len(samples))]
    return out


class Drawn(NamedTuple):
    """One sequence of a source."""

    sequence: tuple[str, int, int, int, int, int]  # source, pass, index, start, stop, length
    last: bool  # it ends the last sample of the last pass


def draws(mix: MixConfig, longest: int, name: str, passes: int, lengths: Lengths) -> Iterator[Drawn]:
    """The sequences of one source in order; `passes` 0: without end."""
    for epoch in range(passes) if passes else count():
        order = pass_order(mix.seed, name, epoch, lengths)
        for n, (index, length) in enumerate(order):
            pieces = _pieces(length, longest, mix.long_sequences)
            for at, (start, stop) in enumerate(pieces, start=1):
                last = at == len(pieces) and n == len(order) - 1 and epoch == passes - 1
                yield Drawn((name, epoch, index, start, stop, length), last)


def _pieces(length: int, longest: int, policy: str) -> list[tuple[int, int]]:
    if length <= longest:
        return [(0, length)]
    if policy == "Split":
        return [(at, min(at + longest, length)) for at in range(0, length, longest)]
    return [(0, longest)] if policy == "Truncate" else []


class Taken:
    """What one source has given so far."""

    def __init__(self, feed: Iterator[Drawn]) -> None:
        self.feed, self.tokens, self.total, self.left = feed, 0, 0, False


class Step(NamedTuple):
    """One step and the state behind it."""

    sequences: list[tuple[str, int, int, int, int, int]]
    exhausted: bool
    offset: int
    phase: int
    sources: dict[str, tuple[int, int, bool]]  # tokens in this phase, tokens in all, left the mix


def stream(mix: MixConfig, batch: BatchConfig, lengths: dict[str, Lengths]) -> Iterator[Step]:
    """Every step from the first on: each draw goes to the source that lacks most of its share."""
    longest = batch.max_sequence_tokens
    taken = {s.name: Taken(draws(mix, longest, s.name, s.max_passes, lengths[s.name])) for s in mix.sources}
    offset, phase = 0, 0
    every = [{s.name: s.weight for s in mix.sources}, *(p.weights for p in mix.phases)]
    for step in count():
        begun = [step >= p.from_step if p.from_step >= 0 else offset >= p.from_tokens for p in mix.phases]
        first = next((p for p in range(phase, len(begun)) if not begun[p]), len(begun))
        phase = _enter(taken, phase, first)
        sequences = []
        while offset < (step + 1) * batch.tokens_per_step:
            left = [p for p in range(phase, len(every)) if _active(every[p], taken)]
            if not left:
                break
            phase = _enter(taken, phase, left[0])
            active = _active(every[phase], taken)
            name = _largest_deficit(active, {n: taken[n].tokens for n in active})
            drawn = next(taken[name].feed, None)
            if drawn:
                size = drawn.sequence[4] - drawn.sequence[3]
                offset, taken[name].tokens, taken[name].total = (
                    n + size for n in (offset, taken[name].tokens, taken[name].total)
                )
                sequences.append(drawn.sequence)
            taken[name].left = not drawn or drawn.last
        ended = not any(_active(weights, taken) for weights in every[phase:])
        yield Step(sequences, ended, offset, phase, {n: (s.tokens, s.total, s.left) for n, s in taken.items()})


def _active(weights: dict[str, int], taken: dict[str, Taken]) -> dict[str, int]:
    return {n: weights[n] for n in sorted(taken) if weights.get(n) and not taken[n].left}


def _enter(taken: dict[str, Taken], phase: int, first: int) -> int:
    """Enters phase `first`, where it is a later one: all sources count their tokens from 0."""
    for source in taken.values() if first > phase else ():
        source.tokens = 0
    return first


def _largest_deficit(weights: dict[str, int], tokens: dict[str, int]) -> str:
    """Share of all tokens minus own tokens, in exact fractions; the first by name wins a tie."""
    everything = sum(tokens.values())
    deficits = {n: Fraction(w, sum(weights.values())) * everything - tokens[n] for n, w in weights.items()}
    return next(n for n in sorted(deficits) if deficits[n] == max(deficits.values()))
