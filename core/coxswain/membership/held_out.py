"""The documents of each source that are evaluated and, in no pass, trained on.

They are the first of a pass of their own, so neither weights nor phases nor failures change them: they follow from the
mix's seed, the source, its index, and how many tokens are evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from coxswain.config import BatchConfig, MixConfig
from coxswain.errors import Refused
from coxswain.membership.draw import LongSequences
from coxswain.membership.order import Fetch, PassOrder, SourceView, fetch_nothing
from coxswain.membership.values import Sequence

EVALUATION_PASS = -1
"""Passes that are trained on count from 0. In keys and in the sequences of an evaluation."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """`sequences` are evaluated, the same each time; `indices` of samples, by source, are left out of every pass."""

    sequences: tuple[Sequence, ...] = ()
    indices: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def of(self, source: str) -> frozenset[int]:
        return self.indices.get(source, frozenset())


NOTHING = HeldOut()


def hold_out(
    mix: MixConfig, batch: BatchConfig, views: Mapping[str, SourceView], tokens: int, fetch: Fetch = fetch_nothing
) -> HeldOut:
    """Chooses `tokens` tokens, in equal parts from all sources; 0: none.

    Raises Refused when that takes more than half of a source's documents. Reads lengths of blocks: it may block.
    """
    names = sorted(s.name for s in mix.sources) if tokens else []
    shares = [tokens * (n + 1) // len(names) - tokens * n // len(names) for n in range(len(names))]
    orders = {name: PassOrder(mix.seed, views[name], EVALUATION_PASS) for name in names}
    if blocks := {name: orders[name].to_fetch(0, most=1) for name, share in zip(names, shares, strict=True) if share}:
        fetch(blocks)
    found = [
        sequence
        for name, share in zip(names, shares, strict=True)
        for sequence in _of_source(mix, views[name], orders[name], share, batch.max_sequence_tokens)
    ]
    return HeldOut(tuple(found), {n: frozenset(s.index for s in found if s.source == n) for n in names})


def _of_source(mix: MixConfig, view: SourceView, order: PassOrder, tokens: int, longest: int) -> Iterator[Sequence]:
    """Sequences of `tokens` tokens in all. The last one is cut: a long document does not make evaluations longer."""
    most = view.samples // 2
    n = held = 0
    while tokens > 0:
        if n >= view.samples or held >= most:
            raise _too_few(view, tokens)
        index, length = order.at(n)
        n += 1
        for start, stop in _pieces(length, longest, mix.long_sequences):
            if tokens > 0:
                stop = min(stop, start + tokens)
                yield Sequence(view.name, EVALUATION_PASS, index, start, stop, length)
                tokens -= stop - start
                held += start == 0


def _pieces(length: int, longest: int, policy: LongSequences) -> Iterator[tuple[int, int]]:
    if length <= longest or policy == "Truncate":
        yield 0, min(length, longest)
    elif policy == "Split":
        for start in range(0, length, longest):
            yield start, min(start + longest, length)


def _too_few(view: SourceView, lacking: int) -> Refused:
    return Refused(
        "EvaluationTooLarge",
        f"evaluation.tokens: half of the {view.samples} documents of source {view.name!r} lack {lacking} tokens of its part; "
        "allowed is what half of them hold. Lower evaluation.tokens, or add documents",
    )
