"""Tokenizers: ids, the end-of-text token, and files that cannot be used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers

from coxswain.config import EndpointConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain_data.tokenizer import BytesTokenizer, FileTokenizer, ForeignToken, Tokenizer, open_tokenizer, token_ids

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


LETTERS = ("<", "/", "s", ">", "x")
VOCABULARY = {"<unk>": 0, "</s>": 1} | {letter: 2 + n for n, letter in enumerate(LETTERS)}
SPELLING = {
    "Unigram": models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *((letter, -2.0) for letter in LETTERS)], unk_id=0),
    "WordLevel": models.WordLevel(VOCABULARY, unk_token="<unk>"),
    "WordPiece": models.WordPiece(VOCABULARY, unk_token="<unk>"),
    "BPE": models.BPE(VOCABULARY, [], ignore_merges=True),
}
"""Models that have the spelling of the end of text as a word of their own, as those of T5 have."""


@pytest.mark.parametrize("model", SPELLING)
@pytest.mark.parametrize("splits", [True, False])
def test_a_document_cannot_forge_the_end_of_text_where_the_model_has_its_spelling_as_a_word(model, splits):
    tokenizer = tokenizers.Tokenizer(SPELLING[model])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    if splits:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    mine = opened(tokenizer)
    for text in ("</s>", "x</s></s> </s>x", "x </s> x"):
        ids = mine.encode(text).tolist()
        assert (ids[-1], ids.count(mine.eos)) == (1, 1), text
    assert mine.encode("x").tolist() == [6, 1]


@pytest.mark.parametrize(
    "flags", [{}, {"normalized": False}, {"single_word": True}, {"lstrip": True, "rstrip": True}], ids=str
)
def test_a_document_cannot_forge_the_end_of_text_that_is_an_added_token_and_not_a_special_one(flags):
    plain = trained()
    plain.add_tokens([tokenizers.AddedToken("</s>", **flags)])
    mine, special = opened(plain, "</s>"), trained()
    special.add_special_tokens(["</s>"])
    for text in ("</s>", "the </s> boat", "x</s></s>x"):
        ids = mine.encode(text).tolist()
        assert ids == opened(special, "</s>").encode(text).tolist()
        assert (ids[-1], ids.count(mine.eos)) == (mine.eos, 1), text
    assert mine.hash != hashlib.sha256(b"file-1\0</s>\0" + plain.to_str().encode()).hexdigest()


def test_a_text_without_the_end_of_text_has_the_ids_that_the_library_gives_it():
    tokenizer = tokenizers.Tokenizer(SPELLING["Unigram"])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    text = "xs></x<</ s>"
    assert opened(tokenizer).encode(text).tolist() == [*tokenizer.encode(text).ids, 1]


def test_an_end_of_text_of_one_letter_has_no_parts_and_leaves_texts_as_they_are():
    tokenizer = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("e", -2.0), ("x", -2.0), ("ex", -1.0)], unk_id=0))
    assert opened(tokenizer, "e").encode("xex").tolist() == [*tokenizer.encode("xex").ids, 1]


def test_the_hash_changes_only_where_the_spelling_was_the_end_of_text():
    """Of an earlier release, whose index counts other ids."""

    def of_earlier(tokenizer: tokenizers.Tokenizer, eos: str) -> str:
        return hashlib.sha256(b"file-1\0" + eos.encode() + b"\0" + tokenizer.to_str().encode()).hexdigest()

    spelling, plain = tokenizers.Tokenizer(SPELLING["Unigram"]), trained("<|endoftext|>")
    spelling.add_special_tokens(["<unk>", "</s>"])
    assert opened(plain).hash == of_earlier(plain, "<|endoftext|>")
    assert opened(spelling).hash != of_earlier(spelling, "</s>")


def test_truncation_and_padding_of_the_file_are_not_applied():
    limited = trained("<|endoftext|>")
    limited.enable_truncation(4)
    limited.enable_padding(length=64)
    assert opened(limited).encode(TEXT).tolist() == opened(trained("<|endoftext|>")).encode(TEXT).tolist()


def test_a_dropout_of_the_file_is_not_applied_so_that_a_text_has_the_same_ids_each_time():
    dropping = trained("<|endoftext|>")
    dropping.model.dropout = 0.5
    mine, plain = opened(dropping), opened(trained("<|endoftext|>"))
    assert [mine.encode(TEXT).tolist() for _ in range(9)] == [plain.encode(TEXT).tolist()] * 9


def test_what_the_file_would_add_before_a_text_is_left_out():
    adding = trained("<|endoftext|>", "<s>")
    adding.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    assert opened(adding).encode(TEXT).tolist() == opened(trained("<|endoftext|>", "<s>")).encode(TEXT).tolist()


@pytest.mark.parametrize("added", [(), ("<|added|>",)], ids=["trained", "added later"])
def test_the_vocabulary_counts_every_id(added):
    tokenizer = trained("<|endoftext|>")
    tokenizer.add_special_tokens(list(added))
    assert opened(tokenizer).vocabulary == tokenizer.get_vocab_size()
    assert opened(tokenizer, *added).eos < opened(tokenizer).vocabulary


@pytest.mark.parametrize(("type_", "largest"), [("<u2", 65_535), ("<i4", 2**31 - 2), ("<i8", 2**31 - 2)])
def test_ids_keep_their_value_up_to_the_largest_of_their_type_and_beyond_the_vocabulary_are_refused(type_, largest):
    tokenizer = BytesTokenizer()
    tokenizer.vocabulary = largest + 1
    assert token_ids(tokenizer, np.array([0, 40_000, largest], type_)).tolist() == [0, 40_000, largest, 256]
    tokenizer.vocabulary = largest
    with pytest.raises(ForeignToken, match=f"holds token id {largest}, .* 0 to {largest - 1}"):
        token_ids(tokenizer, np.array([0, largest], type_))


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


def test_a_folder_in_place_of_a_tokenizer_is_not_said_to_be_missing(tmp_path):
    trained("<|endoftext|>").save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Refused, match=r"^tokenizer\.file\.uri .* is a folder; name the tokenizer\.json in it$"):
        load(tmp_path)


@pytest.mark.parametrize("harm", ["missing", "missing folder", "garbage"])
def test_a_file_that_is_no_tokenizer_is_refused_by_its_uri(tmp_path, harm):
    path = tmp_path / ("away/tokenizer.json" if harm == "missing folder" else "tokenizer.json")
    if harm == "garbage":
        path.write_text("{}")
    with pytest.raises(Refused, match=r"tokenizer\.file\.uri .*tokenizer\.json") as caught:
        load(path)
    assert caught.value.reason == "TokenizerUnusable"
