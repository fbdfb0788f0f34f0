"""Tokenizers: ids, the end-of-text token, and files that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from coxswain.config import EndpointConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain_data.tokenizer import BytesTokenizer, FileTokenizer, Tokenizer, open_tokenizer

TEXT = "the boat steers the boat, and eight rowers row <|endoftext|> the boat"


def trained(*special: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


def opened(tokenizer: tokenizers.Tokenizer, eos: str = "") -> FileTokenizer:
    return FileTokenizer(tokenizer.to_str().encode(), eos, "tokenizer.json")


def test_bytes_are_ids_and_the_end_is_256():
    assert BytesTokenizer().encode("aü").tolist() == [97, 195, 188, 256]


def test_a_file_tokenizer_ends_each_sample_once():
    ids = opened(trained("<|endoftext|>")).encode("the boat")
    assert ids[-1] == 0
    assert (ids == 0).sum() == 1


def test_a_document_cannot_forge_the_end_of_text():
    mine = opened(trained("<|endoftext|>"))
    assert (mine.encode(TEXT) == mine.eos).sum() == 1


def test_truncation_and_padding_of_the_file_are_not_applied():
    limited = trained("<|endoftext|>")
    limited.enable_truncation(4)
    limited.enable_padding(length=64)
    assert opened(limited).encode(TEXT).tolist() == opened(trained("<|endoftext|>")).encode(TEXT).tolist()


def test_the_vocabulary_counts_every_id():
    tokenizer = trained("<|endoftext|>")
    assert opened(tokenizer).vocabulary == tokenizer.get_vocab_size()


def test_the_hash_depends_on_the_file_and_on_the_end_of_text():
    tokenizer = trained("<|endoftext|>", "<pad>")
    hashes = {
        opened(tokenizer).hash,
        opened(tokenizer, "<pad>").hash,
        opened(trained("<|endoftext|>")).hash,
        BytesTokenizer().hash,
    }
    assert len(hashes) == 4
    assert opened(tokenizer).hash == opened(tokenizer, "<|endoftext|>").hash


def test_without_an_end_of_text_the_special_tokens_are_offered():
    with pytest.raises(Refused, match=r"<pad>, <unk>") as caught:
        opened(trained("<unk>", "<pad>"))
    assert caught.value.reason == "TokenizerUnusable"


def test_an_end_of_text_that_is_not_there_is_refused_by_name():
    with pytest.raises(Refused, match="'<stop>' is not in"):
        opened(trained("<|endoftext|>"), "<stop>")


def test_two_usual_names_need_a_choice():
    with pytest.raises(Refused, match="several"):
        opened(trained("<|endoftext|>", "</s>"))


def load(path: Path) -> Tokenizer:
    return open_tokenizer(TokenizerConfig(kind="file", uri=path.as_uri()), EndpointConfig(), None)


def test_a_tokenizer_is_read_from_its_uri(tmp_path):
    trained("<|endoftext|>").save(str(tmp_path / "tokenizer.json"))
    assert (
        load(tmp_path / "tokenizer.json").encode(TEXT).tolist()
        == opened(trained("<|endoftext|>")).encode(TEXT).tolist()
    )


@pytest.mark.parametrize("harm", ["missing", "missing folder", "garbage"])
def test_a_file_that_is_no_tokenizer_is_refused_by_its_uri(tmp_path, harm):
    path = tmp_path / ("away/tokenizer.json" if harm == "missing folder" else "tokenizer.json")
    if harm == "garbage":
        path.write_text("{}")
    with pytest.raises(Refused, match=r"tokenizer\.file\.uri .*tokenizer\.json") as caught:
        load(path)
    assert caught.value.reason == "TokenizerUnusable"
