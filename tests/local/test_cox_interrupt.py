"""Stopping a real run: a signal saves and stops, a second one stops at once; the same command resumes.

What a user stops is never counted as a restart.
"""

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from coxswain_cli.interrupts import Interrupts, SteadyStream
from tests.local.jobs import (
    ENDLESS,
    SERVICES,
    STEPS,
    Footprint,
    Run,
    descendants,
    find_service,
    job_objects,
    source,
    wait_for_step,
    wait_until,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def run(tmp_path, corpus):
    return Run(tmp_path, job_objects(corpus, f"file://{tmp_path}/checkpoints", trainers=1, stop={"steps": ENDLESS}))


@pytest.mark.slow  # SIGHUP begins the job that is stopped again, below
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint_and_stops(run, number):
    stop_saved(run, number)


def stop_saved(run: Run, number: int) -> None:
    """Starts the run and stops it by one signal, once it trains: it saves."""
    cox = run.start()
    wait_for_step(run, cox, 1)
    footprint = Footprint.of(run, cox)
    assert {line.split()[0] for line in footprint.rest()} == {"process", "socket"}  # the eyes are open
    os.kill(cox.pid, number)
    assert run.finish(cox, 100) == 0, run.output + run.logs()
    done = max(run.steps()) + 1
    assert f"Suspended\n  saved before step {done}\n" in run.output
    assert (run.folder / "checkpoints" / "manifests" / f"step-{done:010d}.json").exists()
    footprint.assert_gone()


def test_ctrl_c_twice_stops_at_once_and_leaves_nothing(run):
    cox = run.start()
    wait_until(lambda: list(run.workdir.glob("logs/*/trainer.log")), "the trainer's pod")
    coordinator = wait_until(lambda: find_service(cox, SERVICES["coordinator"]), "the coordinator")
    footprint = Footprint.of(run, cox)
    os.kill(coordinator, signal.SIGSTOP)  # else the first request might be done before the second
    os.kill(cox.pid, signal.SIGINT)
    wait_until(
        lambda: '"suspend": true' in (run.workdir / "cluster/TrainingJob/default/small.json").read_text(), "the first"
    )
    os.kill(cox.pid, signal.SIGINT)
    assert run.finish(cox, 20) == 130, run.output
    footprint.assert_gone()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop(run: Run, draw: random.Random, moment: float) -> None:
    """Starts the run and stops it after `moment` seconds, by one signal or two."""
    cox = run.start()
    with pytest.raises(subprocess.TimeoutExpired):
        cox.wait(moment)
    footprint = Footprint.of_processes(run.folder, [cox.pid, *descendants(cox.pid)])
    cox.send_signal(draw.choice(SIGNALS))
    press_again(cox, draw)
    code = run.finish(cox, 60)
    early = code not in (0, 130) and is_of_the_interpreters_start(run.output)
    assert code in (0, 130) or early, run.output
    assert "Traceback" not in run.output or early, run.output
    footprint.assert_gone()
    assert counted(run) == 0, run.output + run.logs()


def is_of_the_interpreters_start(output: str) -> bool:
    """Whether no function of ours had been called: `cox` answers signals from its first imports on."""
    return set(re.findall(r'coxswain_\S+", line \d+, in (\S+)', output)) <= {"<module>"}


def press_again(cox: subprocess.Popen[str], draw: random.Random) -> None:
    """In half of all cases, within a second."""
    if draw.random() < 0.5:
        with suppress(subprocess.TimeoutExpired):
            cox.wait(draw.random())
        cox.send_signal(draw.choice(SIGNALS))


def counted(run: Run) -> int:
    """Restarts that count; the job has not failed."""
    path = run.workdir / "cluster/TrainingJob/default/small.json"
    status = json.loads(path.read_text()).get("status", {}) if path.exists() else {}
    assert "Failed" not in [c["reason"] for c in status.get("conditions", ()) if c["type"] == "Succeeded"], run.output
    return int(status.get("restarts", {}).get("counted", 0))


@pytest.mark.parametrize(
    "stops, seed", [(1, 50), *(pytest.param(20, s, marks=pytest.mark.slow) for s in range(10, 20))]
)
@pytest.mark.timeout(1500)
def test_a_job_that_is_stopped_again_and_again_resumes_and_counts_no_restart(run, baseline, stops, seed):
    run.objects[-1]["spec"]["failurePolicy"] = {"maxRestarts": 0}
    draw = random.Random(seed)
    stop_saved(run, signal.SIGHUP)
    for _ in range(stops):
        stop(run, draw, 12 * draw.random() ** 1.5)
    last = max(STEPS, *run.steps(), 0) + 1
    assert run.run("--until-step", str(last)) == 0, run.output + run.logs()
    assert run.digests()[:STEPS] == baseline.digests()
    assert counted(run) == 0


def test_a_reader_that_leaves_stops_the_run_as_ctrl_c_does(run, tmp_path):
    cox = run.start("--json", stderr=subprocess.PIPE)
    wait_until(lambda: list(run.workdir.glob("logs/*/trainer.log")), "the trainer's pod")
    footprint = Footprint.of(run, cox)
    cox.stdout.close()
    assert cox.wait(100) == 0
    with cox.stderr as stream:
        said = stream.read()
    assert "standard output cannot be written (Broken pipe); this is taken as Ctrl-C" in said
    assert "Traceback" not in said
    assert counted(run) == 0
    footprint.assert_gone()


def counted_requests(*numbers):
    with Interrupts() as interrupts:
        interrupts.counting = True
        for number in numbers:
            signal.raise_signal(number)
    return interrupts.count


def test_a_lost_terminal_is_one_request_and_ctrl_c_or_sigterm_behind_it_the_second():
    assert counted_requests(signal.SIGHUP, signal.SIGHUP) == 1
    assert counted_requests(signal.SIGINT, signal.SIGHUP) == 1
    assert counted_requests(signal.SIGHUP, signal.SIGINT) == 2
    assert counted_requests(signal.SIGTERM, signal.SIGINT) == 2


def test_a_write_that_fails_behind_a_lost_terminal_is_no_second_request():
    reader, writer = os.pipe()
    os.close(reader)
    with Interrupts() as interrupts, os.fdopen(writer, "w") as stream:
        interrupts.counting = True
        signal.raise_signal(signal.SIGHUP)
        steady = SteadyStream(stream, interrupts)
        for _ in range(3):
            assert steady.write("text") == 4
            steady.flush()
    assert interrupts.count == 1


LINES = [f"line {number}: {'ü' * 99}\n" for number in range(2000)]


@pytest.fixture
def slow_pipe():
    """The reader's end of a pipe, its writer as a steady stream, and the requests to stop."""
    reader, writer = os.pipe()
    with Interrupts() as interrupts, os.fdopen(writer, "w", encoding="utf-8") as stream, os.fdopen(reader, "rb") as end:
        interrupts.counting = True
        yield end, SteadyStream(stream, interrupts), interrupts


@pytest.mark.timeout(20)
def test_a_reader_that_pauses_holds_up_no_write_and_gets_every_line_later(slow_pipe):
    end, steady, _ = slow_pipe
    for line in LINES:
        steady.write(line)
        steady.flush()
    assert steady.is_behind
    found = b""
    while len(found) < len("".join(LINES).encode()):
        found += os.read(end.fileno(), 1 << 16)
        steady.flush()
    assert found.decode() == "".join(LINES)
    assert not steady.is_behind


@pytest.mark.timeout(20)
def test_a_terminal_that_shows_nothing_more_holds_up_no_write(slow_pipe):
    """As of a connection that hangs. It is ready for fewer bytes than a line has, once."""
    screen, terminal = os.openpty()
    with os.fdopen(terminal, "w", encoding="utf-8") as stream, os.fdopen(screen, "rb"):
        steady = SteadyStream(stream, slow_pipe[2])
        for line in LINES:
            steady.write(line)
            steady.flush()
        assert steady.is_behind


def test_what_another_process_leaves_no_room_for_is_written_later(slow_pipe, monkeypatch):
    """The pipe was ready, and is full when the line comes."""
    end, steady, interrupts = slow_pipe

    def fail(*_):
        raise BlockingIOError

    steady.write("line\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        steady.flush()
    assert (steady.is_behind, interrupts.count) == (True, 0)
    steady.flush()
    assert os.read(end.fileno(), 100) == b"line\n"


def test_lines_behind_a_reader_that_has_left_are_no_other_request_and_no_other_complaint(slow_pipe, capfd):
    end, steady, interrupts = slow_pipe
    end.close()
    for _ in range(3):
        steady.write("line\n")
        steady.flush()
    assert interrupts.count == 1
    assert capfd.readouterr().err.count("standard output cannot be written") == 1


@pytest.mark.timeout(20)
def test_a_reader_sees_the_end_once_the_run_and_its_stream_are_closed(slow_pipe):
    end, steady, _ = slow_pipe
    with steady:
        steady.write("line\n")
    steady.close()
    assert end.read() == b"line\n"


def test_lines_in_a_file_come_behind_what_others_have_written_there(tmp_path):
    """As of `cox run … > log 2>&1`: both share their place in the file."""
    with Interrupts() as interrupts, (tmp_path / "log").open("w", encoding="utf-8") as stream:
        os.write(stream.fileno(), b"another\n")
        with SteadyStream(stream, interrupts) as steady:
            steady.write("line\n")
        os.write(stream.fileno(), b"another\n")
    assert (tmp_path / "log").read_text() == "another\nline\nanother\n"


@pytest.mark.timeout(20)
def test_the_end_of_a_run_waits_for_a_reader_that_pauses(slow_pipe):
    end, steady, _ = slow_pipe
    found = []
    reading = threading.Thread(target=lambda: found.append(end.read(len("".join(LINES).encode()))))
    with steady:
        steady.write("".join(LINES))
        steady.flush()
        reading.start()
    reading.join()
    assert b"".join(found).decode() == "".join(LINES)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("before", "waits"), [(0, 1), (1, 1), (2, 0)])
def test_a_request_to_stop_ends_the_wait_for_a_reader_that_pauses(slow_pipe, monkeypatch, before, waits):
    _, steady, interrupts = slow_pipe
    ready, waited = select.select, []

    def select_and_stop(*of):
        if of[-1]:
            waited.append(of[-1])
            signal.raise_signal(signal.SIGTERM)
        return ready(*of)

    monkeypatch.setattr(select, "select", select_and_stop)
    interrupts.count = before
    with steady:
        steady.write("".join(LINES))
        steady.flush()
    assert (len(waited), steady.is_behind) == (waits, True)


@pytest.mark.timeout(20)
def test_a_request_that_ends_the_command_amid_a_write_has_no_line_written_twice(slow_pipe, monkeypatch):
    end, steady, interrupts = slow_pipe
    write = os.write

    def write_and_stop(*of):
        written = write(*of)
        signal.raise_signal(signal.SIGINT)
        return written

    interrupts.counting = False
    steady.write("line\n")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "write", write_and_stop)
        steady.flush()
    steady.flush()
    assert (os.read(end.fileno(), 100), steady.is_behind) == (b"line\n", False)


def test_sighup_that_was_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert counted_requests(signal.SIGHUP) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def started_with(action, *command):
    """A command in a process that has done this with its signals."""
    begin = f"import os, signal, sys; {action}; os.execv(sys.argv[1], sys.argv[1:])"
    return (sys.executable, "-c", begin, *command)


def test_a_caller_that_ignores_the_end_of_its_children_costs_no_exit_code(run, tmp_path):
    """As `trap '' CHLD` of a shell does: the kernel keeps no exit code then, and Python takes each for 0."""
    run.objects[1] = source("docs", f"file://{tmp_path}/nowhere", "Jsonl", "**/*.jsonl")
    run.objects[-1]["spec"]["failurePolicy"] = {"maxRestarts": 0}
    run.within = started_with("signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    assert run.run(deadline=60) == 1
    assert "SourceNotFound" in run.output


def test_a_request_to_stop_that_the_caller_has_blocked_comes_all_the_same():
    """Without that a launcher that blocks signals left a run that nothing but SIGKILL stops."""
    pending = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); signal.raise_signal(signal.SIGTERM)"
    command = started_with(pending, sys.executable, "-m", "coxswain_cli", "validate", "-")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


@pytest.mark.parametrize("program", [[sys.executable, "-m", "coxswain_cli"], [Path(sys.executable).with_name("cox")]])
def test_ctrl_c_while_the_command_imports_its_libraries_ends_it_without_a_word(tmp_path, program):
    (tmp_path / "typer.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [*program, "status"], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_the_first_request_ends_a_command_that_has_nothing_to_save():
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
