"""DataMix: which sources a training run reads, and in which proportions of tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coxswain.api.common import (
    ATOMIC,
    MAX_ITEMS,
    Model,
    Name,
    ObjectReference,
    Weight,
    Whole,
    list_map,
)
from coxswain.api.effects import Effect


class MixSource(Model):
    """One source of the mix."""

    name: Name
    """Name within the mix. Keys and digests of the stream use it."""
    source_ref: ObjectReference
    """The DataSource."""
    weight: Annotated[Weight, Effect.UNCOMMITTED]
    """Proportion of the tokens, relative to the other weights; 0: none until a phase gives it a weight. Event
    MixChanged names the first step under an edit."""
    max_passes: Annotated[int, Field(ge=0, le=1_000_000), Effect.UNCOMMITTED] = 0
    """Passes over the source before it leaves the mix; 0: no limit."""


class PhaseWeight(Model):
    """Weight of one source within a phase."""

    name: Name
    """Name of the source within the mix."""
    weight: Weight
    """Proportion of the tokens, relative to the other weights."""


class Phase(Model):
    """Other weights from a step or a token count on. Exactly one of fromStep and fromTokens. It begins earlier where all
    sources of the phases before it have left the mix."""

    from_step: Whole | None = None
    """First step with these weights."""
    from_tokens: Whole | None = None
    """Token count of the mixed stream from which these weights hold."""
    weights: Annotated[list[PhaseWeight], list_map("name"), Field(min_length=1)]
    """Weights by name of the source within the mix. A source that is not named has weight 0."""


class DataMixSpec(Model):
    """A reproducible mixed stream."""

    seed: Annotated[Whole, Effect.NEVER] = 0
    """Seed of the order of the documents."""
    sources: Annotated[list[MixSource], list_map("name"), Field(min_length=1), Effect.NEVER]
    """The sources, known by name. None can be added or removed: that needs another DataMix, since it gives another stream."""
    phases: Annotated[list[Phase], Effect.UNCOMMITTED] = Field(
        max_length=MAX_ITEMS, json_schema_extra=ATOMIC, default_factory=list
    )
    """Changes of weights over the run; all by step or all by tokens. A run records the phases that it used, so its past stays
    as it was. Empty: none."""
    long_sequences: Annotated[Literal["Split", "Truncate", "Drop"], Effect.NEVER] = "Split"
    """What happens to documents longer than the job's maxSequenceTokens. Split: cut into pieces, all of which are trained on.
    Truncate: the rest is left out. Drop: the document is left out."""
