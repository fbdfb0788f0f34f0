"""Bad data in a whole run: what the user sees, and that nothing is lost. What is slow has a twin in tests/unit."""

import gzip
import json
import os
import random
import re
import shutil
import signal

import numpy as np
import pytest
import safetensors.numpy

from tests.local.jobs import SERVICES, Run, find_service, job_objects, source, wait_for_step, wait_until
from tests.unit.test_data_bad_input import write_tokenizer

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def objects(tmp_path, corpus):
    return job_objects(corpus, f"file://{tmp_path}/checkpoints", trainers=1)


def said(run: Run) -> str:
    assert "Traceback" not in run.output
    return re.sub(r"\s+", " ", run.output)


@pytest.fixture
def bad(tmp_path):
    (tmp_path / "bad").mkdir()
    return tmp_path / "bad"


@pytest.mark.slow
def test_a_truncated_archive_is_refused_by_its_path(tmp_path, objects, bad):
    lines = "".join(json.dumps({"text": f"{random.Random(i).random()}"}) + "\n" for i in range(300))
    (bad / "cut.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-100])
    objects[1] = source("docs", f"file://{bad}", "Jsonl", "**/*.gz")
    run = Run(tmp_path, objects)
    assert run.run() == 1
    assert "ObjectUnreadable" in said(run)
    assert "bad/cut.jsonl.gz cannot be unpacked" in said(run)
    assert "upload it again or exclude it with `include`" in said(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "is not a tokenizer.json of Hugging Face's tokenizers library"),
        (None, "tokenizer.json' does not exist"),
    ],
    ids=["broken", "missing"],
)
def test_a_tokenizer_that_cannot_be_used_is_refused_by_its_uri(tmp_path, objects, bad, content, words):
    if content is not None:
        (bad / "tokenizer.json").write_text(content)
    for i in (0, 1):
        objects[i]["spec"]["tokenizer"] = {"file": {"uri": f"file://{bad}/tokenizer.json"}}
    run = Run(tmp_path, objects)
    assert run.run() == 1
    assert "TokenizerUnusable" in said(run)
    assert words in said(run)


@pytest.mark.slow
def test_a_vocabulary_below_the_tokenizers_is_refused_with_both_numbers(tmp_path, objects):
    objects[-1]["spec"]["model"]["config"]["vocabulary"] = 200
    run = Run(tmp_path, objects)
    assert run.run() == 1
    assert "model.config.vocabulary is 200, the tokenizer has 257 ids" in said(run)


def test_weights_of_another_model_to_start_from_are_refused_by_name(tmp_path, objects, bad):
    (bad / "model.safetensors").write_bytes(safetensors.numpy.save({"model.norm.weight": np.ones(7, np.float32)}))
    objects[-1]["spec"]["model"]["initFrom"] = {"uri": f"file://{bad}"}
    run = Run(tmp_path, objects)
    assert run.run() == 1
    assert "ForeignWeights" in said(run)
    assert "model.embed_tokens.weight is missing, this model needs [320, 32]; change model.config" in said(run)


def test_content_that_changes_under_a_run_ends_it_by_name_and_loses_no_checkpoint(tmp_path, corpus):
    """Once restored, the stream is the same and the next run resumes from the last checkpoint."""
    folder = tmp_path / "corpus"
    shutil.copytree(corpus.removeprefix("file://"), folder)
    objects = job_objects(f"file://{folder}", f"file://{tmp_path}/checkpoints", trainers=1, stop={"steps": 400})
    objects[-1]["spec"]["failurePolicy"] = {"maxRestarts": 0}
    run = Run(tmp_path, objects)
    cox = run.start()
    wait_for_step(run, cox, 4)
    (folder / "code").rename(folder / "away")
    assert run.finish(cox) == 1, run.output
    assert "SourceChanged" in said(run), run.output + run.logs()
    assert re.search(r"code/part-\d\.parquet was indexed and is gone; bring the indexed content back", said(run))
    (folder / "away").rename(folder / "code")
    saved = [int(p.stem.removeprefix("step-")) for p in (tmp_path / "checkpoints" / "manifests").iterdir()]
    objects[-1]["spec"]["stop"] = {"steps": max(saved) + 3}
    again = Run(tmp_path / "again", objects)
    assert again.run() == 0, again.output + again.logs()
    assert min(again.steps()) == max(saved)


@pytest.mark.slow
def test_a_tokenizer_that_is_swapped_under_a_run_ends_it_by_name_once_a_loader_starts_again(tmp_path, corpus, bad):
    """Both have the same tokens in another order: no length changes."""
    tokenizer = write_tokenizer(bad / "tokenizer.json", "a", "b", "c")
    objects = job_objects(corpus, f"file://{tmp_path}/checkpoints", trainers=1, stop={"steps": 400})
    for i in (0, 1):
        objects[i]["spec"]["tokenizer"] = {"file": {"uri": tokenizer.uri}}
    run = Run(tmp_path, objects)
    cox = run.start()
    wait_for_step(run, cox, 4)
    write_tokenizer(bad / "tokenizer.json", "c", "b", "a")
    os.kill(wait_until(lambda: find_service(cox, SERVICES["loader"]), "the loader"), signal.SIGKILL)
    assert run.finish(cox) == 1, run.output + run.logs()
    assert "TokenizerChanged" in said(run), run.output + run.logs()
    assert "was indexed with another tokenizer than its present one; restore the former tokenizer" in said(run)
