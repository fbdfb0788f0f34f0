"""One row of docs/edits.md for each effect of an edit, on real runs: a repeated `cox run` begins another attempt."""

import json

import pytest

from tests.local.jobs import Run, job_objects, write_corpus

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

FIRST, SECOND = 12, 40


@pytest.fixture
def run(tmp_path):
    """A job that has reached its stop."""
    write_corpus(tmp_path / "corpus")
    done = Run(tmp_path, job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints", trainers=1))
    spec(done, "small")["stop"] = {"steps": FIRST}
    assert done.run() == 0, done.output + done.logs()
    return done


def spec(run: Run, name: str) -> dict:
    return next(o["spec"] for o in run.objects if o["metadata"]["name"] == name)


def configuration(run: Run) -> dict:
    """What the pods of the latest attempt read."""
    job = json.loads((run.workdir / "cluster/TrainingJob/default/small.json").read_text())
    name = f"small-config-{job['status']['pinned']['hash']}"
    return json.loads(
        json.loads((run.workdir / f"cluster/ConfigMap/default/{name}.json").read_text())["data"]["job.json"]
    )


def test_each_edit_of_a_job_takes_effect_when_the_table_says(run):
    before = run.digests()
    refused(run)
    spec(run, "small")["stop"] = {"steps": SECOND}  # at once
    job = spec(run, "small")
    job["optimizer"]["learningRate"] = "1e-3"  # at the next attempt; refused unless the job is suspended
    spec(run, "docs")["maxRejected"] = 3  # at the next attempt
    for source in spec(run, "mix")["sources"]:
        source["weight"] = int(source["name"] == "docs")
    assert run.run() == 0, run.output + run.logs()
    assert run.digests()[:FIRST] == before
    followed(run)
    now = configuration(run)
    assert (now["optimizer"]["learning_rate"], now["stop_steps"]) == (1e-3, SECOND)
    assert {s["name"]: s["max_rejected"] for s in now["mix"]["sources"]} == {"code": 0, "docs": 3}


def refused(run: Run) -> None:
    """Never: another seed."""
    spec(run, "mix")["seed"] = 8
    assert run.run() == 2
    assert "DataMix mix: spec.seed: seed is immutable" in " ".join(run.output.split())
    spec(run, "mix")["seed"] = 7


def followed(run: Run) -> None:
    """At the first uncommitted step: weights."""
    drawn = {s: {n for n, tokens in line["tokens_by_source"].items() if tokens} for s, line in run.steps().items()}
    (said,) = [e["message"] for e in run.lines("events.jsonl") if e["reason"] == "MixChanged"]
    assert "weight of code 700 -> 0" in said
    first = min(step for step in drawn if step >= FIRST and drawn[step] == {"docs"})
    assert first % 8 == 0
    assert all(drawn[step] == {"docs"} for step in range(first, SECOND))
    assert any("code" in drawn[step] for step in range(FIRST, first))
