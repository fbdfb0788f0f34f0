"""DataSource: one corpus in an object store, how to read its documents, and with which tokenizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coxswain.api.common import Conditions, Endpoint, Model, Name, Text, Time, Uri, Whole
from coxswain.api.effects import Effect

Digits = Annotated[str, Field(max_length=20, pattern=r"^[0-9]+$")]


class BytesTokenizer(Model):
    """The bytes of the text are the tokens: ids 0-255, end of text 256. It has no fields: write `{}`."""


class FileTokenizer(Model):
    """A Hugging Face tokenizer."""

    uri: Uri
    """Address of the tokenizer.json. It is read with the source's endpoint."""
    eos: Annotated[str, Field(max_length=128)] = ""
    """The token that follows each document, one of the tokenizer's. Empty: the one of <|endoftext|>, <|end_of_text|>, </s>,
    <eos> and <|im_end|> that the tokenizer has; with none of them or several it is refused."""


class Tokenizer(Model):
    """Exactly one of bytes and file. All sources of a mix need the same tokenizer (else condition TokenizerMismatch)."""

    bytes: BytesTokenizer | None = None
    """Train on bytes."""
    file: FileTokenizer | None = None
    """Train on the tokens of a tokenizer.json."""


class DataSourceSpec(Model):
    """Where the documents are and how to read them. Another corpus needs another DataSource."""

    uri: Annotated[Uri, Effect.NEVER]
    """Folder of the objects: s3:// (any S3 server), file:/// (a path in the pods) or pvc://claim/path."""
    format: Annotated[Literal["Parquet", "Jsonl", "Text", "Tar", "TokenBin"], Effect.NEVER]
    """Format of the objects. Jsonl, Text and Tar may be compressed as .gz or .zst; such an object is read as a whole, so its size
    is limited. Tar: as WebDataset writes it. TokenBin: .bin and .idx as Megatron-LM writes them, with tokens of `tokenizer`."""
    include: Annotated[str, Field(min_length=1, max_length=256), Effect.NEVER] = "**/*"
    """Glob relative to `uri`: which objects belong to the source."""
    text_field: Annotated[str, Field(min_length=1, max_length=256), Effect.NEVER] = "text"
    """Column (Parquet), key (Jsonl) or extension (Tar, such as txt) of the text. Text and TokenBin ignore it."""
    tokenizer: Annotated[Tokenizer, Effect.NEVER]
    """Turns text into tokens."""
    endpoint: Annotated[Endpoint | None, Effect.NEXT_ATTEMPT] = None
    """The S3 server of `uri`. Empty: the provider's own."""
    max_rejected: Annotated[Whole, Effect.NEXT_ATTEMPT] = 0
    """How many documents may fail to decode; one more refuses the source."""


class Lengths(Model):
    """Quantiles of the documents' lengths in tokens."""

    p50: Whole | None = None
    """Median."""
    p90: Whole | None = None
    """90th percentile."""
    p99: Whole | None = None
    """99th percentile."""
    max: Whole | None = None
    """Longest document."""


class DataSourceStatus(Model):
    """What indexing found."""

    observed_generation: Whole | None = None
    """No longer written: the condition Ready has the generation that was indexed."""
    conditions: Conditions | None = None
    """Ready: the source can be read, and `complete` says whether all of it is indexed."""
    documents: Whole | None = None
    """Documents indexed so far."""
    tokens: Digits | None = None
    """Tokens indexed so far."""
    rejected: Whole | None = None
    """Documents that did not decode; they are not in the index."""
    complete: bool | None = None
    """Whether every block is indexed."""
    lengths: Lengths | None = None
    """Quantiles of the lengths of the documents indexed so far."""
    fingerprint: Text | None = None
    """Digest of the contents as indexed: sha256 and 64 hexadecimal digits."""
    indexed_by: Name | None = None
    """The TrainingJob whose coordinator found this. Of several the coordinator that was created last decides."""
    indexed_at: Time | None = None
    """When that coordinator was created."""
