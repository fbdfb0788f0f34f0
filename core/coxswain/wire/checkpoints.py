"""Checkpoints: shards, what is in them, and manifests."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.boxes import Box
from coxswain.config import ModelConfig, OptimizerKind, TokenizerConfig
from coxswain.membership.values import Cursor
from coxswain.structs import prepare
from coxswain.wire.steps import End


class ShardContents(msgspec.Struct, frozen=True):
    """A shard's sidecar: its boxes and kinds, compressed by zstd."""

    boxes: tuple[Box, ...]
    kinds: tuple[str, ...]
    generation: int | UnsetType = UNSET  # of the world that has saved it; UNSET: written by an earlier release


class Hull(msgspec.Struct, frozen=True, array_like=True):
    """A box around all boxes that a shard has of like tensors of the layers from `first` to `last`."""

    tensors: str  # their name, with * for the layer's number
    first: int  # 0 in names without a number
    last: int
    start: tuple[int, ...]
    stop: tuple[int, ...]


class Listing(msgspec.Struct, frozen=True):
    """Where a shard's boxes and kinds are, if not in the manifest, and what they lie in."""

    key: str  # shards/<sha256>.boxes.json.zst
    bytes: int
    hulls: tuple[Hull, ...]


class Shard(msgspec.Struct, frozen=True):
    """A content-named safetensors object: tensor `i` is `boxes[i]` of kind `kinds[i]`.

    Kinds are parameter, exp_avg and exp_avg_sq. With a listing, boxes and kinds are empty here.
    """

    key: str  # shards/<sha256>.safetensors
    bytes: int
    boxes: tuple[Box, ...]
    kinds: tuple[str, ...]
    listing: Listing | UnsetType = UNSET

    @property
    def objects(self) -> dict[str, int]:
        """Bytes by key of all that belongs to it."""
        return {self.key: self.bytes} | ({self.listing.key: self.listing.bytes} if self.listing else {})


class ShardsSaved(msgspec.Struct, frozen=True):
    """POST /v1/saved by a worker: its part of checkpoint `step` is in the store."""

    generation: int
    step: int
    rank: int
    ranks: int  # of the world; nothing reads it: the world's own number counts, and earlier releases send it
    shards: tuple[Shard, ...]
    seconds: float
    end: End = ""  # of the directive that requested it: a later coordinator needs it


class CheckpointManifest(msgspec.Struct, frozen=True):
    """A checkpoint, created by the coordinator once all ranks have saved.

    Only a checkpoint advances what counts as consumed.
    """

    version: int
    job: str
    step: int  # steps done; the next one to run
    attempt_generation: int
    cursor: Cursor
    stream_digest: str
    tokens: int
    model_hash: str
    stream_hash: str
    index_hash: str
    vocabulary: int
    shards: tuple[Shard, ...]
    time: float
    model: ModelConfig | None = None  # None: written by an earlier release
    longest: int = 0  # the job's maxSequenceTokens
    tokenizer: TokenizerConfig | None = None  # of the job's sources; None: written by an earlier release
    optimizer_kind: OptimizerKind | UnsetType = (
        UNSET  # whose moments the shards hold; UNSET: written by an earlier release
    )
    ids: int = 0  # the tokenizer's size; 0: written by an earlier release


prepare(__name__)
