"""The job's tokenizer in Hugging Face's files, beside exported weights: what `AutoTokenizer.from_pretrained` reads.

A text gets the ids that the job has trained on: no token before it, and the job's end of a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coxswain.config import COMMON_EOS, TokenizerConfig
from coxswain.errors import CoxswainError, Refused
from coxswain.uris import folder_and_key
from coxswain_link.store import NotFound, open_store
from coxswain_train.checkpoint.foreign_files import NOT_AS_AGREED

_CONFIG, _MAP, _GENERATION = "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"
_BESIDE = (_CONFIG, _MAP, _GENERATION, "chat_template.jinja")  # taken where they exist
_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_eos_token": False}
BYTES_EOS = "<|endoftext|>"


def write_tokenizer(folder: Path, tokenizer: TokenizerConfig, longest: int) -> int | None:
    """Writes tokenizer.json and what belongs to it; returns the id of the end of a text, None where it is not to be found.

    `longest` is the job's maxSequenceTokens. Raises Refused "NoTokenizer" where the tokenizer's file cannot be read.
    """
    files = _files_of(tokenizer)
    try:
        content = json.loads(files["tokenizer.json"])
        vocabulary, trained = _vocabulary(content), _as_trained(content)
    except NOT_AS_AGREED as error:
        raise _none(tokenizer.uri, f"is no tokenizer.json ({error})") from error
    beside = {name: _object(tokenizer, name, files[name]) for name in (_CONFIG, _MAP, _GENERATION) if name in files}
    eos = tokenizer.eos or next((name for name in COMMON_EOS if name in vocabulary), "")
    files["tokenizer.json"] = _json(trained)
    given = beside.get(_CONFIG, {})
    files[_CONFIG] = _json({"model_max_length": longest} | given | _CLASS | _eos_of(given, eos))
    if _MAP in beside:
        files[_MAP] = _json(beside[_MAP] | _eos_of(beside[_MAP], eos))
    if _GENERATION in beside:
        files[_GENERATION] = _json(beside[_GENERATION] | {"bos_token_id": None, "eos_token_id": vocabulary.get(eos)})
    for name, written in files.items():
        (folder / name).write_bytes(written)
    return vocabulary.get(eos)


def count_ids(tokenizer: TokenizerConfig) -> int:
    """How many ids the tokenizer has, as loaders count them. Raises Refused "NoTokenizer"."""
    try:
        return max(_vocabulary(json.loads(_files_of(tokenizer)["tokenizer.json"])).values()) + 1
    except NOT_AS_AGREED as error:
        raise _none(tokenizer.uri, f"is no tokenizer.json ({error})") from error


def _as_trained(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """As loaders use it: they neither cut a text nor pad it, add no token to it, and draw no merges by lot."""
    processor, model = _offsets_only(tokenizer.get("post_processor")), tokenizer.get("model", {})
    certain = {"model": model | {"dropout": None}} if model.get("dropout") else {}
    return tokenizer | {"truncation": None, "padding": None, "post_processor": processor} | certain


def _offsets_only(processor: dict[str, Any] | None) -> dict[str, Any] | None:
    """The part of a post-processor that adds no token."""
    if processor and processor["type"] == "Sequence":
        return processor | {"processors": [p for p in map(_offsets_only, processor["processors"]) if p]}
    return processor if processor and processor["type"] == "ByteLevel" else None


def _object(tokenizer: TokenizerConfig, name: str, data: bytes) -> dict[str, Any]:
    """What a file beside the tokenizer holds. Raises Refused "NoTokenizer" where it is damaged."""
    try:
        found: dict[str, Any] = json.loads(data)
        if not isinstance(found, dict):
            raise TypeError(f"it is a {type(found).__name__}")
    except NOT_AS_AGREED as error:
        raise _none(tokenizer.uri, f"{name} beside it is no JSON object ({error})") from error
    return found


def _eos_of(given: dict[str, Any], eos: str) -> dict[str, Any]:
    """The job's end of a text, with the flags that a file has of the same token."""
    token = given.get("eos_token")
    return {} if isinstance(token, dict) and token.get("content") == eos else {"eos_token": eos or None}


def _json(value: dict[str, Any]) -> bytes:
    """Half of a surrogate pair, which UTF-8 lacks, stays the escape that JSON has for it."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def bytes_tokenizer() -> dict[str, Any]:
    """A tokenizer.json with the ids of the job's `bytes`: 0-255 for the bytes of UTF-8, 256 for the end of a text."""
    special = {
        "id": 256, "content": BYTES_EOS, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False,
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {symbol: byte for byte, symbol in enumerate(_symbols())}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "vocab": {**vocabulary, BYTES_EOS: 256}, "merges": [],
        },
    }  # fmt: skip


def _symbols() -> list[str]:
    """By byte, the letter that stands for it in byte-level vocabularies: itself where it can be seen, else one from 256 on."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(others)) for byte in range(256)]


def _files_of(tokenizer: TokenizerConfig) -> dict[str, bytes]:
    if tokenizer.kind == "bytes":
        return {"tokenizer.json": json.dumps(bytes_tokenizer()).encode()}
    uri = tokenizer.uri
    folder, name = folder_and_key(uri)
    try:
        store = open_store(f"{folder}/")
        found = {"tokenizer.json": store.get(name)}
    except CoxswainError as error:
        raise _none(uri, str(error)) from error
    for other in _BESIDE:
        try:
            found[other] = store.get(other)
        except NotFound:
            continue
    return found


def _none(uri: str, why: str) -> Refused:
    way_out = "give --tokenizer PATH, or --tokenizer none for the weights without one"
    return Refused("NoTokenizer", f"tokenizer {uri!r}: {why}; {way_out}")


def _vocabulary(tokenizer: dict[str, Any]) -> dict[str, int]:
    model = tokenizer.get("model", {}).get("vocab", {})
    words = {word: i for i, (word, *_) in enumerate(model)} if isinstance(model, list) else model  # Unigram's is a list
    return {**words, **{token["content"]: token["id"] for token in tokenizer.get("added_tokens", ())}}
