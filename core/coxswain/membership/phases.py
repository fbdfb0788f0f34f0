"""The phases of a mix: which weights are in force. Phase 0 has the sources' own, phase i `mix.phases[i - 1]`'s."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from coxswain.config import MixConfig
from coxswain.errors import Refused
from coxswain.membership.values import Cursor, SourceCursor


def weights_of(mix: MixConfig, phase: int) -> dict[str, int]:
    """The weight of each source in a phase."""
    if phase > len(mix.phases):
        raise Refused(
            "PhasesRemoved",
            f"mix.phases has {len(mix.phases)} entries and phase {phase} has begun; phases that have begun must stay",
        )
    if phase == 0:
        return {s.name: s.weight for s in mix.sources}
    return {s.name: mix.phases[phase - 1].weights.get(s.name, 0) for s in mix.sources}


def begun(mix: MixConfig, cursor: Cursor) -> Cursor:
    """The cursor of a step in the phase that its step or its offset says: phases begin in their order."""
    phase = cursor.phase
    while phase < len(mix.phases) and _has_begun(mix, phase + 1, cursor):
        phase += 1
    return cursor if phase == cursor.phase else entered(cursor, phase)


def with_data(mix: MixConfig, cursor: Cursor) -> Cursor | None:
    """The cursor in the first phase, from its own on, that gives weight to a source that is left. None: the data has ended.

    So a phase ends early once all its sources have left: what later phases weight is drawn all the same.
    """
    for phase in range(cursor.phase, len(mix.phases) + 1):
        if active(mix, phase, cursor.sources):
            return cursor if phase == cursor.phase else entered(cursor, phase)
    return None


def active(mix: MixConfig, phase: int, sources: Iterable[SourceCursor]) -> dict[str, int]:
    """The weights of those that a phase draws from: by name, in its order."""
    weights = weights_of(mix, phase)
    left = sorted(c.name for c in sources if not c.exhausted)
    return {name: weights[name] for name in left if weights[name]}


def entered(cursor: Cursor, phase: int) -> Cursor:
    """The cursor in a phase that begins: deficits restart, so old shares are not made up for."""
    return replace(cursor, phase=phase, sources=tuple(replace(s, tokens=0) for s in cursor.sources))


def _has_begun(mix: MixConfig, phase: int, cursor: Cursor) -> bool:
    begin = mix.phases[phase - 1]
    return cursor.step >= begin.from_step if begin.from_step >= 0 else cursor.offset >= begin.from_tokens
