"""DataMix: which sources a training run reads, and in which shares of tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coxswain.api.common import (
    ATOMIC,
    MAX_ITEMS,
    Conditions,
    Model,
    Name,
    ObjectReference,
    Weight,
    Whole,
    list_map,
)


class MixSource(Model):
    """One source of the mix."""

    name: Name
    """Name within the mix. Keys and digests of the stream use it, so it is immutable."""
    source_ref: ObjectReference
    """The DataSource. Immutable."""
    weight: Weight
    """Share of the tokens, relative to the other weights; 0: none until a phase says otherwise. A change is a new phase."""
    max_passes: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Passes over the source before it leaves the mix; 0: no limit. May change."""


class PhaseWeight(Model):
    """Weight of one source within a phase."""

    name: Name
    """Name of the source within the mix."""
    weight: Weight
    """Share of the tokens, relative to the other weights."""


class Phase(Model):
    """Other weights from a step or a token count on. Exactly one of fromStep and fromTokens."""

    from_step: Whole | None = None
    """First step with these weights."""
    from_tokens: Whole | None = None
    """Token count of the mixed stream from which these weights hold."""
    weights: Annotated[list[PhaseWeight], list_map("name"), Field(min_length=1)]
    """Weights by name of the source within the mix; a source that is not named gets nothing."""


class DataMixSpec(Model):
    """A reproducible mixed stream. Weights, phases and passes may change while jobs run; what else decides the stream may not."""

    seed: Whole = 0
    """Seed of the order of the samples. Immutable."""
    sources: Annotated[list[MixSource], list_map("name"), Field(min_length=1)]
    """The sources, known by name. None can be added or removed: that is another stream, so another DataMix."""
    phases: list[Phase] = Field(max_length=MAX_ITEMS, json_schema_extra=ATOMIC, default_factory=list)
    """Changes of weights over the run; all by step or all by tokens. Recorded, so a replay is exact. Empty: none. May change."""
    long_sequences: Literal["Split", "Truncate", "Drop"] = "Split"
    """What happens to documents beyond the job's maxSequenceTokens: cut in pieces, cut off, or left out. Immutable."""


class DataMixStatus(Model):
    """Whether the mix can be read."""

    observed_generation: Whole | None = None
    """metadata.generation that this status describes."""
    conditions: Conditions | None = None
    """Ready: all sources exist and share one tokenizer."""
