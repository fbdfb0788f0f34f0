"""The block index: the same for any number of loaders, reused, and strict about rejects."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models

from coxswain.config import MixConfig, SourceConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain.index import BlockEntry, decode, encode, object_key
from coxswain.membership.values import Sequence
from coxswain.planlog import LoaderShare
from coxswain.wire import Indexed
from coxswain_coordinator.index.merge import merge
from coxswain_data import indexer
from coxswain_data.formats.object_reader import Sizes
from coxswain_data.index_record import BLOCKS, Counted, ShareRecord, ShareRecords, StoredIndexes
from coxswain_data.local import LocalData, materialise
from coxswain_data.source import Source, open_source
from coxswain_data.tokenizer import BytesTokenizer, token_ids
from coxswain_link.store import CorruptObject, Store, open_store

DOCUMENTS = [f"document {i} " + "x" * (i * 37 % 101) for i in range(60)]
SIZES = Sizes(jsonl_block=300)


def config(folder: Path, format_: str = "Jsonl", **fields: object) -> SourceConfig:
    return SourceConfig(
        name="mine", source="mine", uri=folder.as_uri(), format=format_, include="**", text_field="text",
        tokenizer=TokenizerConfig(kind="bytes"), weight=1, **fields,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store((tmp_path / "runs").as_uri(), create=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three Jsonl files of several blocks each."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part in range(3):
        lines = [json.dumps({"text": d}) for d in DOCUMENTS[part * 20 : part * 20 + 20]]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def indexed(
    folder: Path, store: Store, share: int = 0, shares: int = 1, stored: StoredIndexes | None = None, **fields: object
) -> Indexed:
    return indexer.index_share(
        open_source(config(folder, **fields), sizes=SIZES),
        BytesTokenizer(),
        store,
        LoaderShare("l", "mine", share, shares),
        stored,
    )


@pytest.fixture
def requests(monkeypatch) -> list[tuple[str, str]]:
    """Every get and list of a store."""
    seen: list[tuple[str, str]] = []

    def watch(kind: str) -> None:
        real = getattr(Store, kind)
        monkeypatch.setattr(Store, kind, lambda self, key="": seen.append((kind, key)) or real(self, key))

    watch("get")
    watch("list")
    return seen


def records(store: Store) -> list[str]:
    return [info.path for info in store.list("index/shares/")]


def forget_records(store: Store) -> None:
    for path in records(store):
        store.delete(path)


def write_lines(folder: Path, *lines: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return folder


def test_the_index_counts_every_document_and_its_tokens(corpus, store):
    blocks = indexed(corpus, store).blocks
    assert sum(b.samples for b in blocks) == len(DOCUMENTS)
    assert sum(b.tokens for b in blocks) == sum(len(d) + 1 for d in DOCUMENTS)
    assert len(blocks) > 9


@pytest.mark.parametrize("shares", [2, 3, 7])
def test_any_number_of_loaders_gives_the_same_index(corpus, store, tmp_path, shares):
    whole = indexed(corpus, store).blocks
    other = open_store((tmp_path / "other").as_uri(), create=True)
    parts = [indexed(corpus, other, i, shares).blocks for i in range(shares)]
    assert sorted(b for p in parts for b in p) == list(whole)
    assert [other.get(object_key(b.key)) for b in whole] == [store.get(object_key(b.key)) for b in whole]


def test_a_second_job_over_the_same_data_reads_none_of_it(corpus, store, monkeypatch):
    first = indexed(corpus, store)
    monkeypatch.setattr(Source, "read", lambda self, entry: pytest.fail(f"read {entry}"))
    assert indexed(corpus, store) == first


def test_indexes_that_are_there_are_read_side_by_side(corpus, store, monkeypatch):
    """One after another, those of a large source would hold up a start with another number of loaders for hours."""
    first, others, get = indexed(corpus, store), threading.Barrier(8, timeout=20), Store.get
    forget_records(store)
    calls = count()

    def together(self: Store, key: str) -> bytes:
        if key.endswith(".npz") and next(calls) < others.parties:
            others.wait()
        return get(self, key)

    monkeypatch.setattr(Store, "get", together)
    assert len(first.blocks) > others.parties
    assert indexed(corpus, store) == first


def test_a_restart_reads_a_record_of_each_share_and_no_index(corpus, store, requests):
    """An index a block would be millions of requests at each restart of a job over millions of files."""
    first = [indexed(corpus, store, share, 2) for share in range(2)]
    requests.clear()
    stored = StoredIndexes(store)
    assert [indexed(corpus, store, share, 2, stored) for share in range(2)] == first
    assert sorted(key for kind, key in requests if kind == "get" and "/files" not in key) == records(store)
    folders = [key for kind, key in requests if kind == "list" and "/files" not in key]
    assert len(folders) == len(set(folders)) <= 256


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 2), (2, 1), (2, 5)])
def test_a_restart_with_another_number_of_loaders_reads_records_and_no_index(corpus, store, requests, before, after):
    """A new coordinator of a job whose loaders were scaled waited for an index a block."""
    first = [b for share in range(before) for b in indexed(corpus, store, share, before).blocks]
    requests.clear()
    again = [b for share in range(after) for b in indexed(corpus, store, share, after).blocks]
    assert sorted(again) == sorted(first)
    assert not [key for kind, key in requests if kind == "get" and key.endswith(".npz")]
    requests.clear()
    assert [b for share in range(after) for b in indexed(corpus, store, share, after).blocks] == again
    own = [key for kind, key in requests if kind == "get" and "/shares/" in key]
    assert len(own) == after  # kept for the next start


def test_a_restart_with_another_number_of_loaders_reads_no_record_of_another_source(corpus, store, requests, tmp_path):
    """A mix of hundreds of sources would read hundreds of records a share."""
    (tmp_path / "other").mkdir()
    write_lines(tmp_path / "other", b'{"text": "one"}')
    indexed(tmp_path / "other", store)
    theirs = set(records(store))
    indexed(corpus, store)
    requests.clear()
    indexed(corpus, store, 0, 2)
    read = {key for kind, key in requests if kind == "get" and key.startswith("index/shares/")}
    assert read
    assert not read & theirs


def test_a_restart_with_another_number_of_loaders_builds_an_index_again_that_is_lost(corpus, store):
    first = indexed(corpus, store)
    key = object_key(first.blocks[1].key)
    whole = store.get(key)
    store.delete(key)
    assert sorted(b for share in range(2) for b in indexed(corpus, store, share, 2).blocks) == list(first.blocks)
    assert store.get(key) == whole


@pytest.mark.parametrize("left", [None, 0, 50, 400])
def test_a_restart_builds_an_index_again_that_is_lost_or_torn(corpus, store, left):
    first = indexed(corpus, store)
    key = object_key(first.blocks[1].key)
    whole = store.get(key)
    store.delete(key) if left is None else store.put(key, whole[:left])
    assert indexed(corpus, store) == first
    assert store.get(key) == whole


@pytest.mark.parametrize("content", [b"", b"[", b"[]", b'[["key","e",1,0,1,1,1]]', b"\xff"])
def test_a_record_that_is_torn_counts_for_nothing(corpus, store, content):
    first = indexed(corpus, store)
    (record,) = records(store)
    whole = store.get(record)
    store.put(record, content)
    assert indexed(corpus, store) == first
    assert store.get(record) == whole


def test_samples_that_do_not_decode_are_named_also_where_they_are_recorded(tmp_path, store):
    folder = write_lines(tmp_path / "c", b'{"text": "one"}', b"no json", b'{"text": null}')
    indexed(folder, store, max_rejected=2)
    with pytest.raises(Refused, match=r"2 samples .* 1 are allowed; the first: .*a\.jsonl at byte 16 .*at byte 24"):
        indexed(folder, store, max_rejected=1)


def test_rejects_that_another_share_has_recorded_do_not_count_in_this_one(tmp_path, store, requests):
    """Beyond the limit a loader reads every index, for the places that it has to name."""
    (tmp_path / "c").mkdir()
    for name in "abcd":
        (tmp_path / "c" / f"{name}.jsonl").write_bytes(b'{"text": "one"}\n' + b"no json\n" * (name < "c"))
    whole = indexed(tmp_path / "c", store, max_rejected=2).blocks
    requests.clear()
    again = [b for share in range(2) for b in indexed(tmp_path / "c", store, share, 2, max_rejected=1).blocks]
    assert sorted(again) == sorted(whole)
    assert not [key for kind, key in requests if kind == "get" and key.endswith(".npz")]


def test_rejects_that_are_recorded_count_beside_those_of_a_block_that_is_indexed_again(corpus, store):
    (corpus / "0.jsonl").write_bytes(b"no json\n" + (corpus / "0.jsonl").read_bytes())
    (corpus / "2.jsonl").write_bytes(b"no json\n" + (corpus / "2.jsonl").read_bytes())
    first = indexed(corpus, store, max_rejected=2)
    store.delete(object_key(first.blocks[0].key))
    assert indexed(corpus, store, max_rejected=2) == first
    store.delete(object_key(first.blocks[0].key))
    with pytest.raises(Refused, match=r"2 samples .* 1 are allowed; the first: .*0\.jsonl at byte 0"):
        indexed(corpus, store, max_rejected=1)


@pytest.mark.slow
def test_a_large_share_is_recorded_in_several_objects(store):
    """Two and a half records of blocks."""
    named = [BlockEntry(f"{n}", 0, 0, 1, 1, "e", key=f"{n:064x}") for n in range(BLOCKS * 5 // 2)]
    shares = [named[start : start + BLOCKS] for start in range(0, len(named), BLOCKS)]
    for some in shares:
        record = ShareRecord(ShareRecords(StoredIndexes(store), "mine"), some)
        for n, entry in enumerate(some):
            record.add(entry.key, Counted(entry.key, "e", n, 0, n, 1, 5))
        record.save()
    for entry in named[:: BLOCKS // 2]:
        store.put(object_key(entry.key), b"12345")
    again = ShareRecords(StoredIndexes(store), "mine")
    known = [entry.key in record for some in shares for record in [ShareRecord(again, some)] for entry in some]
    assert (len(records(store)), known[:: BLOCKS // 4]) == (3, [True, False] * 5)


def test_more_loaders_than_blocks_leave_some_without_work(tmp_path, store):
    """They say so: a coordinator waits for every share."""
    folder = write_lines(tmp_path / "c", b'{"text": "one"}')
    found = [indexed(folder, store, i, 3) for i in range(3)]
    assert [sum(b.samples for b in each.blocks) for each in found] == [1, 0, 0]
    sent = [list(indexer.messages(each)) for each in found]
    assert [[(m.share, m.blocks, m.part, m.parts) for m in some] for some in sent] == [
        [(each.share, tuple(each.blocks), 0, 1)] for each in found
    ]


def test_rejected_samples_are_counted_and_not_indexed(tmp_path, store):
    folder = write_lines(tmp_path / "c", b'{"text": "one"}', b"no json", b'{"text": "two"}', b'{"text": null}')
    block = indexed(folder, store, max_rejected=2).blocks[0]
    assert (block.samples, block.rejected) == (2, 2)
    assert indexed(folder, store, max_rejected=2).blocks[0] == block  # from the store, the count included


def test_more_rejected_samples_than_allowed_refuse_the_source_and_name_the_first(tmp_path, store):
    folder = write_lines(tmp_path / "c", b'{"text": "one"}', b"no json", b'{"text": null}')
    with pytest.raises(
        Refused, match=r"2 samples .* 1 are allowed.*a\.jsonl at byte 16 .*at byte 24.*maxRejected"
    ) as caught:
        indexed(folder, store, max_rejected=1)
    assert caught.value.reason == "TooManyRejected"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"body": "one"}', "Object missing required field `text`"),
        (b'{"text": null}', "got `null` - at `$.text`"),
        (b'{"text": "one"', "Input data was truncated"),
        (b'{"text": "gr\xfcn"}', "utf-8"),
    ],
)
def test_each_rejected_sample_that_is_named_says_what_is_wrong_with_it(tmp_path, store, line, fault):
    folder = write_lines(tmp_path / "c", b'{"text": "one"}', line, b"{}")
    with pytest.raises(Refused, match=rf"(?i)at byte 16 \(.*{re.escape(fault)}.*\); .*Name another textField"):
        indexed(folder, store)


def test_rejected_rows_of_parquet_are_named_by_row_group(tmp_path, store):
    (tmp_path / "c").mkdir()
    pq.write_table(pa.table({"text": ["a", "b", "c", None]}), tmp_path / "c" / "a.parquet", row_group_size=2)
    with pytest.raises(Refused, match=r"row 1 of row group 1 \(null\)"):
        indexed(tmp_path / "c", store, format_="Parquet")


def test_documents_without_text_are_left_out_and_not_counted_as_rejected(tmp_path, store):
    block = indexed(write_lines(tmp_path / "c", b'{"text": ""}', b'{"text": "x"}'), store).blocks[0]
    assert (block.samples, block.rejected, block.tokens) == (1, 0, 2)


def test_a_source_with_nothing_to_read_is_empty(tmp_path, store):
    with pytest.raises(Refused, match="no readable sample") as caught:
        indexed(write_lines(tmp_path / "c", b'{"text": ""}'), store)
    assert caught.value.reason == "SourceEmpty"


def test_the_same_content_read_in_another_way_has_another_index(tmp_path, store):
    folder = write_lines(tmp_path / "c", b'{"text": "one", "title": "two words"}')
    other = indexer.index_share(
        open_source(msgspec.structs.replace(config(folder), text_field="title")),
        BytesTokenizer(),
        store,
        LoaderShare("l", "mine", 0, 1),
    )
    assert indexed(folder, store).blocks[0].key != other.blocks[0].key
    assert other.blocks[0].tokens == len("two words") + 1


def local(folder: Path, store: Store) -> LocalData:
    return LocalData(
        MixConfig(name="m", seed=1, sources=(config(folder),)), store, open_one=partial(open_source, sizes=SIZES)
    )


def test_one_process_reads_the_documents_that_the_index_names(corpus, store):
    whole = [Sequence("mine", 0, i, 0, len(d) + 1, len(d) + 1) for i, d in enumerate(DOCUMENTS)]
    got = materialise(local(corpus, store), whole)
    assert [g.tolist() for g in got] == [[*d.encode(), 256] for d in DOCUMENTS]


def test_a_piece_of_a_sample_is_that_part_of_its_tokens(corpus, store):
    length = len(DOCUMENTS[7]) + 1
    got = local(corpus, store).tokens(Sequence("mine", 0, 7, 3, 10, length))
    assert bytes(got.tolist()).decode() == DOCUMENTS[7][3:10]


@pytest.mark.parametrize(
    "harm", [lambda p: p.unlink(), lambda p: p.write_text('{"text": "another"}\n')], ids=["gone", "rewritten"]
)
def test_content_that_changed_under_a_run_is_refused_by_name(corpus, store, harm: Callable[[Path], object]):
    data = local(corpus, store)
    data.blocks("mine")
    harm(corpus / "0.jsonl")
    with pytest.raises(Refused, match=r"0\.jsonl") as caught:
        data.tokens(Sequence("mine", 0, 0, 0, 5, len(DOCUMENTS[0]) + 1))
    assert caught.value.reason == "SourceChanged"


@pytest.mark.parametrize("left", [None, 0, 50, 400])
def test_an_index_that_is_lost_or_torn_under_a_run_is_built_again(corpus, store, left):
    data = local(corpus, store)
    key = object_key(data.blocks("mine")[0].key)
    whole = store.get(key)
    store.delete(key) if left is None else store.put(key, whole[:left])
    assert bytes(data.tokens(Sequence("mine", 0, 0, 0, 5, len(DOCUMENTS[0]) + 1)).tolist()) == DOCUMENTS[0].encode()[:5]
    assert store.get(key) == whole


@pytest.mark.parametrize("place", [0, -1], ids=["more samples before", "fewer samples before"])
def test_an_index_of_other_content_is_refused(corpus, store, place):
    data = local(corpus, store)
    first, *_, last = blocks = data.blocks("mine")
    assert first.samples != last.samples
    store.put(object_key(blocks[place].key), store.get(object_key(blocks[-1 - place].key)))
    with pytest.raises(Refused, match="was indexed with"):
        data.tokens(Sequence("mine", 0, place % len(DOCUMENTS), 0, 1, 2))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ({"lengths": 1}, "sample 0 has .* tokens and was indexed with"),
        ({"lengths": np.int64(-1)}, "sample 0 has .* tokens and was indexed with"),
        ({"at": 1}, "decoded when it was indexed and does not now"),
    ],
    ids=["greater lengths", "smaller lengths", "other places"],
)
def test_an_index_that_does_not_fit_its_block_is_refused_and_nothing_of_it_is_served(corpus, store, harm, says):
    data = local(corpus, store)
    key = object_key(data.blocks("mine")[0].key)
    index = decode(store.get(key))
    added = {field: getattr(index, field) + by for field, by in harm.items()}
    store.put(key, encode(msgspec.structs.replace(index, **added)))
    with pytest.raises(Refused, match=says) as caught:
        data.tokens(Sequence("mine", 0, 0, 0, 5, len(DOCUMENTS[0]) + 1))
    assert caught.value.reason == "SourceChanged"


def test_an_index_that_is_damaged_where_it_is_stored_is_built_again(corpus, store, monkeypatch):
    first, damaged, get = indexed(corpus, store), set(), Store.get
    forget_records(store)

    def broken(store: Store, key: str) -> bytes:
        if key.endswith(".npz") and key not in damaged:
            damaged.add(key)
            raise CorruptObject(key)
        return get(store, key)

    monkeypatch.setattr(Store, "get", broken)
    assert indexed(corpus, store) == first
    assert len(damaged) == len(first.blocks)


def test_one_thread_at_a_time_reads_and_tokenises(corpus, store, monkeypatch):
    data, barrier, met = local(corpus, store), threading.Barrier(2), []

    def meet(tokenizer, content):
        with suppress(threading.BrokenBarrierError):
            barrier.wait(0.2)
            met.append(content)
        return token_ids(tokenizer, content)

    data.blocks("mine")
    monkeypatch.setattr("coxswain_data.samples.token_ids", meet)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda i: data.tokens(Sequence("mine", 0, i, 0, 1, len(DOCUMENTS[i]) + 1)), (0, 1)))
    assert met == []


NAMES = (
    "a b",
    "50%",
    "ü#1.jsonl",
    "a%20b",
    "[x]?",
    "~a+b&c",
    "part#7",
    "Discussion #42",
    "a\nb",
    "\x01\x7f",
    "a\\b",
    "deep#1/x",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_may_have_any_name(tmp_path, store, name):
    path = tmp_path / "c" / name
    path.parent.mkdir(parents=True)
    path.write_text('{"text": "one"}\n')
    data = local(tmp_path / "c", store)
    assert data.tokens(Sequence("mine", 0, 0, 0, 4, 4)).tolist() == [*b"one", 256]


@pytest.mark.parametrize(
    ("model", "reason", "says"),
    [
        (models.BPE(vocab={"</s>": 0, "x": 1}, merges=[]), "SourceEmpty", "gives none of its documents a token before"),
        (
            models.WordLevel({"</s>": 0, "two": 1}),
            "TokenizerUnusable",
            r"t\.json' cannot encode a document \(.*\); correct",
        ),
    ],
    ids=["no token", "no word for what it does not know"],
)
def test_a_tokenizer_that_is_none_for_the_text_is_refused(tmp_path, store, model, reason, says):
    """Else each document would be an end of text alone, and no step would have anything to predict."""
    made = Tokenizer(model)
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "t.json"))
    folder = write_lines(tmp_path / "c", b'{"text": "one"}', b'{"text": "four"}')
    tokenizer = TokenizerConfig(kind="file", uri=(tmp_path / "t.json").as_uri())
    source = msgspec.structs.replace(config(folder), tokenizer=tokenizer)
    with pytest.raises(Refused, match=says) as caught:
        LocalData(MixConfig(name="m", seed=1, sources=(source,)), store).blocks("mine")
    assert caught.value.reason == reason


@pytest.mark.parametrize(("tokens", "refused"), [((1, 1), True), ((1, 2), False)])
def test_a_mix_is_refused_if_no_share_of_a_source_has_a_document_of_two_tokens(tmp_path, tokens, refused):
    blocks = [BlockEntry("a", i, 0, 1, 2, "", samples=1, tokens=count) for i, count in enumerate(tokens)]
    parts = [
        Indexed(LoaderShare(f"loader-{i}", "mine", i, 2), (block,), "bytes", 257) for i, block in enumerate(blocks)
    ]
    says = pytest.raises(Refused, match="source 'mine': its tokenizer gives none") if refused else nullcontext()
    with says:
        assert merge(MixConfig(name="m", seed=1, sources=(config(tmp_path),)), parts).vocabulary == 257
