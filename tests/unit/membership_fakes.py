"""Sources of made-up lengths for tests of membership."""

from __future__ import annotations

import numpy as np

from coxswain.config import BatchConfig, MixConfig, PhaseConfig, SourceConfig, TokenizerConfig
from coxswain.membership.held_out import hold_out
from coxswain.membership.order import SourceView
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.membership.values import Cursor, Membership


def source(name: str, weight: int, max_passes: int = 0) -> SourceConfig:
    return SourceConfig(
        name=name, source=name, uri="file:///x", format="Text", include="*", text_field="text",
        tokenizer=TokenizerConfig(kind="bytes"), weight=weight, max_passes=max_passes,
    )  # fmt: skip


def view(name: str, blocks: list[list[int]]) -> SourceView:
    arrays = [np.array(b, dtype=np.uint32) for b in blocks]
    return SourceView(name, np.array([len(b) for b in blocks], dtype=np.int64), lambda b: arrays[b])


def random_view(name: str, seed: int, blocks: int = 20, longest: int = 60) -> SourceView:
    rng = np.random.default_rng([seed, len(name), ord(name[0])])
    return view(name, [rng.integers(1, longest + 1, rng.integers(0, 12)).tolist() for _ in range(blocks - 1)] + [[7]])


def stream(
    views: list[SourceView],
    weights: list[int],
    tokens: int = 200,
    longest: int = 60,
    passes: int = 0,
    policy: str = "Split",
    phases: tuple[PhaseConfig, ...] = (),
    held_out: int = 0,
) -> Stream:
    sources = tuple(source(v.name, w, passes) for v, w in zip(views, weights, strict=True))
    mix = MixConfig(name="mix", seed=7, sources=sources, phases=phases, long_sequences=policy)
    batch, by_name = BatchConfig(tokens_per_step=tokens, max_sequence_tokens=longest), {v.name: v for v in views}
    return Stream(mix, batch, by_name, held_out=hold_out(mix, batch, by_name, held_out))


def steps(s: Stream, count: int, cursor: Cursor | None = None) -> list[Membership]:
    """At most `count` steps from a cursor; fewer when the data ends."""
    cursor, out = cursor or initial_cursor(s.mix), []
    for _ in range(count):
        membership, cursor = s.advance(cursor)
        out.append(membership)
        if membership.exhausted:
            break
    return out
