"""The mixed stream as a recursion on the cursor: which sequences a step contains.

    membership(k), cursor before k + 1 = advance(cursor before k)

Membership depends on no rank, loader, layout, speed or failure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from coxswain.config import BatchConfig, MixConfig, SourceConfig
from coxswain.errors import Refused
from coxswain.membership.deficits import Deficits
from coxswain.membership.draw import draw, nothing_to_draw
from coxswain.membership.held_out import NOTHING, HeldOut
from coxswain.membership.mix_record import mix_under
from coxswain.membership.order import Fetch, PassOrder, SourceView, fetch_nothing
from coxswain.membership.phases import active, begun, with_data
from coxswain.membership.values import Cursor, Membership, MixRecord, Sequence, SourceCursor


def initial_cursor(mix: MixConfig) -> Cursor:
    """The cursor before step 0. Phase 0 has the sources' own weights, phase i `mix.phases[i - 1]`'s."""
    return Cursor(step=0, offset=0, phase=0, sources=tuple(SourceCursor(s.name) for s in mix.sources))


@dataclass(frozen=True)
class Stream:
    """A mix over the indexes of its sources: a pure function of the cursor. It caches permutations.

    `number`: of the mix record that the weights, passes and phases of `mix` are from.
    """

    mix: MixConfig
    batch: BatchConfig
    views: Mapping[str, SourceView]
    number: int = 0
    held_out: HeldOut = NOTHING
    fetch: Fetch = fetch_nothing
    _orders: dict[tuple[str, int], PassOrder] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        empty = [s.name for s in self.mix.sources if self.views[s.name].samples == 0]
        if empty:
            raise Refused(
                "SourceEmpty",
                f"sources without a readable sample: {', '.join(empty)}; check uri, include and textField",
            )

    def advance(self, cursor: Cursor) -> tuple[Membership, Cursor]:
        """Returns the step's membership and the cursor behind it.

        Step k takes the sequences whose first token falls in [k T, (k + 1) T) of the mixed stream,
        T = tokensPerStep.
        """
        before = cursor
        state = _Draws(self, begun(self.mix, enter_mix(self.mix, self.number, cursor)))
        limit = (cursor.step + 1) * self.batch.tokens_per_step
        sequences: list[Sequence] = []
        while state.offset < limit and (sequence := state.next()) is not None:
            sequences.append(sequence)
        after = replace(state.cursor, step=before.step + 1)
        return Membership(before.step, tuple(sequences), before, exhausted=state.ended), after

    def under(self, record: MixRecord) -> Stream:
        """Returns the same stream under a mix record."""
        return dataclasses.replace(self, mix=mix_under(self.mix, record), number=record.number)

    def at(self, source: str, epoch: int, n: int) -> tuple[int, int]:
        """Returns (index, length) of the n-th draw of (source, pass)."""
        order = self.order(source, epoch)
        if blocks := order.to_fetch(n):
            self.fetch({source: blocks})
        return order.at(n)

    def fetch_next(self, cursors: Iterable[SourceCursor]) -> None:
        """Fetches the window that each of these sources draws from: together, for a new coordinator has nothing of any."""
        blocks = {c.name: self.order(c.name, c.epoch).to_fetch(c.drawn, most=1) for c in cursors}
        if any(blocks.values()):
            self.fetch(blocks)

    def order(self, source: str, epoch: int) -> PassOrder:
        """Returns the draws of (source, pass); only the latest pass of each source stays cached."""
        if (source, epoch) not in self._orders:
            for old in [key for key in self._orders if key[0] == source]:
                del self._orders[old]
            self._orders[source, epoch] = PassOrder(self.mix.seed, self.views[source], epoch)
        return self._orders[source, epoch]


def used_up(before: Cursor, after: Cursor) -> list[SourceCursor]:
    """The sources that have left the mix between two cursors, having reached maxPasses."""
    gone = {c.name for c in before.sources if c.exhausted}
    return [c for c in after.sources if c.exhausted and c.name not in gone]


class _Draws:
    """The mutable state of one `advance`."""

    def __init__(self, stream: Stream, cursor: Cursor) -> None:
        self._stream = stream
        self._configs: dict[str, SourceConfig] = {s.name: s for s in stream.mix.sources}
        self._enter(cursor)

    def _enter(self, cursor: Cursor) -> None:
        """Draws from the cursor on, with the weights of its phase."""
        self._step, self._phase, self.offset = cursor.step, cursor.phase, cursor.offset
        self._cursors = {c.name: c for c in cursor.sources}
        weights = active(self._stream.mix, cursor.phase, cursor.sources)
        self._active = list(weights)
        self._deficits = Deficits(weights.values(), (self._cursors[name].tokens for name in self._active))
        self._check()
        self._stream.fetch_next(self._cursors[name] for name in self._active)

    def _check(self) -> None:
        """Refuses a source of which every document is dropped, in each of its endless passes, before its turn comes."""
        stream, longest = self._stream, self._stream.batch.max_sequence_tokens
        for name in self._active if stream.mix.long_sequences == "Drop" else ():
            if stream.views[name].shortest > longest and not self._configs[name].max_passes:
                raise nothing_to_draw(name, stream.views[name].samples, longest)

    @property
    def ended(self) -> bool:
        return not self._active and with_data(self._stream.mix, self.cursor) is None

    @property
    def cursor(self) -> Cursor:
        """Behind what is drawn, in the step that is being drawn."""
        sources = tuple(self._cursors[s.name] for s in self._stream.mix.sources)
        return Cursor(self._step, self.offset, self._phase, sources, self._stream.number)

    def next(self) -> Sequence | None:
        """Draws the next sequence of the mixed stream; None once every source that this or a later phase weights has left."""
        while self._active or self._enter_later():
            sequence = self._draw(self._deficits.largest())
            if sequence is not None:
                self.offset += sequence.tokens
                return sequence
        return None

    def _enter_later(self) -> bool:
        later = with_data(self._stream.mix, self.cursor)
        if later is not None:
            self._enter(later)
        return later is not None

    def _draw(self, place: int) -> Sequence | None:
        """Draws from the `place`-th active source; it leaves once exhausted."""
        stream, name = self._stream, self._active[place]
        sequence, after = draw(
            self._cursors[name],
            stream.views[name].samples,
            self._configs[name].max_passes,
            lambda epoch, n: stream.at(name, epoch, n),
            stream.batch.max_sequence_tokens,
            stream.mix.long_sequences,
            stream.held_out.of(name),
            stream.views[name].shortest,
        )
        self._cursors[name] = after
        self._deficits.set_tokens(place, after.tokens)
        if after.exhausted:
            del self._active[place]
            self._deficits.leave(place)
        return sequence


def enter_mix(mix: MixConfig, number: int, cursor: Cursor) -> Cursor:
    """The cursor under the mix record `number`, which `mix` is from: itself if it is already.

    Deficits and phases begin afresh. Passes are judged again: a source that had left may come back.
    """
    if cursor.mix == number:
        return cursor
    passes = {s.name: s.max_passes for s in mix.sources}
    sources = tuple(replace(c, tokens=0, exhausted=0 < passes[c.name] <= c.epoch) for c in cursor.sources)
    return replace(cursor, mix=number, phase=0, sources=sources)
