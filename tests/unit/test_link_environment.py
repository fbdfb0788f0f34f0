"""How services start and exit, as processes: signals and exit codes belong to processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from coxswain_link.environment import Environment
from tests.unit.agent_fakes import JOB, environment

PROGRAM = """
import signal, sys, threading, time
from coxswain.errors import Refused, Retryable
from coxswain_link.environment import leave, run_service, until_sigterm

def main(env):
    {body}

leave(run_service(main))
"""
# The signal may come at any moment: a wait for a lock would lose one that comes just before it.
WORK = ["print('up', flush=True)", "while True: pass"]


def start(folder: Path, body: str, **more: str) -> subprocess.Popen[str]:
    for name, content in (("job.json", msgspec.json.encode(JOB)), ("token", b"job-token")):
        (folder / name).write_bytes(content)
    own = {
        "COXSWAIN_NAME": "loader-0", "COXSWAIN_COORDINATOR_URL": "http://127.0.0.1:1", "POD_IP": "127.0.0.1",
        "COXSWAIN_JOB_DIR": str(folder), "COXSWAIN_TOKEN_DIR": str(folder), "COXSWAIN_TERMINATION_LOG": str(folder / "log"),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **own, **more},
    )


def end(service: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, errors = service.communicate(timeout=30)
    finally:
        service.kill()
    return service.returncode, errors


def test_a_service_that_gets_sigterm_cleans_up_and_exits_with_1(tmp_path):
    lines = ["try:", *(f"    {line}" for line in WORK), "finally: print('clean', file=sys.stderr)"]
    service = start(tmp_path, "\n    ".join(lines))
    assert service.stdout.readline() == "up\n"
    service.send_signal(signal.SIGTERM)
    code, errors = end(service)
    assert code == 1
    assert "clean" in errors
    assert "Traceback" not in errors


def test_a_second_sigterm_does_not_cut_the_clean_up_short(tmp_path):
    lines = ["try:", *(f"    {line}" for line in WORK), "finally:"]
    lines += ["    import os; os.kill(os.getpid(), signal.SIGTERM)", "    print('clean', file=sys.stderr)"]
    service = start(tmp_path, "\n    ".join(lines))
    assert service.stdout.readline() == "up\n"
    service.send_signal(signal.SIGTERM)
    code, errors = end(service)
    assert (code, "clean" in errors) == (1, True)


def test_a_service_that_waits_for_sigterm_behind_its_work_exits_as_its_work_has_ended(tmp_path):
    lines = ["with until_sigterm():", *(f"    {line}" for line in WORK), "return 3"]
    service = start(tmp_path, "\n    ".join(lines))
    assert service.stdout.readline() == "up\n"
    service.send_signal(signal.SIGTERM)
    assert end(service)[0] == 3


def test_the_signal_passes_through_code_that_catches_every_exception(tmp_path):
    lines = ["try:", *(f"    {line}" for line in WORK), "except Exception: return 0"]
    service = start(tmp_path, "\n    ".join(lines))
    assert service.stdout.readline() == "up\n"
    service.send_signal(signal.SIGTERM)
    assert end(service)[0] == 1


def test_a_thread_that_never_ends_does_not_delay_the_exit(tmp_path):
    service = start(tmp_path, "threading.Thread(target=threading.Event().wait).start(); return 3")
    assert end(service)[0] == 3


@pytest.mark.parametrize(
    "done", ["sys.stdout.close()", "sys.stderr.close()", "sys.stdout = None", "sys.stdout = object()"]
)
def test_what_code_of_the_users_does_to_the_standard_streams_changes_no_exit_code_and_delays_no_exit(tmp_path, done):
    """The flush of a closed stream raised: the exit code was lost, and the exit waited for each thread."""
    service = start(tmp_path, f"threading.Thread(target=threading.Event().wait).start(); {done}; return 3")
    assert end(service)[0] == 3


@pytest.mark.parametrize(
    ("body", "code", "reason", "retryable"),
    [
        ("raise Refused('Bad', 'no')", 2, "Bad", False),
        ("raise Retryable('away')", 1, "Retryable", True),
        ("{}['key']", 1, "Crashed", True),
        ("sys.exit(0)", 1, "Crashed", True),  # by code of the user's
        ("sys.exit(3)", 1, "Crashed", True),
        ("raise KeyboardInterrupt", 1, "Crashed", True),  # of a library's, such as a timeout's
        ("raise type('Mute', (ValueError,), {'__str__': lambda self: self.absent})", 1, "Crashed", True),
        ("raise ValueError('\\udcff')", 1, "Crashed", True),  # a byte of a name that is no text
        ("raise Retryable('\\udcff')", 1, "Retryable", True),
    ],
)
def test_the_termination_message_has_the_reason_and_the_exit_code_the_kind_of_fault(
    tmp_path, body, code, reason, retryable
):
    assert end(start(tmp_path, body))[0] == code
    fault = json.loads((tmp_path / "log").read_text())
    assert (fault["reason"], fault.get("retryable", False)) == (reason, retryable)


@pytest.mark.parametrize(("level", "shown"), [("debug", True), ("DEBUG", True), ("", False), ("WARNING", False)])
def test_a_service_logs_from_the_level_of_its_environment_on(tmp_path, level, shown):
    service = start(tmp_path, "import logging; logging.debug('details'); return 0", COXSWAIN_LOG_LEVEL=level)
    code, errors = end(service)
    assert (code, "details" in errors) == (0, shown)


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("COXSWAIN_LOG_LEVEL", "loud", "DEBUG, INFO, WARNING, ERROR"),
        ("COXSWAIN_STORE_PATIENCE_SECONDS", "5m", "a number of seconds from 0 on, such as 60"),
        ("COXSWAIN_STORE_PATIENCE_SECONDS", "-1", "a number of seconds from 0 on, such as 60"),
        ("COXSWAIN_STORE_PATIENCE_SECONDS", "nan", "a number of seconds from 0 on, such as 60"),
        ("COXSWAIN_STORE_PATIENCE_SECONDS", "inf", "a number of seconds from 0 on, such as 60"),
    ],
)
def test_a_variable_that_says_nothing_sensible_is_refused_by_name(tmp_path, variable, value, allowed):
    body = "from coxswain_link.store import open_store; open_store('s3://runs/demo/'); return 0"
    code, errors = end(start(tmp_path, body, **{variable: value}))
    fault = json.loads((tmp_path / "log").read_text())
    assert (code, fault["reason"]) == (2, "EnvironmentInvalid"), errors
    assert fault["message"].startswith(f"{variable} is {value!r}; allowed") and allowed in fault["message"]


def test_an_environment_does_not_print_its_token():
    assert isinstance(environment(), Environment)
    assert "job-token" not in repr(environment())


def ended(folder: Path, finished: str) -> int:
    """Exit code of a service whose job has this end."""
    head = "from coxswain.wire import Finished; from coxswain_link.environment import end_as; "
    code, _ = end(start(folder, f"{head}return end_as(Finished({finished}), env)"))
    return code


def test_a_service_of_a_failed_job_writes_the_reason_as_its_termination_message(tmp_path):
    assert ended(tmp_path, "2, 'VocabularyTooSmall', 'give at least 257'") == 2
    assert json.loads((tmp_path / "log").read_bytes()) == {
        "reason": "VocabularyTooSmall", "message": "give at least 257",
    }  # fmt: skip


def test_a_service_of_a_job_that_may_be_tried_again_says_so_in_its_termination_message(tmp_path):
    assert ended(tmp_path, "1, 'StoreAway', 'the bucket is gone'") == 1
    assert json.loads((tmp_path / "log").read_bytes()) == {
        "reason": "StoreAway", "message": "the bucket is gone", "retryable": True,
    }  # fmt: skip


def test_a_service_of_a_job_that_ended_well_writes_no_termination_message(tmp_path):
    assert ended(tmp_path, "3, 'Stopped', ''") == 3
    assert not (tmp_path / "log").exists()
