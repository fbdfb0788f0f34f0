"""The block index: which shares a loader serves, and what is in them."""

from __future__ import annotations

import msgspec

from coxswain.block import BlockEntry
from coxswain.planlog import LoaderShare
from coxswain.structs import prepare
from coxswain.wire.joining import Fault


class Shares(msgspec.Struct, frozen=True):
    """GET /v1/shares?loader=NAME&wait=S: what this loader owns (204 until every loader has registered)."""

    shares: tuple[LoaderShare, ...]


class Indexed(msgspec.Struct, frozen=True):
    """POST /v1/indexed: this share of a source is indexed, or cannot be (`fault`).

    A large share comes as several messages: each has the blocks of one `part` of `parts`.
    """

    share: LoaderShare
    blocks: tuple[BlockEntry, ...]
    tokenizer: str = ""  # hash of the tokenizer
    vocabulary: int = 0  # its size, EOS included
    fault: Fault | None = None
    part: int = 0
    parts: int = 1
    listed: int = 0  # blocks of all shares, as this loader listed them; 0: an earlier release has not said


class SourceBlocks(msgspec.Struct, frozen=True):
    """GET /v1/blocks?source=NAME&wait=S[&from=N][&known=FINGERPRINT]: blocks of a source in index order, from the N-th on.

    A sample's index counts through them. `total`: how many the source has; the rest is asked for
    with the next N. None of them where the asker knows the source's `fingerprint`.
    """

    source: str
    blocks: tuple[BlockEntry, ...]
    total: int = 0
    fingerprint: str = ""  # of all its blocks; empty: sent by an earlier release


BLOCKS_IN_MESSAGE = 50_000
"""Blocks that one message carries at most: some 15 MB."""


prepare(__name__)
