"""A machine that is short of something: disks that are full, ports and folders that are taken.

Nothing is lost, nothing is left.

Disks and ports are those of private mount and network namespaces: they vanish with the run's last
process.
"""

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from coxswain import names
from coxswain.wire import GENERATION_HEADER, TOKEN_HEADER
from tests.local.failures import keep, note
from tests.local.jobs import ENDLESS, Footprint, Run, job_objects, stop_recovered, wait_for_step, wait_until
from tests.local.test_cox_commands import run_cox

pytestmark = pytest.mark.timeout(300)

UNSHARE = ("unshare", "--mount", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",)))

# Brings the loopback device up (SIOCSIFFLAGS: up and running), and runs the rest.
LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket() as device:
    fcntl.ioctl(device, 0x8914, struct.pack("16sH22x", b"lo", 0x41))
os.execv(sys.argv[1], sys.argv[1:])
"""
NETWORKED = (sys.executable, "-c", LOOPBACK)


def with_small_disk(folder: Path, size: str) -> tuple[str, ...]:
    """A disk of that size on `folder`. `size` may go on with other options, as in `1m,nr_inodes=90`."""
    folder.mkdir(parents=True)
    script = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    return (*UNSHARE, "bash", "-c", script, str(folder), *NETWORKED)


def said(run: Run) -> str:
    assert "Traceback" not in run.output, run.output
    return re.sub(r"\s+", " ", run.output)


def assert_fails_and_leaves_nothing(run: Run, deadline: float = 100) -> None:
    """The run had pods and ends with 1; afterwards nothing is left of what they had."""
    cox = run.start()
    footprint = wait_until(lambda: with_pods(run, cox), "pods are alive")
    assert run.finish(cox, deadline) == 1, run.output
    footprint.assert_gone()


def with_pods(run: Run, cox: subprocess.Popen[str]) -> Footprint | None:
    assert cox.poll() is None, f"it had no pods:\n{run.finish(cox)}\n{run.output}"
    with contextlib.suppress(AssertionError):
        return Footprint.of(run, cox)
    return None


@pytest.fixture
def run(tmp_path, corpus):
    found = Run(tmp_path, job_objects(corpus, f"file://{tmp_path}/disk/checkpoints", trainers=1))
    found.objects[-1]["spec"]["failurePolicy"] = {"maxRestarts": 0}
    return found


@pytest.mark.slow
def test_a_full_disk_for_checkpoints_ends_the_job_by_what_is_missing_and_leaves_nothing(run):
    run.within = with_small_disk(run.folder / "disk", "300k")
    assert_fails_and_leaves_nothing(run, 200)
    assert "No space left on device" in said(run)
    assert f"{run.folder}/disk/checkpoints/" in said(run)


@pytest.mark.slow
def test_a_disk_for_checkpoints_that_fills_amid_training_is_waited_for_by_name_and_costs_no_data(run, baseline):
    """It fills between two checkpoints. Room costs the steps since the last one, and no command."""
    run.within = with_small_disk(run.folder / "disk", "20m")
    del run.objects[-1]["spec"]["failurePolicy"]
    cox = run.start()
    disk = Path(f"/proc/{cox.pid}/root{run.folder}/disk")  # in the run's own mount namespace
    wait_until(lambda: any(disk.glob("checkpoints/manifests/*")) or cox.poll() is not None, "a checkpoint")
    fill(disk / "ballast")
    stored = run.workdir / "cluster/TrainingJob/default/small.json"
    wait_until(lambda: "StoreAway" in stored.read_text() or cox.poll() is not None, "the full disk is seen")
    assert cox.poll() is None, said(run)
    (disk / "ballast").unlink()
    assert run.finish(cox, 150) == 0, said(run)
    assert f"waiting for the store: file://{run.folder}/disk/checkpoints/" in said(run)
    assert "No space left on device; make room there" in said(run)
    note(run.warnings())
    assert (run.digests(), run.losses()) == (baseline.digests(), baseline.losses())


def fill(path: Path) -> None:
    """Takes all room of the disk."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("size", ["4k", pytest.param("40k", marks=pytest.mark.slow)])
def test_a_full_disk_for_the_block_index_ends_the_job_by_what_is_missing(run, size):
    """The checkpoint's place is where blocks are indexed; it has room for the record of the run, or
    for less.
    """
    run.within = with_small_disk(run.folder / "disk", size)
    assert_fails_and_leaves_nothing(run)
    assert "No space left on device" in said(run)
    assert f"{run.folder}/disk/checkpoints" in said(run)


def test_a_full_work_directory_ends_the_command_with_the_remedy(run, tmp_path):
    run.within = with_small_disk(run.workdir, "160k")
    assert_fails_and_leaves_nothing(run)
    assert f"No space left on device: '{run.workdir}'; repair that and repeat the command to resume" in said(run)


@pytest.mark.slow
def test_a_work_directory_that_takes_no_other_file_ends_the_command_by_the_file(run):
    """It has bytes to spare. The run repeated its writes without end."""
    run.within = with_small_disk(run.workdir, "9m,nr_inodes=70")
    assert run.finish(run.start(), 100) == 1, run.output
    assert re.search(rf"No space left on device: '{run.workdir}/.*'; repair that and repeat the command", said(run))


PORTS = [value for name, value in vars(names).items() if name.startswith("PORT_")]

# Holds one port after the other, and gives the command that follows in the same process.
EACH_PORT = """
import json, socket, sys
from typer.testing import CliRunner
from coxswain_cli.__main__ import app
for port in json.loads(sys.argv[1]):
    with socket.create_server(("0.0.0.0", port)):
        done = CliRunner().invoke(app, sys.argv[2:])
    print(json.dumps((port, done.exit_code, done.output)))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory, corpus):
    """By port: a run that found it taken, and its exit code."""
    folder = tmp_path_factory.mktemp("ports")
    run = Run(folder, job_objects(corpus, f"file://{folder}/checkpoints", trainers=1))
    words = ["run", str(run.write()), "--workdir", str(run.workdir)]
    command = [*UNSHARE, *NETWORKED, sys.executable, "-c", EACH_PORT, json.dumps(PORTS), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = {}
    for port, code, output in map(json.loads, done.stdout.splitlines()):
        found[port] = Run(folder, run.objects, output=output), code
    return found


@pytest.mark.parametrize("port", PORTS)
def test_a_port_that_another_process_has_on_every_address_is_refused_before_the_start(refusals, port):
    run, code = refusals[port]
    keep(run.output, code)
    assert code == 2, run.output
    assert f"listens on every address at port {port}, which" in said(run)
    assert f"`ss -ltnp sport = :{port}` names it" in said(run)
    assert not (run.workdir / "logs" / "small-coordinator-0").exists()
    Footprint(str(run.folder).encode()).assert_gone()


def test_a_machine_whose_loopback_network_is_down_is_refused_before_the_start(run):
    """Each pod was replaced for ever: none reached the coordinator, and a message said that it had left."""
    run.within = UNSHARE
    code = run.finish(run.start(), 100)
    keep(run.output, code)
    assert code == 2, run.output
    assert "the loopback network, by which the services of a run talk, is down (Network is unreachable)" in said(run)
    assert "`ip link set lo up`" in said(run)
    Footprint(str(run.folder).encode()).assert_gone()


@pytest.fixture(scope="module")
def running(tmp_path_factory, corpus):
    """A run amid training, and its process. Whatever is done to it, it goes on to the end, and leaves nothing."""
    folder = tmp_path_factory.mktemp("running")
    objects = job_objects(corpus, f"file://{folder}/checkpoints", trainers=1, stop={"steps": ENDLESS})
    objects[-1]["spec"]["failurePolicy"] = {"maxRestarts": 0}
    run = Run(folder, objects)
    cox = run.start()
    wait_for_step(run, cox, 3)
    yield run, cox
    footprint = Footprint.of(run, cox)
    assert stop_recovered(run, cox, generation=1) == 0, run.output + run.logs()
    footprint.assert_gone()


def goes_on(run, cox):
    wait_for_step(run, cox, max(run.steps()) + 3)


def test_a_caller_with_a_wrong_token_or_of_an_older_world_is_refused_and_the_run_continues(running):
    run, cox = running
    stored = json.loads(next((run.workdir / "cluster" / "Secret").rglob("*.json")).read_bytes())
    pod = json.loads(next((run.workdir / "cluster" / "Pod").rglob("*coordinator*.json")).read_bytes())
    place = f"http://{pod['status']['podIP']}:{names.PORT_COORDINATOR}/v1/steps?step=0"
    token = base64.b64decode(stored["data"]["token"]).decode()
    for sent, generation, code in (("wrong", 1, 401), (token, 0, 409)):
        headers = {TOKEN_HEADER: f"Bearer {sent}", GENERATION_HEADER: str(generation)}
        answer = httpx.get(place, headers=headers, trust_env=False)
        assert answer.status_code == code
        assert token not in answer.text
        note(f"HTTP {code}: {answer.text}")
    assert answer.text == "generation 0 is over; the current one is 1"
    goes_on(run, cox)


def test_a_second_run_in_the_same_work_directory_is_refused_and_does_not_disturb_the_first(running):
    run, cox = running
    second = Run(run.folder, run.objects)
    assert second.run(deadline=60) == 2
    assert f"in use by another run (process {cox.pid})" in said(second)
    assert "small: Running" in run_cox("status", run.workdir).stdout
    goes_on(run, cox)
