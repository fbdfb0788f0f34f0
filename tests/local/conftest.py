"""What all tests of whole runs share: one corpus, and runs that nothing disturbed."""

import asyncio

import pytest

from tests.local.jobs import Run, end_started, job_objects, whole_run, write_corpus
from tests.shared import shared_folder


@pytest.fixture(scope="module", autouse=True)
def no_run_outlives_its_file():
    """One that a failed test leaves would take the processors from all that follow."""
    yield
    end_started()


@pytest.fixture
async def skip(monkeypatch):
    """Moves the time of the event loop forward by some seconds."""
    loop, ahead = asyncio.get_running_loop(), [0.0]
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + sum(ahead))
    return ahead.append


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Uri of the folder with both sources."""
    return f"file://{shared_folder(tmp_path_factory, 'corpus', write_corpus)}"


@pytest.fixture(scope="session")
def baseline(tmp_path_factory, corpus):
    """One replica, one loader, from the first step to the last."""
    return shared_run(tmp_path_factory, "baseline", corpus, trainers=1)


@pytest.fixture(scope="session")
def calm(tmp_path_factory, corpus):
    """Of the same shape as most disturbed runs, so that losses may be compared closely. Its checkpoints have a policy."""
    return shared_run(tmp_path_factory, "calm", corpus, trainers=2, everySteps=2, keepLast=2, keepEvery=4)


def shared_run(factory, name, corpus, trainers, **checkpoint) -> Run:
    """An ended run of `cox run --json` with its files; its output is in the folder."""

    def objects(folder):
        found = job_objects(corpus, f"file://{folder}/checkpoints", trainers=trainers)
        found[-1]["spec"]["checkpoint"] |= checkpoint
        return found

    def make(folder):
        (folder / "output.jsonl").write_text(whole_run(folder, objects(folder), "--json").output)

    folder = shared_folder(factory, name, make)
    return Run(folder, objects(folder))
