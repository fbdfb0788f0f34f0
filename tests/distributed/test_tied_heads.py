"""Published files of a tied model may hold its head too: it is read where it is the embedding, and refused where not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import safetensors.torch
import torch
from msgspec.structs import replace
from torch import Tensor

from coxswain.boxes import Box, full_box
from coxswain.errors import Refused
from coxswain_train.checkpoint.pretrained import EMBEDDING, HEAD, load_pretrained
from tests.distributed.test_hugging_face import MODEL, assert_same, our_logits, ours, rewrite, theirs

pytestmark = pytest.mark.timeout(300)  # the first test imports transformers
TIED = replace(MODEL, tied_head=True)
Weights = dict[str, Tensor]


def with_head(change: Callable[[Tensor], Tensor]) -> Callable[[Weights], None]:
    return lambda tensors: tensors.update({HEAD: change(tensors[EMBEDDING].clone()).contiguous()})


def with_another_last_row(table: Tensor) -> Tensor:
    table[-1, -1] += 1
    return table


@pytest.mark.parametrize("config", [True, False], ids=["config", "no config"])
def test_a_head_that_repeats_the_embedding_of_a_tied_model_is_read(tmp_path: Path, config: bool) -> None:
    logits = theirs(tmp_path, TIED)
    rewrite(tmp_path / "model.safetensors", with_head(lambda table: table))
    if not config:
        (tmp_path / "config.json").unlink()
    assert_same(our_logits(ours(tmp_path.as_uri(), TIED)), logits)


@pytest.mark.parametrize(
    ("config", "way_out"),
    [
        (True, r"config\.json says tie_word_embeddings: true: correct it, or the files"),
        (False, "set model.config.head to Untied"),
    ],
)
@pytest.mark.parametrize(
    "change",
    [
        with_another_last_row,
        lambda table: table[:-1],
        lambda table: torch.cat([table, table[:1]]),
        lambda table: table.double(),
    ],
)
def test_a_head_that_differs_from_the_embedding_of_a_tied_model_is_refused_by_name(
    tmp_path: Path, change: Callable[[Tensor], Tensor], config: bool, way_out: str
) -> None:
    theirs(tmp_path, TIED)
    rewrite(tmp_path / "model.safetensors", with_head(change))
    if not config:
        (tmp_path / "config.json").unlink()
    with pytest.raises(Refused, match=rf"lm_head\.weight is not equal to model\.embed_tokens\.weight.*{way_out}"):
        ours(tmp_path.as_uri(), TIED, piece_bytes=1 << 10)  # the last row is in no first piece


def test_a_head_is_compared_in_the_rows_of_the_file_where_the_vocabulary_is_rounded_up(tmp_path: Path) -> None:
    table, values = torch.arange(320.0).view(40, 8), torch.ones(64, 8)
    safetensors.torch.save_file({EMBEDDING: table, HEAD: table.clone()}, tmp_path / "model.safetensors")
    load_pretrained(tmp_path.as_uri(), {full_box(EMBEDDING, (64, 8)): values}, {EMBEDDING: (64, 8)}, ids=40)
    assert torch.equal(values[:40], table) and not values[40:].any()


@pytest.mark.parametrize(("first", "differs"), [(0, True), (20, False)])
def test_a_worker_compares_a_head_with_the_embedding_in_its_own_rows(tmp_path: Path, first: int, differs: bool) -> None:
    """Another worker reads the others: together they compare all."""
    table = torch.arange(320.0).view(40, 8)
    head = torch.cat([table[:1] + 1, table[1:]])
    safetensors.torch.save_file({EMBEDDING: table, HEAD: head}, tmp_path / "model.safetensors")
    state = {Box(EMBEDDING, (first, 0), (20, 8)): torch.zeros(20, 8)}
    with pytest.raises(Refused, match="is not equal to") if differs else nullcontext():
        load_pretrained(tmp_path.as_uri(), state, {EMBEDDING: (40, 8)})


def test_a_missing_head_without_a_config_may_be_a_tied_one(tmp_path: Path) -> None:
    theirs(tmp_path, TIED)
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        Refused, match=r"lm_head\.weight is missing, .*its head is tied: set model\.config\.head to Tied"
    ):
        ours(tmp_path.as_uri(), MODEL)


def test_a_head_that_is_not_the_embedding_is_not_dropped_for_a_tied_one(tmp_path: Path) -> None:
    theirs(tmp_path, MODEL)
    (tmp_path / "config.json").unlink()
    with pytest.raises(Refused, match=r"lm_head\.weight is not equal to .*set model\.config\.head to Untied"):
        ours(tmp_path.as_uri(), TIED)
