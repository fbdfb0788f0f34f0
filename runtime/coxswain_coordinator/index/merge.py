"""The block index: assigns shares of sources to loaders, and merges the indexed shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, groupby, product

import numpy as np
from numpy.typing import NDArray

from coxswain.block import shortest_of
from coxswain.config import MixConfig, SourceConfig
from coxswain.errors import Refused
from coxswain.index import BlockEntry, IndexedShare, check_labels, fingerprint
from coxswain.membership.order import SourceView
from coxswain.packed import Packed
from coxswain.planlog import LoaderShare
from coxswain.wire import SourceReport
from coxswain_link.store import REQUESTS_AT_ONCE

_COUNTS = np.dtype([("samples", np.int64), ("rejected", np.int64), ("tokens", np.int64)])
_UNEVEN = 1.1
_FINEST = 4  # shares that a loader gets of a mix of one source

Lengths = Callable[[BlockEntry], NDArray[np.uint32]]


def assign_shares(mix: MixConfig, loaders: Sequence[str]) -> tuple[LoaderShare, ...]:
    """Splits the sources among the loaders by weight, so that each loader serves as many tokens.

    Takes the fewest shares with which no loader has more than `_UNEVEN` times its part, for a
    loader should open few sources.
    """
    work = _work(mix)
    fair = sum(work.values()) / len(loaders)
    shares: tuple[LoaderShare, ...] = ()
    most = math.inf
    for fineness, up in product(range(1, _FINEST + 1), (0.0, 0.5)):
        splits = {name: max(1, round(amount * fineness / fair + up)) for name, amount in work.items()}
        tried, load = _spread(work, splits, sorted(loaders))
        if load < most:
            shares, most = tried, load
        if most <= _UNEVEN * fair:
            break
    return tuple(sorted(shares, key=lambda s: (s.source, s.share)))


def _spread(
    work: Mapping[str, float], splits: Mapping[str, int], loaders: Sequence[str]
) -> tuple[tuple[LoaderShare, ...], float]:
    """Shares, the heaviest to the loader that has least; and the work of the loader that has most."""
    shares = sorted((-work[name] / n, name, share, n) for name, n in splits.items() for share in range(n))
    load = dict.fromkeys(loaders, 0.0)
    out = []
    for weight, name, share, n in shares:
        loader = min(load, key=lambda key: (load[key], key))
        load[loader] -= weight
        out.append(LoaderShare(loader, name, share, n))
    return tuple(out), max(load.values())


def _work(mix: MixConfig) -> dict[str, float]:
    """The largest proportion of tokens that each source has in any phase; never 0: all are indexed."""
    phases = [{s.name: s.weight for s in mix.sources}, *(phase.weights for phase in mix.phases)]
    return {
        s.name: max((phase.get(s.name, 0) / max(sum(phase.values()), 1) for phase in phases), default=0.0) or 1e-6
        for s in mix.sources
    }


@dataclass(frozen=True)
class SourceIndex:
    """All blocks of one source, in (path, ordinal) order. What is asked of all is found once: there may be millions."""

    name: str
    blocks: Sequence[BlockEntry]

    @cached_property
    def counts(self) -> NDArray[np.void]:
        """Samples, rejected ones and tokens of each block."""
        rows = ((b.samples, b.rejected, b.tokens) for b in self.blocks)
        return np.fromiter(rows, _COUNTS, len(self.blocks))

    @cached_property
    def shortest(self) -> int:
        """Tokens of the shortest sample; 0: unknown."""
        return shortest_of(self.blocks)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.blocks)


@dataclass(frozen=True, slots=True)
class Index:
    """The whole index of a mix."""

    sources: tuple[SourceIndex, ...]
    vocabulary: int  # of the tokenizer, EOS included

    @property
    def hash(self) -> str:
        """`source=fingerprint,...`: names the source that has changed."""
        return ",".join(f"{s.name}={s.fingerprint[7:23]}" for s in self.sources)

    def entries(self, blocks: Mapping[str, Sequence[int]]) -> list[BlockEntry]:
        """These blocks, by source and number."""
        return [s.blocks[number] for s in self.sources for number in blocks.get(s.name, ())]

    def views(self, lengths: Lengths) -> dict[str, SourceView]:
        return {s.name: _view(s, lengths) for s in self.sources}


def _view(source: SourceIndex, lengths: Lengths) -> SourceView:
    samples = np.ascontiguousarray(source.counts["samples"])
    return SourceView(source.name, samples, lambda b: lengths(source.blocks[b]), source.shortest)


def merge(mix: MixConfig, parts: Sequence[IndexedShare]) -> Index:
    """Merges all shares; parts of one follow each other. Takes seconds where there are millions of blocks, so a thread's work.

    Raises Refused when loaders saw different objects or use different tokenizers.
    """
    _same_tokenizer(parts)
    sources = tuple(_merge_source(s, [p for p in parts if p.share.source == s.name]) for s in mix.sources)
    empty = [s.name for s in sources if not s.counts["samples"].any()]
    if empty:
        raise Refused(
            "SourceEmpty", f"sources without a readable sample: {', '.join(empty)}; check uri, include and textField"
        )
    for source in sources:
        check_labels(source.name, source.blocks)
        _ = source.fingerprint, source.shortest  # here, in the thread, not where they are asked for
    return Index(sources, parts[0].vocabulary)


def _same_tokenizer(parts: Sequence[IndexedShare]) -> None:
    by_hash = {p.tokenizer: p.share.source for p in parts}
    if len(by_hash) > 1:
        raise Refused(
            "TokenizerMismatch",
            f"sources {' and '.join(sorted(by_hash.values()))} have different tokenizers; all sources of a mix need the "
            "same one: give them the same spec.tokenizer",
        )


def _merge_source(config: SourceConfig, parts: Sequence[IndexedShare]) -> SourceIndex:
    blocks = Packed(_in_order(_dealt(parts)), BlockEntry)
    # each loader's own count, too: of a new last file, some may have had their blocks, and others none
    listed = {part.listed or len(blocks) for part in parts}
    if listed | {sum(len(p.blocks) for p in parts)} != {len(blocks)}:
        raise Refused(
            "SourceChanged",
            f"source {config.name!r}: its loaders listed different objects; do not change a source while it is being "
            "indexed, then start the job again",
        )
    source = SourceIndex(config.name, blocks)
    _bounded(config, int(source.counts["rejected"].sum()))
    return source


def _dealt(parts: Sequence[IndexedShare]) -> Iterator[BlockEntry]:
    """A block of each share by turns, as they were given to shares: up to where one has none."""
    by_share = groupby(sorted(parts, key=_share), _share)
    turns = [chain.from_iterable([part.blocks for part in alike]) for _, alike in by_share]
    while True:
        for turn in turns:
            block = next(turn, None)
            if block is None:
                return
            yield block


def _in_order(blocks: Iterable[BlockEntry]) -> Iterator[BlockEntry]:
    """Up to the first that is not behind the one before it."""
    before = ("", -1)
    for block in blocks:
        place = block.path, block.ordinal
        if place <= before:
            return
        before = place
        yield block


def _share(part: IndexedShare) -> int:
    return part.share.share


def _bounded(config: SourceConfig, rejected: int) -> None:
    """Applies the limit of rejected samples to all shares together; each loader checks its own."""
    if rejected > config.max_rejected:
        raise Refused(
            "TooManyRejected",
            f"source {config.name!r}: {rejected} samples do not decode (bad UTF-8, bad JSON, or {config.text_field!r} missing "
            f"or null) and {config.max_rejected} are allowed. Name another textField, repair them, or raise maxRejected of the "
            "source",
        )


def source_reports(mix: MixConfig, index: Index, lengths: Lengths) -> tuple[SourceReport, ...]:
    """What the operator writes to the DataSources' status. `lengths` is called from several threads."""
    by_name = {s.name: s for s in mix.sources}
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return tuple(_report(by_name[s.name], s, partial(pool.map, lengths)) for s in index.sources)


_SAMPLED_BLOCKS = 64  # percentiles of large sources come from at most this many evenly spaced blocks,
_SAMPLED_DOCUMENTS = 1 << 20  # and from fewer that have so many documents: of default row groups one has as many
_LEAST_BLOCKS = 4


def _report(
    config: SourceConfig, source: SourceIndex, lengths: Callable[[Sequence[BlockEntry]], Iterable[NDArray[np.uint32]]]
) -> SourceReport:
    readable = np.flatnonzero(source.counts["samples"])
    documents, found, rejected = (int(source.counts[name].sum()) for name in ("samples", "tokens", "rejected"))
    most = min(_SAMPLED_BLOCKS, max(_LEAST_BLOCKS, _SAMPLED_DOCUMENTS * len(readable) // documents))
    sampled = readable[:: -(-len(readable) // most)].tolist()
    tokens = np.concatenate(list(lengths([source.blocks[number] for number in sampled])))
    p50, p90, p99 = (int(x) for x in np.percentile(tokens, (50, 90, 99), method="lower"))
    return SourceReport(
        name=config.name, source=config.source, documents=documents,
        tokens=found, p50=p50, p90=p90, p99=p99, max=int(tokens.max()),
        rejected=rejected, fingerprint=source.fingerprint,
        weight=config.weight,
    )  # fmt: skip
