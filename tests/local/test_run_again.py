"""A job that failed goes on in the same place once its cause is gone: each message's advice, followed to the letter."""

import json
import os
import shutil
import signal
from dataclasses import dataclass, field

import pytest

from tests.local.jobs import ENDLESS, Run, find_service, job_objects, wait_for_step, write_corpus

pytestmark = pytest.mark.timeout(300)

STEPS = 6


def run_in(folder):
    write_corpus(folder / "corpus")
    objects = job_objects(f"file://{folder}/corpus", f"file://{folder}/checkpoints", trainers=1)
    objects[-1]["spec"]["stop"] = {"steps": STEPS}
    return Run(folder, objects)


@pytest.fixture
def run(tmp_path):
    return run_in(tmp_path)


def spec(run: Run, name: str = "small") -> dict:
    return next(o["spec"] for o in run.objects if o["metadata"]["name"] == name)


def fails(run: Run, *words: str) -> None:
    """The job ends as Failed with these words, and with advice on how to go on."""
    assert run.run() == 1, run.output + run.logs()
    assert_advised(run.output, *words)


def assert_advised(output: str, *words: str) -> None:
    said = " ".join(output.split())
    assert all(word in said for word in (*words, "to resume", "--retry")), output


def completes(run: Run, *arguments: str) -> None:
    assert run.run(*arguments) == 0, run.output + run.logs()
    assert "small: Completed" in run.output
    assert sorted(run.steps()) == list(range(STEPS))


def written(run: Run) -> list[int]:
    """The steps of all lines of steps.jsonl: also of those that were done again."""
    return [line["step"] for line in run.lines("steps.jsonl")]


def attempts(run: Run) -> list[dict]:
    return json.loads((run.workdir / "cluster/TrainingJob/default/small.json").read_text())["status"]["attempts"]


@dataclass
class Chapter:
    """What one `cox run` left."""

    code: int
    output: str
    logs: str
    steps: list[int]  # of all lines so far
    digests: dict[int, str]
    pods: set[str]  # phases of those that the last attempt left


@dataclass
class Life:
    """One job through one mistake after the other: each start of its processes shows what several tests claim."""

    run: Run
    chapters: dict[str, Chapter] = field(default_factory=dict)
    saved: int = 0  # of the newest checkpoint that the killed chapter left
    attempts: list[dict] = field(default_factory=list)  # behind the retry

    def note(self, name: str, code: int) -> None:
        digests = {step: line["stream_digest"] for step, line in self.run.steps().items()}
        self.chapters[name] = Chapter(
            code, self.run.output, self.run.logs(), written(self.run), digests, status_of_pods(self.run)
        )

    def do(self, name: str, *arguments: str) -> None:
        self.note(name, self.run.run(*arguments))

    def new(self, name: str) -> list[int]:
        """The steps that this chapter has added."""
        names = list(self.chapters)
        before = self.chapters[names[names.index(name) - 1]].steps if name != names[0] else []
        steps = self.chapters[name].steps
        assert steps[: len(before)] == before
        return steps[len(before) :]


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    run = run_in(tmp_path_factory.mktemp("life"))
    life, manifests, away = Life(run), run.folder / "checkpoints/manifests", run.folder / "away"
    (run.folder / "corpus/docs").rename(run.folder / "documents")
    spec(run)["stop"], spec(run)["failurePolicy"] = {"steps": 3}, {"maxRestarts": 0}
    life.do("a source is not there")
    spec(run, "docs")["uri"] = f"file://{run.folder}/documents"
    life.do("it is named correctly")
    life.do("the stop is reached")
    spec(run)["stop"] = {"steps": 4}
    touch(run)
    life.do("the stop is raised and the corpus is touched")
    manifests.rename(away)
    spec(run)["stop"] = {"steps": ENDLESS}
    life.do("the checkpoints are gone")
    away.rename(manifests)
    cox = run.start()
    wait_for_step(run, cox, 6)
    os.kill(find_service(cox, "coxswain_train.agent"), signal.SIGKILL)
    life.note("they are back, and the agent is killed", run.finish(cox))
    life.saved = max(int(p.stem.removeprefix("step-")) for p in manifests.iterdir())
    life.do("the command is repeated")
    life.do("it is retried", "--retry", "--until-step", str(max(run.steps()) + 2))
    life.attempts = attempts(run)
    shutil.rmtree(manifests)
    life.do("an older checkpoint is accepted", "--accept-older-checkpoint", "--until-step", str(len(run.steps()) + 1))
    return life


def touch(run: Run) -> None:
    """New times and inodes, as a restored backup has."""
    for path in [p for name in ("corpus", "documents") for p in (run.folder / name).rglob("*.*")]:
        copy = path.with_name(f".{path.name}")
        shutil.copyfile(path, copy)
        copy.rename(path)
        os.utime(path, (1, 1))


def test_a_source_that_was_not_found_is_named_correctly(life):
    missed, found = life.chapters["a source is not there"], life.chapters["it is named correctly"]
    assert (missed.code, missed.steps) == (1, []), missed
    assert_advised(missed.output, "SourceNotFound", "correct it in DataSource 'docs', or bring the data there")
    assert (found.code, found.steps) == (0, [0, 1, 2]), found
    assert "small: Completed" in found.output


@pytest.mark.slow
def test_a_source_that_was_not_found_is_brought(run):
    (run.folder / "corpus/docs").rename(run.folder / "away")
    fails(run, "SourceNotFound", "correct it in DataSource 'docs', or bring the data there")
    (run.folder / "away").rename(run.folder / "corpus/docs")
    completes(run)


def test_a_complete_job_goes_on_where_its_stop_is_raised(life):
    ended, raised = life.chapters["the stop is reached"], "the stop is raised and the corpus is touched"
    assert (ended.code, life.new("the stop is reached")) == (0, [])
    assert "raise spec.stop and repeat the command" in ended.output
    assert (life.chapters[raised].code, life.new(raised)) == (0, [3]), life.chapters[raised]
    assert "small: Completed" in life.chapters[raised].output
    assert life.chapters[raised].pods == {"Succeeded"}


def test_touched_files_are_the_same_data(life):
    """And so are copies, such as those of a restored backup."""
    touched = life.chapters["the stop is raised and the corpus is touched"]
    assert touched.code == 0, touched
    assert "SourceChanged" not in touched.output


def test_a_checkpoint_that_is_gone_is_never_passed_over_in_silence(life):
    gone, back = life.chapters["the checkpoints are gone"], "they are back, and the agent is killed"
    assert (gone.code, life.new("the checkpoints are gone")) == (1, []), gone
    words = "saved a checkpoint before step 4, but there is none", "manifests/step-0000000004.json"
    assert_advised(gone.output, "CheckpointMissing", *words)
    assert life.new(back)[:3] == [4, 5, 6]
    accepted = life.chapters["an older checkpoint is accepted"]
    assert accepted.code == 0, accepted
    before = life.chapters["it is retried"]
    assert life.new("an older checkpoint is accepted") == list(range(len(before.digests) + 1))
    assert before.digests.items() <= accepted.digests.items()


def test_a_job_beyond_its_restarts_waits_for_retry_and_keeps_its_history(life):
    killed, repeated = life.chapters["they are back, and the agent is killed"], life.chapters["the command is repeated"]
    assert killed.code == 1, killed
    assert "RestartLimitExceeded" in killed.output
    assert (repeated.code, life.new("the command is repeated")) == (1, [])
    assert "nothing is trained. --retry resumes it" in repeated.output
    retried = life.chapters["it is retried"]
    assert retried.code == 0, retried
    assert killed.digests.items() <= retried.digests.items()
    first, second = life.attempts[-2:]
    assert first["cause"].startswith("RestartLimitExceeded")
    assert 4 <= second["resumedStep"] <= life.saved  # the last one may be saved after the last report


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
    fails(run, "TooManyRejected", "Name another textField, repair them, or raise maxRejected")
    mend(run)
    completes(run)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_goes_on_with_a_lower_rate(run):
    spec(run)["optimizer"] = {"learningRate": "1e30", "gradientClip": "0"}
    fails(run, "not finite", "optimizer.learningRate")  # of a loss or a gradient, as it turns out
    spec(run)["optimizer"] = {"learningRate": "3e-3"}
    completes(run)


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


@pytest.mark.slow
def test_a_deadline_that_is_over_is_raised(run):
    spec(run)["stop"], spec(run)["activeDeadlineSeconds"] = {"steps": 100_000}, 5
    fails(run, "DeadlineExceeded", "raise it and retry the job")
    spec(run)["activeDeadlineSeconds"] = 600
    assert run.run("--until-step", "9") == 0, run.output + run.logs()


def status_of_pods(run: Run) -> set[str]:
    """Of what the last attempt left."""
    return {json.loads(path.read_text())["status"]["phase"] for path in run.workdir.glob("cluster/Pod/default/*.json")}
