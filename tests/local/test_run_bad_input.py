"""Bad files: `cox run` says what is wrong and the way out, and loses nothing. What is slow has a twin in tests/unit.

It leaves with 2 when it refuses the files, with 1 when the job fails on what only its services can see.
"""

import json
import re

import pytest
from typer.testing import CliRunner

from coxswain_cli.__main__ import app
from tests.local.failures import keep
from tests.local.jobs import Run, job_objects, source

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def objects(tmp_path, corpus):
    return job_objects(corpus, f"file://{tmp_path}/checkpoints", trainers=1)


def refused(run, *words):
    """Runs it and demands a refusal with all of these words (spaces as they break)."""
    return judged(run, run.run(), *words)


def refused_at_once(run, *words):
    """By `cox run` in this process: it starts no other."""
    done = CliRunner().invoke(app, ["run", str(run.write()), "--workdir", str(run.workdir)])
    run.output = done.output
    keep(done.output, done.exit_code)
    assert judged(run, done.exit_code, *words) == 2
    assert not (run.workdir / "logs").exists(), "it is refused before its first process"


def judged(run, code, *words):
    said = re.sub(r"\s+", " ", run.output)
    assert code in {1, 2}, f"exit {code}:\n{run.output}\n{run.logs()}"
    for word in words:
        assert word in said, f"{word!r} is not in:\n{run.output}\n{run.logs()}"
    assert "Traceback" not in run.output
    assert "\x1b" not in run.output, "a pipe is no terminal"
    assert not run.steps()
    return code


def test_malformed_yaml_is_named_by_line(tmp_path, objects):
    run = Run(tmp_path, objects)
    run.job_file = b"kind: TrainingJob\nspec: {stop: {steps: 3}\nmetadata: x\n"
    refused_at_once(run, "job.yaml", "line 3")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\xff\xfe" * 50, "job.yaml: cannot read the file: it is not UTF-8 text; save it as UTF-8, or name"),
        (b"", "a run has exactly one TrainingJob; the files hold 0 (none); name a file that holds it, or write it"),
        (
            b"kind: Pod\napiVersion: v1\n",
            "unknown kind 'Pod' (allowed: DataSource, DataMix, ParallelismPolicy, TrainingJob, NodeQuarantine)",
        ),
    ],
    ids=["binary", "empty", "another kind"],
)
def test_a_file_that_is_no_job_is_refused(tmp_path, objects, content, words):
    run = Run(tmp_path, objects)
    run.job_file = content
    refused_at_once(run, words)


def test_several_faults_are_reported_at_once(tmp_path, objects):
    job = objects[-1]["spec"]
    job["tainers"] = {"count": 3}
    job["stop"] = {"steps": 10, "tokens": 5}
    job["optimizer"]["learningRate"] = "fast"
    objects[0]["spec"]["format"] = "Csv"
    refused_at_once(Run(tmp_path, objects), "tainers", "stop", "learningRate", "Csv", "Parquet")


def test_a_mix_that_names_an_absent_source_is_refused_by_that_name(tmp_path, objects):
    del objects[1]
    refused_at_once(Run(tmp_path, objects), "DataSource 'docs' does not exist; create the DataSource docs")


@pytest.mark.slow
def test_a_source_whose_folder_is_absent_is_refused_by_its_uri(tmp_path, objects):
    objects[1] = source("docs", f"file://{tmp_path}/nowhere", "Jsonl", "**/*.jsonl")
    assert refused(Run(tmp_path, objects), "SourceNotFound", f"{tmp_path}/nowhere") == 1


@pytest.mark.slow
def test_a_source_without_a_matching_object_is_refused(tmp_path, objects, corpus):
    objects[1] = source("docs", f"{corpus}/docs", "Jsonl", "**/*.json")
    assert refused(Run(tmp_path, objects), "SourceEmpty", "docs", "**/*.json") == 1


def test_a_corrupt_parquet_file_is_refused_by_its_path(tmp_path, objects):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "torn.parquet").write_bytes(b"PAR1 this is no parquet file")
    objects[0] = source("code", f"file://{tmp_path}/bad", "Parquet", "**/*.parquet")
    assert refused(Run(tmp_path, objects), "torn.parquet") == 1


def test_undecodable_samples_beyond_the_limit_are_refused(tmp_path, objects):
    (tmp_path / "bad").mkdir()
    good = [json.dumps({"text": "some words " * 40}).encode() for _ in range(60)]
    (tmp_path / "bad" / "some.jsonl").write_bytes(b"\n".join([*good, b'{"text": "gr\xfcn"}', b"{not json", b""]))
    objects[1] = source("docs", f"file://{tmp_path}/bad", "Jsonl", "**/*.jsonl", maxRejected=1)
    assert refused(Run(tmp_path, objects), "TooManyRejected", "some.jsonl") == 1


def test_sources_of_one_mix_with_two_tokenizers_are_refused(tmp_path, objects):
    objects[1]["spec"]["tokenizer"] = {"file": {"uri": f"file://{tmp_path}/tokenizer.json"}}
    refused_at_once(Run(tmp_path, objects), "must share one tokenizer", "code: bytes, docs: file")


def test_devices_that_the_parallelism_does_not_divide_are_refused_with_both_numbers(tmp_path, objects):
    objects[-1]["spec"]["parallelism"] |= {"tensor": 2}
    words = "parallelism.tensor 2 must divide trainers.devicesPerTrainer 1; change one of the two"
    refused_at_once(Run(tmp_path, objects), words)


@pytest.mark.slow
def test_a_source_of_empty_files_is_refused_by_its_name(tmp_path, objects):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "nothing.jsonl").write_bytes(b"")
    objects[1] = source("docs", f"file://{tmp_path}/bad", "Jsonl", "**/*.jsonl")
    assert refused(Run(tmp_path, objects), "SourceEmpty", "source 'docs'", "its objects hold no data; fill them") == 1


def test_a_sequence_longer_than_all_replicas_hold_is_refused_with_the_numbers(tmp_path, objects):
    objects[-1]["spec"]["batch"]["maxSequenceTokens"] = 5000
    refused_at_once(Run(tmp_path, objects), "maxSequenceTokens", "5000", "tokensPerReplica")


@pytest.mark.slow
def test_a_job_that_is_active_for_longer_than_it_may_ends_by_the_name_of_its_deadline(tmp_path, objects):
    objects[-1]["spec"] |= {"activeDeadlineSeconds": 5, "stop": {"steps": 5000}}
    run = Run(tmp_path, objects)
    assert run.run() == 1
    said = re.sub(r"\s+", " ", run.output)
    assert (
        "DeadlineExceeded: the job was active for longer than activeDeadlineSeconds (5); raise it and retry the job"
        in said
    )
