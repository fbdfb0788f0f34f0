"""The stream in one process: which tokens a step has, ranks and workers, resume, and states of other streams."""

from __future__ import annotations

import itertools
import json
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from coxswain import digests
from coxswain.config import BatchConfig, MixConfig, PhaseConfig, SourceConfig, TokenizerConfig
from coxswain.errors import Refused, Retryable
from coxswain.membership.mix_record import record_of
from coxswain.membership.stream import Stream, initial_cursor
from coxswain.membership.values import Cursor
from coxswain_data.local import LocalData
from coxswain_link.store import open_store
from coxswain_train.dataset import StepBatch, StreamDataset, share, stream_digest
from tests.local.data_plane import write_corpus

BATCH = BatchConfig(tokens_per_step=700, max_sequence_tokens=300)
STEPS = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("index").as_uri()


def mix_of(corpus, **fields) -> MixConfig:
    sources = fields.pop("sources", None) or tuple(
        SourceConfig(
            name=name, source=name, uri=(corpus.folder / name).as_uri(), format=format_, include="**", text_field="text",
            tokenizer=TokenizerConfig(kind="bytes"), weight=weight, max_passes=2,
        )
        for name, format_, weight in (("code", "Parquet", 7), ("docs", "Jsonl", 3))
    )  # fmt: skip
    return MixConfig(name="mix", seed=fields.pop("seed", 3), sources=sources, **fields)


@pytest.fixture
def dataset(corpus, cache):
    def make(mix=None, batch=BATCH, **options) -> StreamDataset:
        return StreamDataset(mix or mix_of(corpus), batch, cache, **{"steps": STEPS, **options})

    return make


def said(steps) -> list[tuple[int, list[int], list[int]]]:
    return [(s.step, s.tokens.tolist(), s.labels.tolist()) for s in steps]


def chained(steps) -> str:
    digest = digests.STREAM_SEED
    for step in steps:
        digest = stream_digest(digest, [step])
    return digest


def test_a_step_has_the_documents_of_its_membership_with_their_next_tokens_as_labels(corpus, dataset):
    for step in dataset():
        assert len(step.tokens) == len(step.labels) == len(step.positions) == sum(s.tokens for s in step.membership)
        for piece, (tokens, labels), start in zip(step.membership, step.sequences(), step.bounds, strict=False):
            whole = corpus.ids(msgspec.structs.replace(piece, start=0, stop=piece.length))
            assert tokens.tolist() == whole[piece.start : piece.stop]
            assert labels.tolist() == [*whole[1:], -100][piece.start : piece.stop]
            assert step.positions[start : start + piece.tokens].tolist() == list(range(piece.tokens))
        assert step.total_labels == int((step.labels != -100).sum())
    assert any(piece.stop < piece.length for piece in step.membership)


def test_every_document_comes_once_a_pass_until_the_data_ends(corpus, dataset):
    pieces = [p for step in dataset(steps=0) for p in step.membership]
    for name, documents in corpus.documents.items():
        for turn in (0, 1):
            mine = [p for p in pieces if (p.source, p.epoch) == (name, turn)]
            assert sum(p.tokens for p in mine) == sum(len(d.encode()) + 1 for d in documents)
            assert {p.index for p in mine} == set(range(len(documents)))


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_share_each_step_and_their_parts_have_its_digests(dataset, world):
    alone = list(dataset())
    ranks = [list(dataset(rank=r, world=world)) for r in range(world)]
    digest = digests.STREAM_SEED
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert sorted(place for p in parts for place in p.mine) == list(whole.mine)
        assert sum(p.delivered_digest for p in parts) % 2**64 == whole.delivered_digest
        assert {p.total_labels for p in parts} == {whole.total_labels}
        assert all(p.state == whole.state for p in parts)
        digest = stream_digest(digest, parts)
    assert digest == chained(alone)


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 8))
def test_a_share_is_balanced_up_to_one_sequence(lengths, world):
    shares = [share(lengths, rank, world) for rank in range(world)]
    loads = [sum(lengths[i] for i in mine) for mine in shares]
    assert sorted(itertools.chain(*shares)) == list(range(len(lengths)))
    assert max(loads) - min(loads) <= max(lengths, default=0)


def test_shares_are_those_of_a_search_through_all_ranks_for_the_fewest_tokens():
    lengths, loads, wanted = [(7 * i * i + 3) % 50 + 1 for i in range(300)], [0] * 13, {}
    for index in sorted(range(300), key=lambda i: (-lengths[i], i)):
        least = loads.index(min(loads))
        loads[least] += lengths[index]
        wanted.setdefault(least, []).append(index)
    assert [share(lengths, rank, 13) for rank in range(13)] == [sorted(wanted[rank]) for rank in range(13)]


@pytest.mark.parametrize("split", range(0, STEPS, 3))
def test_a_state_resumes_at_any_step_with_any_number_of_ranks(dataset, split):
    whole = list(dataset())
    first = dataset(rank=0, world=2)
    parts = list(itertools.islice(first, split))
    state = json.loads(json.dumps(parts[-1].state if parts else first.state_dict()))
    second = dataset()
    second.load_state_dict(state)
    assert said(second) == said(whole[split:])


def test_a_dataset_resumes_from_the_state_that_it_returns(dataset):
    one, whole = dataset(), list(dataset())
    found: list[StepBatch] = list(itertools.islice(one, 4))
    assert one.state_dict() == found[-1].state
    assert said(one) == said(whole[4:])
    assert list(one) == []


def test_under_a_loader_without_workers_it_is_the_same_stream(dataset):
    assert said(DataLoader(dataset(), batch_size=None)) == said(dataset())


def test_spawned_workers_keep_the_order_and_resume_exactly(dataset):
    whole = list(dataset())
    one = dataset()
    one.load_state_dict(whole[2].state)
    loader = DataLoader(one, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    found = list(loader)
    assert said(found) == said(whole[3:])
    assert [s.state for s in found] == [s.state for s in whole[3:]]
    assert [s.delivered_digest for s in found] == [s.delivered_digest for s in whole[3:]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_the_dataset_gives_the_same_stream_and_takes_torchs_options(dataset, workers):
    loader = dataset().loader(workers, prefetch_factor=3 if workers else None)
    assert said(loader) == said(dataset())
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (None, workers, 3 if workers else None)


def test_another_start_of_workers_may_be_given(dataset):
    assert dataset().loader(1).multiprocessing_context.get_start_method() == "forkserver"
    assert dataset().loader(1, multiprocessing_context="spawn").multiprocessing_context.get_start_method() == "spawn"


def in_worker(monkeypatch, nth: int, workers: int) -> None:
    worker = SimpleNamespace(id=nth, num_workers=workers) if workers else None
    monkeypatch.setattr("coxswain_train.dataset.get_worker_info", lambda: worker)


def in_turn(parts) -> list:
    """As a loader takes them: an item of each worker in turn."""
    return [step for turn in itertools.zip_longest(*parts) for step in turn if step]


ENDS = {"batch": BatchConfig(tokens_per_step=1, max_sequence_tokens=1), "steps": 90}  # steps of one token


def test_a_step_of_an_end_alone_is_a_step_of_the_stream_without_a_loss(dataset, monkeypatch):
    whole = list(dataset(**ENDS))
    assert [step.step for step in whole] == list(range(90))
    ends = [step for step in whole if not (step.labels != -100).any()]
    assert 0 < len(ends) < 90
    assert {step.total_labels for step in ends} == {1}
    parts = []
    for nth in range(3):
        in_worker(monkeypatch, nth, 3)
        parts.append(said(dataset(**ENDS)))
    assert in_turn(parts) == said(whole)


def test_a_last_step_of_an_end_alone_is_left_out_as_a_job_leaves_it_out(cache, dataset):
    one = dataset(batch=BatchConfig(tokens_per_step=5, max_sequence_tokens=2), steps=0)
    stream = Stream(one.mix, one.batch, LocalData(one.mix, open_store(cache)).views())
    memberships, cursor = [], initial_cursor(one.mix)
    while not (memberships and memberships[-1].exhausted):
        membership, cursor = stream.advance(cursor)
        memberships.append(membership)
    assert memberships[-1].sequences and not memberships[-1].labels
    one.load_state_dict(one.state_dict() | {"cursor": msgspec.to_builtins(memberships[-3].cursor)})
    assert [step.membership for step in one] == [m.sequences for m in memberships[-3:-1]]


@pytest.mark.parametrize("cut", range(6))
def test_the_states_of_several_workers_resume_exactly_where_each_stopped(dataset, monkeypatch, cut):
    """As torchdata's StatefulDataLoader does: each worker loads the state of the worker of its number."""
    whole, before, after = said(dataset()), [], []
    for nth in range(3):
        in_worker(monkeypatch, nth, 3)
        first, second = dataset(), dataset()
        before.append(said(itertools.islice(first, (cut + 2 - nth) // 3)))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        after.append(said(second))
    assert in_turn(before) == whole[:cut]
    assert in_turn(after[cut % 3 :] + after[: cut % 3]) == whole[cut:]


def test_workers_that_a_loader_keeps_begin_again_in_order_where_they_were_copied_or_loaded_a_state(
    dataset, monkeypatch
):
    """A loader that was left early asks them from the first on, and has dropped what they have read ahead."""
    one, whole = dataset(), list(dataset())
    assert said(itertools.islice(one, 3)) == said(whole[:3])
    workers = [pickle.loads(pickle.dumps(one)) for _ in range(2)]

    def walk(steps: int) -> list:
        parts = []
        for nth, copy in enumerate(workers):
            in_worker(monkeypatch, nth, 2)
            parts.append(said(itertools.islice(copy, (steps + 1 - nth) // 2)))
        return in_turn(parts)

    assert [walk(steps) for steps in (5, 2, STEPS)] == [said(whole[3:8]), said(whole[3:5]), said(whole[3:])]
    for copy in workers:
        copy.load_state_dict(whole[5].state)
    assert [walk(steps) for steps in (3, STEPS)] == [said(whole[6:9]), said(whole[6:])]


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_the_state_of_one_of_several_workers_is_refused_with_another_number(dataset, monkeypatch, workers):
    in_worker(monkeypatch, 1, 3)
    one, other = dataset(), dataset()
    step = next(iter(one))
    other.load_state_dict(one.state_dict())
    in_worker(monkeypatch, 1, workers)
    with pytest.raises(
        Refused, match=f"num_workers is {workers or 1}: .* one of 3 workers; give num_workers=3, or load the `step"
    ):
        next(iter(other))
    other.load_state_dict(step.state)
    assert next(iter(other)).step == step.step + (2 if workers else 1)


TENSORS = "tokens", "labels", "positions", "bounds"


@pytest.mark.parametrize("world", [1, 5])
def test_a_step_comes_whole_from_a_worker_as_one_tensor(dataset, world):
    """Each tensor would cross as an open file of its own."""
    for step in dataset(rank=world - 1, world=world):
        sent = ForkingPickler.dumps(step)
        found = pickle.loads(sent)
        assert bytes(sent).count(b"rebuild_tensor") == 1
        assert len({getattr(found, name).untyped_storage().data_ptr() for name in TENSORS}) == 1
        for name in StepBatch.__dataclass_fields__:
            one, other = getattr(step, name), getattr(found, name)
            assert torch.equal(one, other) if name in TENSORS else one == other
            assert name not in TENSORS or one.dtype == other.dtype == torch.int64


def test_a_rank_without_a_sequence_comes_from_a_worker_as_well(dataset):
    step = next(iter(dataset(rank=40, world=41)))
    assert step.mine == ()
    found = pickle.loads(ForkingPickler.dumps(step))
    assert [getattr(found, name).tolist() for name in TENSORS] == [[], [], [], [0]]


def test_a_loader_pins_all_tensors_of_a_step_and_nothing_else(dataset, monkeypatch):
    step = next(iter(dataset()))
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    found = pin_memory(step)
    assert [id(each) for each in pinned] == [id(getattr(step, name)) for name in TENSORS]
    assert all(torch.equal(getattr(found, name), getattr(step, name)) for name in TENSORS)
    assert (found.step, found.membership, found.state) == (step.step, step.membership, step.state)


def test_a_forked_worker_is_refused_with_the_way_out_instead_of_waiting_for_ever(dataset):
    with pytest.raises(RuntimeError, match='multiprocessing_context="spawn"'):
        list(DataLoader(dataset(), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60))


def test_a_copy_for_another_process_lists_and_indexes_nothing_again(dataset, monkeypatch):
    data, whole = pickle.dumps(dataset()), said(dataset())
    monkeypatch.setattr("coxswain_data.local.index_share", lambda *_: pytest.fail("indexed again"))
    monkeypatch.setattr("coxswain_train.dataset.fingerprint", lambda *_: pytest.fail("hashed again"))
    assert said(pickle.loads(data)) == whole


@pytest.mark.parametrize("edit", [{"weight": 30}, {"max_passes": 3}])
def test_a_state_goes_on_under_an_edited_mix_as_a_job_does(corpus, cache, dataset, edit):
    """Deficits begin afresh, and a source that had left comes back where its passes now allow more."""
    code, docs = mix_of(corpus).sources
    mix = mix_of(corpus, sources=(code, replace(docs, max_passes=1)))
    edited = replace(mix, sources=(code, replace(mix.sources[1], **edit)))
    state = list(dataset(mix))[-1].state
    resumed = dataset(edited, steps=STEPS + 8)
    resumed.load_state_dict(state)
    views = LocalData(edited, open_store(cache)).views()
    stream = Stream(edited, BATCH, views).under(record_of(edited, 1))
    cursor, wanted = msgspec.convert(state["cursor"], Cursor), []
    for _ in range(8):
        membership, cursor = stream.advance(cursor)
        wanted.append(membership.sequences)
    steps = list(resumed)
    assert [step.membership for step in steps] == wanted
    again = dataset(edited, steps=STEPS + 8)
    again.load_state_dict(steps[2].state)
    assert said(again) == said(steps[3:])


def test_a_step_whose_read_has_failed_is_the_next_one(dataset, monkeypatch):
    whole, one = said(dataset()), dataset()
    steps = iter(one)
    [_, last] = [next(steps), next(steps)]
    with monkeypatch.context() as broken, pytest.raises(Retryable, match="away"):
        broken.setattr(LocalData, "with_next", away)
        next(steps)
    assert one.state_dict() == last.state
    assert said(one) == whole[2:]


def away(*_: object) -> None:
    raise Retryable("the store is away")


def test_phases_change_the_mix_and_not_the_identity_of_the_stream(corpus, dataset):
    phases = (PhaseConfig(from_step=6, weights={"docs": 1}),)
    phased = list(dataset(mix_of(corpus, phases=phases)))
    assert said(phased)[:6] == said(dataset())[:6]
    assert {p.source for s in phased[7:] for p in s.membership} == {"docs"}
    dataset().load_state_dict(phased[2].state)


@pytest.mark.parametrize(
    ("part", "batch", "seed"),
    [("stream", BATCH, 4), ("stream", msgspec.structs.replace(BATCH, tokens_per_step=701), 3)],
)
def test_a_state_of_another_stream_is_refused(corpus, dataset, part, batch, seed):
    with pytest.raises(
        Refused, match=f"the state's {part} is v1:.* seed, batch, evaluation.tokens and longSequences"
    ) as caught:
        dataset(mix_of(corpus, seed=seed), batch).load_state_dict(dataset().state_dict())
    assert caught.value.reason == "ForeignCheckpoint"


def test_a_state_over_other_contents_is_refused_and_the_dataset_stays_where_it_was(dataset):
    one = dataset()
    state = one.state_dict()
    foreign = {**state, "index": {**state["index"], "docs": "sha256:00"}, "cursor": None}
    with pytest.raises(Refused, match=r"the state's index is .*sha256:00"):
        one.load_state_dict(foreign)
    with pytest.raises(Refused, match="the state's version is 2"):
        one.load_state_dict({**state, "version": 2})
    assert one.state_dict() == state


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_its_world_is_refused(dataset, rank, world):
    with pytest.raises(Refused, match=f"rank is {rank}; with world {world}"):
        dataset(rank=rank, world=world)


def test_a_source_that_is_not_there_is_refused_before_the_first_step(corpus, tmp_path):
    (tmp_path / "data").mkdir()
    mix = mix_of(corpus)
    gone = msgspec.structs.replace(mix.sources[1], uri=(tmp_path / "nowhere").as_uri())
    with pytest.raises(Refused, match="nowhere") as caught:
        StreamDataset(msgspec.structs.replace(mix, sources=(mix.sources[0], gone)), BATCH, Path(tmp_path).as_uri())
    assert caught.value.reason == "SourceNotFound"
