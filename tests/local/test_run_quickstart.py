"""The job that README shows is run as it is."""

from pathlib import Path

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
