"""The jobs of the examples are run as they are."""

from pathlib import Path

import pytest

from tests.local.jobs import Run, write_corpus

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_job_of_the_readme_trains_on_the_corpus_beside_it_to_its_last_step(tmp_path):
    write_corpus(tmp_path / "runs" / "corpus")
    run = Run(tmp_path / "examples", [], job_file=(EXAMPLES / "quickstart.yaml").read_bytes())
    assert run.run() == 0, run.output + run.logs()
    losses = run.losses()
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert (tmp_path / "runs" / "quickstart" / "checkpoints" / "manifests" / "step-0000000006.json").exists()


@pytest.mark.slow  # two starts of three workers; the parts are in tests/distributed/test_custom_model.py
def test_the_example_of_ones_own_model_trains_with_rings_and_resumes_from_its_checkpoint(tmp_path):
    write_corpus(tmp_path / "runs" / "corpus")
    job = (EXAMPLES / "gpt2.yaml").read_bytes()
    run = Run(tmp_path / "examples", [], {"PYTHONPATH": str(EXAMPLES)}, job)
    assert run.run("--until-step", "3") == 0, run.output + run.logs()
    before = run.losses()
    assert len(before) == 3
    assert run.run() == 0, run.output + run.logs()
    assert run.losses()[:3] == before
    assert len(run.losses()) == 6
    assert run.losses()[-1] < before[0]
    assert any(task["kind"] == "ring" for line in run.lines("timings.jsonl") for task in line["planned"])


@pytest.mark.slow  # as above
def test_a_run_whose_model_has_learned_too_few_positions_fails_before_its_first_step(tmp_path):
    write_corpus(tmp_path / "runs" / "corpus")
    job = (EXAMPLES / "gpt2.yaml").read_bytes().replace(b"{context: 2048}", b"{context: 1024}")
    run = Run(tmp_path / "examples", [], {"PYTHONPATH": str(EXAMPLES)}, job)
    assert run.run() == 1, run.output + run.logs()
    assert "embeds 1024 positions, and batch.maxSequenceTokens is 2048; give it more" in run.output
    assert not run.lines("steps.jsonl")
