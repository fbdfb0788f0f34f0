"""What all tests of whole runs share: one corpus, and runs that nothing disturbed."""

import pytest

from tests.local.jobs import job_objects, whole_run, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Uri of the folder with both sources."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return f"file://{folder}"


@pytest.fixture(scope="session")
def baseline(tmp_path_factory, corpus):
    """One replica, one loader, from the first step to the last."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return whole_run(folder, job_objects(corpus, f"file://{folder}/checkpoints", trainers=1))


@pytest.fixture(scope="session")
def calm(tmp_path_factory, corpus):
    """Of the same shape as most disturbed runs, so that losses may be compared closely."""
    folder = tmp_path_factory.mktemp("calm")
    return whole_run(folder, job_objects(corpus, f"file://{folder}/checkpoints"))
