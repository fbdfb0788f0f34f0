"""The main job's YAML: sound, resolvable, and as its comments and the corpus program say."""

from __future__ import annotations

from pathlib import Path

from coxswain.api.load import load_documents
from coxswain.api.resolve import resolve
from coxswain.api.validate import validate
from coxswain.config import JobConfig

EXAMPLES = Path(__file__).parents[2] / "examples"


def resolved() -> JobConfig:
    documents, faults = load_documents([EXAMPLES / "stdlib.yaml"])
    assert faults == []
    assert validate(documents) == []
    of = {
        kind: [d.manifest for d in documents if d.manifest["kind"] == kind]
        for kind in ("DataSource", "DataMix", "ParallelismPolicy")
    }
    (job,) = (d.manifest for d in documents if d.manifest["kind"] == "TrainingJob")
    config = resolve(job, of["DataSource"], of["DataMix"], of["ParallelismPolicy"], uid="u")
    assert isinstance(config, JobConfig)
    return config


def test_the_main_job_resolves_without_a_fault() -> None:
    assert resolved().name == "stdlib"


def test_the_main_job_reads_what_the_corpus_program_makes() -> None:
    corpus = f"{(EXAMPLES.parent / 'runs' / 'corpus').as_uri()}/"
    sources = {s.name: s for s in resolved().mix.sources}
    assert {name: (s.uri, s.format) for name, s in sources.items()} == {
        "code": (f"{corpus}code/", "Parquet"), "docs": (f"{corpus}docs/", "Jsonl"),
    }  # fmt: skip
    assert {s.tokenizer.uri for s in sources.values()} == {f"{corpus}tokenizer.json"}


def test_the_main_jobs_longest_sequences_are_rings_that_fit_its_trainers() -> None:
    config = resolved()
    one_replica = config.parallelism.tokens_per_replica
    assert one_replica < config.batch.max_sequence_tokens <= one_replica * config.trainers
