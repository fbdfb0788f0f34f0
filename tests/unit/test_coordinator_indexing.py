from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain.block import shortest_of
from coxswain.config import MixConfig, PhaseConfig, SourceConfig
from coxswain.errors import Refused
from coxswain.index import BlockEntry
from coxswain.planlog import LoaderShare
from coxswain.wire import BLOCKS_IN_MESSAGE, Indexed, SourceReport
from coxswain_coordinator.api.handlers import Handlers
from coxswain_coordinator.index.merge import Index, SourceIndex, assign_shares, merge, source_reports
from coxswain_coordinator.index.progress import IndexProgress
from coxswain_coordinator.state.job_state import JobState
from coxswain_data.block_map import all_blocks
from coxswain_data.indexer import messages
from coxswain_link.http_client import Client
from coxswain_link.http_server import HttpService
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import BLOCKS, SAMPLES, TOKEN, block_of, lengths_of, make_job, make_source


def mix_of(*sources: SourceConfig) -> MixConfig:
    return MixConfig(name="m", seed=1, sources=sources)


def parts_of(mix, loaders: int) -> list[Indexed]:
    shares = assign_shares(mix, [f"loader-{i}" for i in range(loaders)])
    return [Indexed(s, blocks_of(s.source)[s.share :: s.shares], "hash", 257) for s in shares]


def blocks_of(source: str):
    return tuple(block_of(source, b) for b in range(BLOCKS))


@given(st.integers(1, 9), st.lists(st.integers(0, 1000), min_size=1, max_size=9))
def test_every_share_has_one_loader_and_no_loader_is_idle(loaders, weights):
    sources = [make_source(f"s{i}", w) for i, w in enumerate(weights)]
    shares = assign_shares(mix_of(*sources), [f"loader-{i}" for i in range(loaders)])
    assert len({s.loader for s in shares}) == loaders if loaders <= len(shares) else len(shares)
    for source in sources:
        mine = [s for s in shares if s.source == source.name]
        assert [s.share for s in mine] == list(range(mine[0].shares)) == list(range(len(mine)))


def test_sources_stay_whole_while_there_are_enough():
    sources = [make_source(n, w) for n, w in (("a", 500), ("b", 300), ("c", 200))]
    shares = assign_shares(mix_of(*sources), ["loader-0", "loader-1"])
    assert shares == (
        LoaderShare("loader-0", "a", 0, 1),
        LoaderShare("loader-1", "b", 0, 1),
        LoaderShare("loader-1", "c", 0, 1),
    )


def test_sources_stay_whole_where_more_shares_are_no_fairer():
    mix = mix_of(*(make_source(name, weight) for name, weight in (("a", 1), ("b", 4), ("c", 4))))
    assert [s.shares for s in assign_shares(mix, ["loader-0", "loader-1"])] == [1, 1, 1]


@pytest.mark.parametrize("loaders", [1, 2, 3, 5, 8, 20, 50])
@pytest.mark.parametrize("weights", [(60, *[2] * 20), (1, 1, 1), (90, 9, 1), (1000,), (1,) * 64], ids=str)
def test_twice_the_loaders_serve_twice_the_tokens_however_skewed_the_mix(loaders, weights):
    mix = mix_of(*(make_source(f"s{i:02d}", w) for i, w in enumerate(weights)))
    load = Counter()
    for share in assign_shares(mix, [f"loader-{i}" for i in range(loaders)]):
        load[share.loader] += mix.sources[int(share.source[1:])].weight / share.shares
    fair = sum(weights) / loaders
    assert max(load.values()) <= 1.2 * fair


def test_a_source_that_becomes_heavy_in_a_later_phase_is_split_from_the_start():
    mix = replace(
        mix_of(make_source("a", 90), make_source("b", 10)), phases=(PhaseConfig(from_step=9, weights={"b": 1}),)
    )
    shares = assign_shares(mix, [f"loader-{i}" for i in range(4)])
    assert len([s for s in shares if s.source == "b"]) > 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 2, 1), (1, 2, 0)])
def test_a_share_in_several_messages_is_indexed_once_all_are_there_in_any_order(tmp_path, order):
    mix = make_job(tmp_path).mix
    progress = IndexProgress(mix)
    progress.assign(["loader-0"])
    code, docs = parts_of(mix, 1)
    progress.add(docs)
    split = list(messages(code, most=-(-BLOCKS // 3)))
    for number in order[:-1]:
        progress.add(split[number])
        assert not progress.complete
    progress.add(split[order[-1]])
    assert progress.complete
    assert merge(mix, progress.parts()) == merge(mix, [code, docs])


def test_a_share_that_is_split_in_another_way_begins_again(tmp_path):
    mix = make_job(tmp_path).mix
    progress = IndexProgress(mix)
    progress.assign(["loader-0"])
    code, docs = parts_of(mix, 1)
    progress.add(docs)
    for single in messages(code, most=1):
        progress.add(single)
    halves = list(messages(code, most=-(-BLOCKS // 2)))
    progress.add(halves[1])
    assert not progress.complete
    progress.add(halves[0])
    assert progress.complete
    assert merge(mix, progress.parts()) == merge(mix, [code, docs])


def test_a_share_that_an_earlier_coordinator_has_assigned_counts_for_nothing(tmp_path):
    mix = make_job(tmp_path).mix
    progress, parts = IndexProgress(mix), parts_of(mix, 1)
    progress.add(Indexed(LoaderShare("loader-1", "code", 1, 2), blocks_of("code")[1::2], "another hash", 300))
    progress.assign(["loader-0"])
    for part in parts:
        progress.add(part)
    assert progress.complete and merge(mix, progress.parts()) == merge(mix, parts)


def test_blocks_beyond_one_message_come_with_the_next(tmp_path):
    mix = make_job(tmp_path).mix
    progress = IndexProgress(mix)
    many = tuple(replace(block_of("code", 0), ordinal=n) for n in range(BLOCKS_IN_MESSAGE + 3))
    progress.index = Index((SourceIndex("code", many),), 257)
    first, second = progress.blocks("code"), progress.blocks("code", BLOCKS_IN_MESSAGE)
    assert first.total == second.total == len(many)
    assert first.blocks + second.blocks == many


def test_the_heaviest_source_is_split_first():
    shares = assign_shares(mix_of(make_source("a", 700), make_source("b", 300)), [f"loader-{i}" for i in range(3)])
    assert [(s.source, s.share, s.shares) for s in shares] == [("a", 0, 2), ("a", 1, 2), ("b", 0, 1)]


@pytest.mark.parametrize("loaders", [1, 2, 3, 5])
def test_the_merged_index_does_not_depend_on_the_number_of_loaders(tmp_path, loaders):
    mix = make_job(tmp_path).mix
    assert merge(mix, parts_of(mix, loaders)) == merge(mix, parts_of(mix, 1))


def test_different_tokenizers_are_refused_with_the_sources_named(tmp_path):
    mix = make_job(tmp_path).mix
    code, docs = parts_of(mix, 1)
    with pytest.raises(Refused, match="code and docs have different tokenizers") as caught:
        merge(mix, [code, replace(docs, tokenizer="other")])
    assert caught.value.reason == "TokenizerMismatch"


def test_loaders_that_listed_different_objects_are_noticed(tmp_path):
    mix = make_job(tmp_path).mix
    first, *others = parts_of(mix, 3)
    with pytest.raises(Refused, match="'code': its loaders listed different objects"):
        merge(mix, [replace(first, blocks=first.blocks[:1]), *others])


@given(st.lists(st.lists(st.integers(0, 8), max_size=5), min_size=1, max_size=4))
def test_shares_that_are_every_nth_block_in_order_are_merged_and_others_are_refused(dealt):
    """Parts of drawn blocks: a source is what has each block once, share i of n every n-th of all of them, from the i-th on."""
    mix = mix_of(make_source("code", 1))
    parts = [
        Indexed(
            LoaderShare(f"loader-{i}", "code", i, len(dealt)), tuple(block_of("code", b) for b in some), "hash", 257
        )
        for i, some in enumerate(dealt)
    ]
    numbers = sorted(number for some in dealt for number in some)
    whole = [block_of("code", number) for number in numbers]
    if (
        whole
        and len(set(numbers)) == len(numbers)
        and all(whole[i :: len(dealt)] == list(part.blocks) for i, part in enumerate(parts))
    ):
        (source,) = merge(mix, parts[::-1]).sources
        assert source.blocks == whole
    else:
        with pytest.raises(Refused, match="listed different objects" if whole else "without a readable sample"):
            merge(mix, parts)


def test_parts_that_come_once_there_is_an_index_are_not_kept(tmp_path):
    """A loader that starts again sends all of its blocks, of which there may be millions."""
    progress = IndexProgress(make_job(tmp_path).mix)
    progress.assign(["loader-0"])
    code, docs = parts_of(make_job(tmp_path).mix, 1)
    progress.add(code)
    progress.add(docs)
    index = merge(make_job(tmp_path).mix, progress.parts())
    progress.finish(index)
    progress.add(code)
    assert progress.missing == list(progress.shares)
    assert progress.blocks("code").blocks == tuple(index.sources[0].blocks)


def test_a_source_without_readable_samples_is_refused_by_name(tmp_path):
    mix = make_job(tmp_path).mix
    code, docs = parts_of(mix, 1)
    empty = tuple(replace(b, samples=0) for b in docs.blocks)
    with pytest.raises(Refused, match="without a readable sample: docs") as caught:
        merge(mix, [code, replace(docs, blocks=empty)])
    assert caught.value.reason == "SourceEmpty"


def test_samples_that_do_not_decode_are_counted_over_all_shares(tmp_path):
    mix = make_job(tmp_path).mix
    mix = replace(mix, sources=(replace(mix.sources[0], max_rejected=5), mix.sources[1]))

    def with_rejects(each: int) -> list[Indexed]:
        return [replace(p, blocks=tuple(replace(b, rejected=each) for b in p.blocks)) for p in parts_of(mix, 5)]

    with pytest.raises(Refused, match=r"'code': 6 samples do not decode .* 5 are allowed") as caught:
        merge(mix, [p for p in with_rejects(1) if p.share.source == "code"] + parts_of(mix, 5)[-2:])
    assert caught.value.reason == "TooManyRejected"


def test_the_hash_names_the_source_that_changed(tmp_path):
    mix = make_job(tmp_path).mix
    code, docs = parts_of(mix, 1)
    changed = merge(mix, [code, replace(docs, blocks=(replace(docs.blocks[0], key="new"), *docs.blocks[1:]))])
    before, after = merge(mix, [code, docs]).hash.split(","), changed.hash.split(",")
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert after[1].startswith("docs=")


def test_the_report_of_a_source_counts_its_documents_and_tokens(tmp_path):
    mix = make_job(tmp_path).mix
    index = merge(mix, parts_of(mix, 1))
    code, _ = source_reports(mix, index, lambda b: lengths_of("code", int(b.path[5:7])))
    lengths = np.concatenate([lengths_of("code", b) for b in range(BLOCKS)])
    assert (code.documents, code.tokens, code.max) == (BLOCKS * SAMPLES, lengths.sum(), lengths.max())
    assert code.p50 <= code.p90 <= code.p99 <= code.max


EARLIER = b'{"path":"a","ordinal":0,"offset":0,"size":9,"object_size":9,"etag":"e","samples":2,"rejected":0,"tokens":9,"key":"k"}'


def test_the_shortest_document_is_not_known_where_a_block_was_indexed_by_an_earlier_release():
    old = msgspec.json.decode(EARLIER, type=BlockEntry)
    new, empty = replace(old, ordinal=1, shortest=7), replace(old, ordinal=2, samples=0, shortest=0)
    assert msgspec.json.encode(old) == EARLIER
    known = [shortest_of(blocks) for blocks in ([old, new], [new, empty], [old], [])]
    assert known == [0, 7, 0, 0]


def sampled(tmp_path, blocks: int, documents: int, read: Callable[[BlockEntry], None]) -> SourceReport:
    """The report of a source of so many blocks, each of so many documents of 1, 2, 3, ... tokens."""

    def lengths(block: BlockEntry) -> np.ndarray:
        read(block)
        return np.arange(1, block.samples + 1, dtype=np.uint32)

    mix = mix_of(make_job(tmp_path).mix.sources[0])
    name = mix.sources[0].name
    entries = tuple(replace(block_of(name, 0), ordinal=n, samples=documents) for n in range(blocks))
    (found,) = source_reports(mix, Index((SourceIndex(name, entries),), 257), lengths)
    return found


def test_the_blocks_of_a_report_are_read_side_by_side(tmp_path):
    """One after another, those of 300 sources would keep a new coordinator from its first plan for minutes."""
    others = threading.Barrier(16, timeout=20)
    assert sampled(tmp_path, 64, 100, lambda _: others.wait() and None).p50 == 50


@pytest.mark.parametrize(("blocks", "documents", "reads"), [(1000, 1000, 63), (1000, 1 << 20, 4), (3, 1 << 20, 3)])
def test_the_blocks_of_a_report_are_few_where_each_has_many_documents(tmp_path, blocks, documents, reads):
    read = []
    found = sampled(tmp_path, blocks, documents, read.append)
    assert (len(read), found.documents, found.max) == (reads, blocks * documents, documents)


def test_the_percentiles_of_a_source_are_lengths_that_its_documents_have(tmp_path):
    mix = mix_of(make_job(tmp_path).mix.sources[0])
    name = mix.sources[0].name
    index = Index((SourceIndex(name, (replace(block_of(name, 0), samples=2),)),), 257)
    (found,) = source_reports(mix, index, lambda _: np.array([1, 1001], np.uint32))
    assert (found.p50, found.p90, found.p99, found.max) == (1, 1, 1, 1001)


@pytest.mark.slow
async def test_an_index_beyond_one_message_travels_to_the_coordinator_and_back(tmp_path):
    """300,000 blocks of Jsonl, which one message may not carry."""
    state = JobState(make_job(tmp_path), build("coordinator"), None, time.time)
    service = HttpService(TOKEN, lambda: 0, state.metrics)
    Handlers(state, lambda: None).routes(service)
    port = await service.start("127.0.0.1", 0)
    block = replace(block_of("code", 0), key="k" * 64, etag="e" * 34, path="shards/part-00000.jsonl")
    many = tuple(replace(block, ordinal=n, offset=n << 21) for n in range(300_000))
    whole = Indexed(LoaderShare("loader-0", "code", 0, 1), many, "hash", 257)
    state.index_progress.shares = (whole.share,)

    def exchange() -> tuple[object, ...]:
        with Client(f"http://127.0.0.1:{port}", TOKEN, 60.0) as client:
            with pytest.raises(Refused, match="413"):
                client.post("/v1/indexed", whole)
            for part in messages(whole):
                client.post("/v1/indexed", part)
            parts = state.index_progress.parts()
            state.index_progress.index = Index(
                (SourceIndex("code", [block for part in parts for block in part.blocks]),), 257
            )
            return all_blocks(client, "code", 1.0)

    try:
        assert await asyncio.to_thread(exchange) == many
    finally:
        await service.stop()
