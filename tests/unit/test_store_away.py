"""While a store is away the report says so, whoever of the job has noticed; an end stays what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from coxswain.exits import Exit
from coxswain.wire import Finished, Register
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.state.job_state import JobState
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import make_job

TROUBLE = "s3://runs/demo/log: there is no such bucket"


@pytest.fixture
def run(tmp_path: Path) -> JobState:
    return JobState(make_job(tmp_path), build("coordinator"), None, lambda: 1.0)


def loader(trouble: str) -> Register:
    return Register("loader", "loader-0", "pod", "instance", "host", 1, last_error=trouble)


def told(run: JobState) -> tuple[str, str]:
    report = job_report(run)
    return report.fault.reason if report.fault else "", report.waiting_for


def test_the_coordinators_own_trouble_is_told_until_it_is_over(run: JobState) -> None:
    trouble = [TROUBLE]
    run.store_executor.watch(lambda: trouble[0])
    assert told(run) == ("StoreAway", f"the store: {TROUBLE}")
    trouble[0] = ""
    assert told(run)[0] == ""


def test_a_loaders_trouble_is_told_until_it_is_over(run: JobState) -> None:
    run.register(loader(TROUBLE))
    assert told(run) == ("StoreAway", f"the store: {TROUBLE}")
    run.register(loader(""))
    assert told(run)[0] == ""


def test_a_job_that_has_ended_waits_for_no_store(run: JobState) -> None:
    run.register(loader(TROUBLE))
    run.finish(Finished(Exit.DONE, "StopReached", ""))
    assert told(run) == ("", "")
