"""The values of membership: which sequences a step contains. No rank, loader, layout or speed."""

from __future__ import annotations

import msgspec

from coxswain.config import PhaseConfig
from coxswain.structs import prepare


class Sequence(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, stop) of sample `index` of a source in pass `epoch`: the unit of attention.

    `length` is the whole sample's token count, EOS included. Where `stop < length`, the next token
    exists and serves as the last label.
    """

    source: str  # its name in the mix
    epoch: int  # the pass over the source, from 0
    index: int  # of the sample, within the source's index
    start: int
    stop: int
    length: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def labels(self) -> int:
        """Valid labels: a split piece has the next token as its last label, a sample's end has none."""
        return self.tokens if self.stop < self.length else self.tokens - 1


class SourceCursor(msgspec.Struct, frozen=True):
    """How far one source of the mix has been drawn."""

    name: str
    epoch: int = msgspec.field(name="turn", default=0)  # current pass
    drawn: int = 0  # samples drawn in the current pass
    tokens: int = 0  # tokens drawn since the current phase of the mix began
    total_tokens: int = 0  # tokens drawn in all
    total_samples: int = 0
    piece: int = 0  # start of the next piece of the sample being split; 0 = none is pending
    piece_index: int = -1  # that sample's index, -1 = none; not read: it names the sample to people
    exhausted: bool = False  # reached maxPasses and left the mix


class Cursor(msgspec.Struct, frozen=True):
    """The state of the recursion: `step` is the next step, `offset` the tokens drawn so far."""

    step: int
    offset: int
    phase: int  # index of the phase in force, among those of the mix record
    sources: tuple[SourceCursor, ...]
    mix: int = 0  # number of the mix record in force


class Membership(msgspec.Struct, frozen=True):
    """One step's sequences in stream order."""

    step: int
    sequences: tuple[Sequence, ...]
    cursor: Cursor  # before this step
    exhausted: bool = False  # the data ends within this step: it is the last one and may be short

    @property
    def tokens(self) -> int:
        return sum(s.tokens for s in self.sequences)

    @property
    def labels(self) -> int:
        """Valid labels of the whole step: the divisor of the loss."""
        return sum(s.labels for s in self.sequences)


class MixRecord(msgspec.Struct, frozen=True):
    """What may change of a mix while a run goes on: weights, passes and phases.

    In force from the first membership segment that names it. Number 0 is what the run began with.
    """

    number: int
    weights: dict[str, int]  # by source
    max_passes: dict[str, int]  # by source; 0: no limit
    phases: tuple[PhaseConfig, ...] = ()


prepare(__name__)
