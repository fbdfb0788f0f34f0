"""What all tests of whole runs share: one corpus, and the run that nothing disturbed."""

import pytest

from tests.local.jobs import Run, job_objects, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Uri of the folder with both sources."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return f"file://{folder}"


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, corpus):
    """One replica, one loader, from the first step to the last."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = Run(folder, job_objects(corpus, f"file://{folder}/checkpoints", trainers=1))
    assert run.run() == 0, run.output + run.logs()
    return run
