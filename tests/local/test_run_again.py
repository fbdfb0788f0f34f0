"""A job that failed goes on in the same place once its cause is gone: each message's advice, followed to the letter."""

import json
import os
import shutil
import signal

import pytest

from tests.local.jobs import ENDLESS, Run, find_service, job_objects, wait_for_step, write_corpus

pytestmark = pytest.mark.timeout(300)

STEPS = 6


@pytest.fixture
def run(tmp_path):
    write_corpus(tmp_path / "corpus")
    objects = job_objects(f"file://{tmp_path}/corpus", f"file://{tmp_path}/checkpoints", trainers=1)
    objects[-1]["spec"]["stop"] = {"steps": STEPS}
    return Run(tmp_path, objects)


def spec(run: Run, name: str = "small") -> dict:
    return next(o["spec"] for o in run.objects if o["metadata"]["name"] == name)


def fails(run: Run, *words: str) -> None:
    """The job ends as Failed with these words, and with advice on how to go on."""
    assert run.run() == 1, run.output + run.logs()
    said = " ".join(run.output.split())
    assert all(word in said for word in (*words, "to resume", "--retry")), run.output


def completes(run: Run, *arguments: str) -> None:
    assert run.run(*arguments) == 0, run.output + run.logs()
    assert "small: Completed" in run.output
    assert sorted(run.steps()) == list(range(STEPS))


def attempts(run: Run) -> list[dict]:
    return json.loads((run.workdir / "cluster/TrainingJob/default/small.json").read_text())["status"]["attempts"]


def bring_the_data(run: Run) -> None:
    (run.folder / "away").rename(run.folder / "corpus" / "docs")


def correct_the_uri(run: Run) -> None:
    spec(run, "docs")["uri"] = f"file://{run.folder}/away"


@pytest.mark.parametrize("mend", [pytest.param(bring_the_data, marks=pytest.mark.slow), correct_the_uri])
def test_a_source_that_was_not_found_is_brought_or_named_correctly(run, mend):
    (run.folder / "corpus" / "docs").rename(run.folder / "away")
    fails(run, "SourceNotFound", "correct it in DataSource 'docs', or bring the data there")
    mend(run)
    completes(run)


def repair(run: Run) -> None:
    path = run.folder / "corpus/docs/all.jsonl"
    path.write_text(path.read_text().replace("\nnot json", ""))


def allow(run: Run) -> None:
    spec(run, "docs")["maxRejected"] = 1


@pytest.mark.slow
@pytest.mark.parametrize("mend", [repair, allow])
def test_samples_that_do_not_decode_are_repaired_or_allowed(run, mend):
    path = run.folder / "corpus/docs/all.jsonl"
    path.write_text(path.read_text() + "\nnot json")
    fails(run, "TooManyRejected", "Repair them, or raise maxRejected")
    mend(run)
    completes(run)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_goes_on_with_a_lower_rate(run):
    spec(run)["optimizer"] = {"learningRate": "1e30", "gradientClip": "0"}
    fails(run, "GradientNotFinite", "lower optimizer.learningRate")
    spec(run)["optimizer"] = {"learningRate": "3e-3"}
    completes(run)


def test_a_job_beyond_its_restarts_waits_for_retry_and_keeps_its_history(run):
    spec(run)["stop"], spec(run)["failurePolicy"] = {"steps": ENDLESS}, {"maxRestarts": 0}
    cox = run.start()
    wait_for_step(run, cox, 4)
    os.kill(find_service(cox, "coxswain_train.agent"), signal.SIGKILL)
    assert run.finish(cox) == 1, run.output
    assert "RestartLimitExceeded" in run.output
    done = dict(run.steps())
    assert run.run() == 1
    assert "nothing is trained. --retry resumes it" in run.output
    saved = max(int(p.stem.removeprefix("step-")) for p in (run.folder / "checkpoints/manifests").iterdir())
    assert run.run("--retry", "--until-step", str(max(done) + 2)) == 0, run.output + run.logs()
    assert {k: v["stream_digest"] for k, v in done.items()}.items() <= {
        k: v["stream_digest"] for k, v in run.steps().items()
    }.items()
    first, second = attempts(run)
    assert first["cause"].startswith("RestartLimitExceeded")
    assert 3 <= second["resumedStep"] <= saved  # the last one may be saved after the last report


def test_a_checkpoint_that_is_gone_is_never_passed_over_in_silence(run):
    assert run.run("--until-step", "4") == 0, run.output + run.logs()
    checkpoints, away = run.folder / "checkpoints", run.folder / "away"
    shutil.copytree(checkpoints, away)
    shutil.rmtree(checkpoints / "manifests")
    lines = len((run.workdir / "steps.jsonl").read_text().splitlines())
    fails(
        run,
        "CheckpointMissing",
        "saved a checkpoint before step 4, but there is none",
        "manifests/step-0000000004.json",
    )
    assert len((run.workdir / "steps.jsonl").read_text().splitlines()) == lines
    shutil.copytree(away / "manifests", checkpoints / "manifests")
    assert run.run("--until-step", "5") == 0, run.output + run.logs()
    shutil.rmtree(checkpoints / "manifests")
    completes(run, "--accept-older-checkpoint")
    again = [json.loads(line)["step"] for line in (run.workdir / "steps.jsonl").read_text().splitlines()]
    assert again == [*range(5), *range(STEPS)]


@pytest.mark.slow
def test_a_torn_manifest_is_deleted_and_the_one_before_it_is_resumed_from(run):
    assert run.run("--until-step", "4") == 0, run.output + run.logs()
    torn = run.folder / "checkpoints/manifests/step-0000000004.json"
    torn.write_text("{")
    fails(run, "TornCheckpoint", "--accept-older-checkpoint")
    torn.unlink()
    completes(run, "--accept-older-checkpoint")


@pytest.mark.slow
def test_a_source_that_changed_is_brought_back(run):
    assert run.run("--until-step", "4") == 0, run.output + run.logs()
    path = run.folder / "corpus/docs/all.jsonl"
    was = path.read_bytes()
    path.write_bytes(was + b'{"text": "more"}\n')
    fails(run, "SourceChanged", "bring back what was there")
    path.write_bytes(was)
    completes(run)


def test_touched_files_are_the_same_data(run):
    """And so are copies, such as those of a restored backup."""
    assert run.run("--until-step", "3") == 0, run.output + run.logs()
    for path in (run.folder / "corpus").rglob("*.*"):
        copy = path.with_name(f".{path.name}")
        shutil.copyfile(path, copy)
        copy.rename(path)
        os.utime(path, (1, 1))
    completes(run)


@pytest.mark.slow
def test_a_deadline_that_is_over_is_raised(run):
    spec(run)["stop"], spec(run)["activeDeadlineSeconds"] = {"steps": 100_000}, 5
    fails(run, "DeadlineExceeded", "raise it and retry the job")
    spec(run)["activeDeadlineSeconds"] = 600
    assert run.run("--until-step", "9") == 0, run.output + run.logs()


def test_a_complete_job_goes_on_where_its_stop_is_raised(run):
    spec(run)["stop"] = {"steps": 3}
    assert run.run() == 0, run.output + run.logs()
    assert run.run() == 0
    assert "raise spec.stop and repeat the command" in run.output
    spec(run)["stop"] = {"steps": STEPS}
    completes(run)
    assert status_of_pods(run) == {"Succeeded"}


def status_of_pods(run: Run) -> set[str]:
    """Of what the last attempt left."""
    return {json.loads(path.read_text())["status"]["phase"] for path in run.workdir.glob("cluster/Pod/default/*.json")}
