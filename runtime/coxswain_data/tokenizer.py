"""Encodes documents as token ids: bytes, or a Hugging Face tokenizer file.

One EOS after each, no BOS.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from coxswain.config import COMMON_EOS, EndpointConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain.uris import file_path, folder_and_key, is_file
from coxswain_data.formats.base import Content, some
from coxswain_link.store import BucketNotFound, NotFound, open_store

_WAY_OUT = "correct the uri, or write the file again with `tokenizer.save()`"


class Tokenizer(Protocol):
    """`hash` names everything that the ids depend on; `vocabulary` counts ids, EOS included."""

    hash: str
    vocabulary: int
    eos: int

    def encode(self, text: str) -> NDArray[np.int32]:
        """Token ids of a sample, EOS last."""


class BytesTokenizer:
    """UTF-8 bytes as ids 0-255, EOS 256."""

    hash = "bytes-1"
    vocabulary = 257
    eos = 256

    def encode(self, text: str) -> NDArray[np.int32]:
        ids = np.frombuffer(text.encode(), dtype=np.uint8)
        return np.append(ids, self.eos).astype(np.int32)


class FileTokenizer:
    """A tokenizer.json.

    Special tokens spelt out in a document stay text: data cannot forge an EOS.
    """

    def __init__(self, data: bytes, eos: str, where: str) -> None:
        self._tokenizer, self._where = _load(data, where), where
        name = eos or _only_eos(self._tokenizer, where)
        self.eos = _eos_id(self._tokenizer, name, where)
        self.vocabulary = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        changed = [_mark_eos(self._tokenizer, name), _part_eos(self._tokenizer, name, self.eos)]
        kind = b"file-2\0" if any(changed) else b"file-1\0"
        self.hash = hashlib.sha256(kind + name.encode() + b"\0" + data).hexdigest()

    def encode(self, text: str) -> NDArray[np.int32]:
        try:
            # The fast batch call skips offsets, which are not needed here.
            ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except Exception as error:  # the library raises plain Exception
            raise Refused(
                "TokenizerUnusable",
                f"tokenizer.file.uri {self._where!r} cannot encode a document ({error}); {_WAY_OUT}",
            ) from error
        return np.append(np.asarray(ids, dtype=np.int32), np.int32(self.eos))


class ForeignToken(Exception):
    """A document holds a token id that the tokenizer does not have."""


def token_ids(tokenizer: Tokenizer, content: Content) -> NDArray[np.int32]:
    """Ids of a sample, EOS last. Content that is tokens already gets an EOS if it has none.

    Raises ForeignToken.
    """
    if isinstance(content, str):
        return tokenizer.encode(content)
    foreign = content[(content < 0) | (content >= tokenizer.vocabulary)]
    if len(foreign):
        raise ForeignToken(
            f"holds token id {foreign[0]}, and its tokenizer has the ids 0 to {tokenizer.vocabulary - 1}"
        )
    ids = content.astype(np.int32)
    return ids if len(ids) and ids[-1] == tokenizer.eos else np.append(ids, np.int32(tokenizer.eos))


def open_tokenizer(config: TokenizerConfig, endpoint: EndpointConfig, secrets_dir: Path | None) -> Tokenizer:
    """Raises Refused (TokenizerUnusable)."""
    if config.kind == "bytes":
        return BytesTokenizer()
    folder, name = folder_and_key(config.uri)
    try:
        data = open_store(f"{folder}/", endpoint, secrets_dir).get(name)
    except (NotFound, BucketNotFound) as error:
        is_folder = is_file(config.uri) and file_path(config.uri).is_dir()
        why = "is a folder; name the tokenizer.json in it" if is_folder else f"does not exist; {_WAY_OUT}"
        raise Refused("TokenizerUnusable", f"tokenizer.file.uri {config.uri!r} {why}") from error
    return FileTokenizer(data, config.eos, config.uri)


def _load(data: bytes, where: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception
        raise Refused(
            "TokenizerUnusable",
            f"tokenizer.file.uri {where!r} is not a tokenizer.json of Hugging Face's tokenizers library ({error}); {_WAY_OUT}",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    if isinstance(tokenizer.model, tokenizers.models.BPE):
        tokenizer.model.dropout = None  # it draws: the index counts the same ids that a loader serves later
    return tokenizer


def _only_eos(tokenizer: tokenizers.Tokenizer, where: str) -> str:
    """The one end-of-text token under a usual name."""
    found = [name for name in COMMON_EOS if tokenizer.token_to_id(name) is not None]
    if len(found) != 1:
        why = f"several: {', '.join(found)}" if found else "none of the usual"
        raise Refused(
            "TokenizerUnusable",
            f"tokenizer.file.uri {where!r}: its end-of-text token is not clear ({why}); "
            f"set tokenizer.file.eos to one of its special tokens: {_special(tokenizer)}",
        )
    return found[0]


def _eos_id(tokenizer: tokenizers.Tokenizer, name: str, where: str) -> int:
    found = tokenizer.token_to_id(name)
    if found is None:
        raise Refused(
            "TokenizerUnusable",
            f"tokenizer.file.eos {name!r} is not in {where}; its special tokens are: {_special(tokenizer)}",
        )
    return int(found)


def _mark_eos(tokenizer: tokenizers.Tokenizer, name: str) -> bool:
    """Makes the end-of-text token a special one where the file has it as any other added token, which is found in texts.
    Returns whether it has."""
    added = tokenizer.get_added_tokens_decoder().values()
    is_plain = any(token.content == name and not token.special for token in added)
    if is_plain:
        tokenizer.add_special_tokens([name])
    return is_plain


def _part_eos(tokenizer: tokenizers.Tokenizer, name: str, eos: int) -> bool:
    """Where the model itself makes the end-of-text token of its spelling, as Unigram does: parts that spelling in every text.
    Returns whether it does."""
    if len(name) < 2 or not _makes(tokenizer.model, name, eos):  # a letter has no parts
        return False
    before = [tokenizer.pre_tokenizer] if tokenizer.pre_tokenizer else []
    first = Split(Regex(f"{re.escape(name[0])}(?={re.escape(name[1:])})"), "isolated")
    tokenizer.pre_tokenizer = Sequence([*before, first])
    return True


def _makes(model: tokenizers.models.Model, text: str, token: int) -> bool:
    try:
        return any(made.id == token for made in model.tokenize(text))
    except Exception:  # the library raises plain Exception: it has no token for a letter, and none for what is unknown
        return False


def _special(tokenizer: tokenizers.Tokenizer) -> str:
    names = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
    return some(sorted(names)) or "(it has none: train it again with one)"
