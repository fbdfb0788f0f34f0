"""The bench of data loading: what it writes, what it counts, and what it says of a system that goes on elsewhere."""

import hashlib
import io
import json
import os
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bench.loading import corpus, measure, sessions
from bench.loading.__main__ import SERVICES
from bench.loading.environments import SYSTEMS
from bench.loading.rank import digest, read
from bench.loading.ranks import Place, Ranks, Shape
from docs.tools import loading
from tests.local.jobs import wait_until

TEXTS = [" ".join(f"word{n * part % 97}" for n in range(3000)) for part in range(1, 5)]
ROUND = {"case": "2 sources, 1 ranks", "workers": 2, "first": 1.5, "cpu": 2.0, "memory": 300.0, "processes": 3}


def tokenizer() -> bytes:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    return made.to_str().encode()


@pytest.fixture
def small(tmp_path):
    """Three sources of some hundred documents."""
    return corpus.write(tmp_path / "corpus", TEXTS, tokenizer(), 3, 60_000)


def test_the_same_texts_give_the_same_documents_and_no_two_sources_begin_alike(small, tmp_path):
    again = corpus.write(tmp_path / "again", TEXTS, tokenizer(), 3, 60_000)
    read = [list(small.texts(name)) for name in small.sources]
    assert read == [list(again.texts(name)) for name in again.sources]
    assert len({texts[0] for texts in read}) == 3
    assert all(60_000 <= sum(map(len, texts)) <= 60_000 + corpus.LONGEST for texts in read)


@pytest.mark.parametrize("count", [1, 2, 64, 300])
def test_each_source_has_a_weight_and_the_first_the_most(tmp_path, count):
    for number in range(count):
        (tmp_path / "sources" / f"s{number:03d}").mkdir(parents=True)
    weights = corpus.Corpus(tmp_path).weights()
    assert len(weights) == count
    assert min(weights) >= 1
    assert weights == sorted(weights, reverse=True)


@pytest.mark.slow
def test_the_stream_dataset_goes_on_with_its_own_batches_whatever_the_ranks_and_workers(small, tmp_path):
    place = Place("coxswain", small, tmp_path / "coxswain")
    assert measure.prepare(place)["written"] > 0
    two, one = Shape(2, 0, 4, tokens=1024), Shape(1, 0, 4, tokens=2048)
    whole = measure.read(place, two)
    assert measure.resumed(place, whole, two, tmp_path) == "same"
    assert measure.resumed(place, whole, one, tmp_path) == "same"
    half = Shape(1, 0, 4, tokens=1024)  # of a batch: another stream
    assert measure.resumed(place, whole, half, tmp_path) == "refused"


@pytest.mark.timeout(120)
def test_a_system_without_a_state_begins_again_which_is_another_stream(small, tmp_path):
    place = Place("bare", small, tmp_path / "bare")
    assert measure.resumed(place, measure.read(place, Shape(1, 0, 6)), Shape(1, 0, 6), tmp_path) == "other"


@pytest.mark.timeout(60)
def test_what_is_read_is_measured_and_leaves_no_process(small, tmp_path):
    found = measure.cost(Place("bare", small, tmp_path), Shape(1, 0, 20))
    assert found["tokens"] > 0
    assert 0 < found["first"] < 60
    assert 0 < found["cpu"] < 100
    assert found["memory"] > 10
    with Ranks(Place("bare", small, tmp_path), Shape(1, 0, 20)) as ranks:
        ranks.until("warm")
        assert sessions.processes(ranks.sessions)
    assert not sessions.processes(ranks.sessions)


def test_a_rank_is_done_while_its_workers_still_run(monkeypatch):
    """A loop that is left ends them, and neither their memory nor their number would be measured."""
    said, ended = [], []

    def batches():
        try:
            while True:
                yield [[1, 2]]
        finally:
            ended.append("workers")

    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    monkeypatch.setattr("builtins.print", lambda line, **_: said.append((json.loads(line), tuple(ended))))
    read(batches(), 2, 3, False, 0.0)
    assert [(line["event"], line.get("tokens"), gone) for line, gone in said] == [
        ("first", None, ()), ("warm", 6, ()), ("done", 12, ()),
    ]  # fmt: skip
    assert ended == ["workers"]


@pytest.mark.timeout(60)
def test_a_rank_that_ends_before_its_time_is_an_error(tmp_path):
    with Ranks(Place("bare", corpus.Corpus(tmp_path / "none"), tmp_path), Shape(1, 0, 5)) as ranks:
        with pytest.raises(RuntimeError, match="rank 0 ended before 'warm'"):
            ranks.until("warm")


@pytest.mark.timeout(60)
def test_orphans_of_a_session_count_and_end_with_it():
    """The child's parent ends at once."""
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    rank = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    assert rank.wait() == 0
    wait_until(lambda: sessions.processes([rank.pid]), "the orphan")
    assert sessions.memory(sessions.processes([rank.pid])) > 1
    sessions.end([rank.pid])
    assert not sessions.processes([rank.pid])
    assert os.getpid() in sessions.processes([os.getsid(0)])


def test_rounds_become_their_medians_and_every_system_has_a_name():
    rows = [ROUND | {"system": "mosaic", "tokens": rate} for rate in (100.0, 300.0, 200.0)]
    services = {k: v for k, v in ROUND.items() if k not in ("first", "tokens")} | {"system": "coxswain, services"}
    resumes = [{"system": "mosaic", "as before": "same", "half the ranks": "other"}]
    prepared = {"case": "2 sources", "system": "mosaic", "prepare": 4.0, "written": 23.25}
    figures = {"rows": [prepared, *rows, services], "resumes": resumes, "rounds": 3, "batches": 400}
    origin = {"command": "make bench-loading", "commit": "abc", "recorded": "2026-12-01", "machine": "2 cores"}
    lines = loading.tables({"figures": figures, **origin}).splitlines()
    assert "| 2 sources, 1 ranks | MosaicML Streaming | 1.5 | 200 | 2 | 300 | 3 |" in lines
    assert "| 2 sources, 1 ranks | Coxswain, loaders and constructors of a job | - | - | 2 | 300 | 3 |" in lines
    assert "| 2 sources | MosaicML Streaming | 4 | 23.2 |" in lines
    assert "| MosaicML Streaming | same | other |" in lines
    assert set(loading.NAMES) == {*SYSTEMS, *SERVICES}


def test_without_a_record_the_page_says_how_to_make_one():
    assert loading.tables(None) == "Not recorded yet: `make bench-loading`."


def test_a_document_has_the_ids_of_its_text_and_an_end_also_in_another_process(small):
    encode = corpus.Encoder(small.tokenizer)
    ids = encode("word1 word2")
    plain = Tokenizer.from_file(str(small.tokenizer))
    assert ids.tolist() == [*plain.encode("word1 word2").ids, plain.token_to_id("<|endoftext|>")]
    assert encode.__getstate__()["_tokenizer"] is None


def test_a_digest_is_of_the_ids_whatever_their_type(small):
    one, other = corpus.Encoder(small.tokenizer)("word1"), [int(n) for n in corpus.Encoder(small.tokenizer)("word1")]
    assert digest(one) == digest(other)
    assert len(digest(one)) == 16
    assert json.dumps(digest(one))
    assert digest([]) == hashlib.sha256(b"").hexdigest()[:16]
