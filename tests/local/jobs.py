"""Small real runs for the tests: a corpus with a long tail, a job file, `cox run` as a child, and what it leaves behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.local.failures import WORKDIR, keep

Object = dict[str, Any]

# One replica holds the longest sequence, so any number of replicas can run the same stream.
LONGEST = 384
TOKENS_PER_STEP = 1536
STEPS = 12  # four checkpoints; two replicas take a tenth of a second of the processors for each
ENDLESS = 100_000  # steps of a run that a test disturbs: it cannot end before that, however late the test is

OPTIMIZER = {"learningRate": "3e-3", "warmupSteps": 4, "weightDecay": "0.1", "gradientClip": "1.0"}

# The kinds of services, by the module that runs each.
SERVICES = {
    "loader": "coxswain_data.loader",
    "constructor": "coxswain_data.constructor",
    "worker": "coxswain_train.worker.worker",
    "forkserver": "coxswain_train.agent.forkserver",
    "agent": "coxswain_train.agent",
    "coordinator": "coxswain_coordinator",
}
# A kill of these needs another world; the others are replaced beside running workers.
NEW_WORLD = {"worker", "forkserver", "agent"}


def write_corpus(folder: Path) -> None:
    """Two sources: Parquet with row groups of 8 documents, Jsonl; lengths from 1 to some thousand bytes."""
    draw = random.Random(5)
    texts = ["".join(draw.choices("abcdefgh \n", k=int(min(3000, 20 * draw.paretovariate(0.7))))) for _ in range(160)]
    (folder / "code").mkdir(parents=True)
    (folder / "docs").mkdir()
    for part in range(3):
        table = pa.table({"path": [str(i) for i in range(30)], "text": texts[part * 30 : part * 30 + 30]})
        pq.write_table(table, folder / "code" / f"part-{part}.parquet", row_group_size=8)
    lines = [json.dumps({"text": text}) for text in texts[90:]]
    (folder / "docs" / "all.jsonl").write_text("\n".join(lines) + "\n")


def source(name: str, uri: str, format_: str, include: str, **spec: Any) -> Object:
    base = {"uri": uri, "format": format_, "include": include, "textField": "text", "tokenizer": {"bytes": {}}}
    return _object("DataSource", name, base | spec)


def job_objects(corpus: str, checkpoint: str, *, trainers: int = 2, loaders: int = 1, **spec: Any) -> list[Object]:
    """A TrainingJob with all that it refers to. `spec` overrides fields of the job."""
    mix = {
        "seed": 7,
        "sources": [
            {"name": "code", "sourceRef": {"name": "code"}, "weight": 700},
            {"name": "docs", "sourceRef": {"name": "docs"}, "weight": 300},
        ],
    }
    hybrid = {"tokensPerReplica": -(-LONGEST // min(trainers, 3)), "maxDegree": 4, "balance": "Makespan"}
    job = {
        "image": "coxswain-train",
        "seed": 1,
        "model": {
            "config": {"layers": 2, "hidden": 32, "heads": 2, "kvHeads": 1, "feedForward": 64, "vocabulary": 320}
        },
        "mixRef": {"name": "mix"},
        "parallelism": {"mode": "Fixed", "hybridData": hybrid, "hardware": "cpu"},
        "batch": {"tokensPerStep": TOKENS_PER_STEP, "maxSequenceTokens": LONGEST},
        "optimizer": OPTIMIZER | {"schedule": "Constant"},  # the same losses whatever the last step is
        "stop": {"steps": STEPS},
        "trainers": {"count": trainers, "devicesPerTrainer": 1, "minCount": trainers},
        "data": {"loaders": {"min": loaders, "max": loaders}},
        "checkpoint": {"uri": checkpoint, "everySteps": 3},
    }
    return [
        source("code", f"{corpus}/code", "Parquet", "**/*.parquet"),
        source("docs", f"{corpus}/docs", "Jsonl", "**/*.jsonl"),
        _object("DataMix", "mix", mix),
        _object("TrainingJob", "small", job | spec),
    ]


def write_objects(path: Path, objects: list[Object]) -> Path:
    path.write_text("\n---\n".join(json.dumps(o, indent=1) for o in objects))  # JSON is YAML
    return path


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "coxswain.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


_STARTED: list[subprocess.Popen[str]] = []  # by tests of the file under way


def end_started() -> None:
    """Kills what tests have started and left, as those do that fail: the kernel ends all processes of a `cox`."""
    while _STARTED:
        cox = _STARTED.pop()
        if cox.poll() is None:
            cox.kill()
            cox.communicate()


@dataclass
class Run:
    """One work directory in which `cox run` is started, once or repeatedly."""

    folder: Path
    objects: list[Object]
    environment: dict[str, str] = field(default_factory=dict)
    job_file: bytes | None = None  # instead of the objects
    within: tuple[str, ...] = ()  # a command that runs `cox`, such as one that makes namespaces
    output: str = ""

    @property
    def workdir(self) -> Path:
        return self.folder / WORKDIR

    def write(self) -> Path:
        """Its job file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = write_objects(self.folder / "job.yaml", self.objects)
        if self.job_file is not None:
            path.write_bytes(self.job_file)
        return path

    def start(self, *arguments: str, stderr: int = subprocess.STDOUT) -> subprocess.Popen[str]:
        command = [
            *self.within,
            sys.executable,
            "-m",
            "coxswain_cli",
            "run",
            str(self.write()),
            "--workdir",
            str(self.workdir),
            *arguments,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        cox = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
        _STARTED.append(cox)
        return cox

    def finish(self, cox: subprocess.Popen[str], deadline: float = 100) -> int:
        try:
            self.output, _ = cox.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            cox.kill()
            self.output, _ = cox.communicate()
            raise AssertionError(f"no end within {deadline} s:\n{self.output}\n{self.logs()}") from None
        keep(self.output, cox.returncode)
        return cox.returncode

    def run(self, *arguments: str, deadline: float = 100) -> int:
        return self.finish(self.start(*arguments), deadline)

    def steps(self) -> dict[int, Object]:
        """Valid lines of steps.jsonl by step: the last line of a step counts."""
        return {line["step"]: line for line in self.lines("steps.jsonl")}

    def events(self) -> list[str]:
        return [line["reason"] for line in self.lines("events.jsonl")]

    def warnings(self) -> str:
        """What its events warned of."""
        warnings = [f"{line['reason']}: {line['message']}" for line in self.lines("events.jsonl") if line["warning"]]
        return "; ".join(warnings) or "nothing"

    def digests(self) -> list[tuple[str, str]]:
        steps = self.steps()
        assert sorted(steps) == list(range(len(steps))), f"steps are missing: {sorted(steps)}"
        return [(steps[k]["stream_digest"], steps[k]["delivered_digest"]) for k in sorted(steps)]

    def losses(self) -> list[float]:
        steps = self.steps()
        return [steps[k]["loss"] for k in sorted(steps)]

    def logs(self) -> str:
        """Ends of all containers' logs, for the message of a failed test."""
        files = sorted((self.workdir / "logs").rglob("*.log"))
        return "\n".join(f"--- {f.relative_to(self.workdir)}\n{f.read_text()[-1500:]}" for f in files)

    def lines(self, name: str) -> list[Object]:
        """Whole lines of a file of its work directory, in order; none before there is one."""
        path = self.workdir / name
        if not path.exists():
            return []
        complete = path.read_text().split("\n")[:-1]  # a torn last line has no line end
        return [json.loads(line) for line in complete if line]


def whole_run(folder: Path, objects: list[Object], *arguments: str) -> Run:
    """A run that nothing disturbs, at its end."""
    run = Run(folder, objects)
    assert run.run(*arguments) == 0, run.output + run.logs()
    return run


def descendants(pid: int) -> Iterator[int]:
    """All processes below `pid`."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:
        return []


def find_service(cox: subprocess.Popen[str], module: str) -> int | None:
    """A process of `python -m module` below this cox, if there is one. Workers run under the name of their fork server."""
    found = []
    for pid in descendants(cox.pid):
        if module.encode() in read_process(pid, "cmdline").split(b"\0"):
            found.append(pid)
    if not found:
        return None
    return found[-1] if module == SERVICES["worker"] else found[0]


def wait_until(condition: Callable[[], Any], what: str, deadline: float = 60) -> Any:
    """Polls an outside process's visible state; the only way to watch files and /proc."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {deadline} s: {what}")


def kill_service(run: Run, cox: subprocess.Popen[str], module: str, after_step: int) -> Footprint:
    """SIGKILL to one process of a service once `after_step` is done; returns what the run had on the machine just before.

    The run needs more steps than it can train meanwhile, such as ENDLESS.
    """
    wait_for_step(run, cox, after_step)
    footprint = Footprint.of(run, cox)
    pid = wait_until(lambda: find_service(cox, module), f"a process of {module}")
    os.kill(pid, signal.SIGKILL)
    return footprint


def stop_recovered(run: Run, cox: subprocess.Popen[str], generation: int) -> int:
    """Ctrl-C to an ENDLESS run that was disturbed, once it trains on in `generation` or a later one; the exit code."""
    reached = f"a step in generation {generation}"
    wait_until(lambda: any(step["worldGeneration"] >= generation for step in run.steps().values()), reached, 120)
    wait_for_step(run, cox, max(STEPS, max(run.steps()) + 4))
    cox.send_signal(signal.SIGINT)
    return run.finish(cox)


def wait_for_step(run: Run, cox: subprocess.Popen[str], step: int) -> None:
    """Until `step` is done; fails at once when the run ends before."""

    def reached() -> bool:
        assert cox.poll() is None, f"cox ended too early:\n{run.finish(cox)}\n{run.output}\n{run.logs()}"
        return step in run.steps()

    wait_until(reached, f"step {step}", 120)


@dataclass(frozen=True)
class Footprint:
    """What a run in full swing has on this machine, to be looked for once it has ended. What other runs have is not in it."""

    mark: bytes  # its folder: every process of it has that in its environment or command line
    sockets: frozenset[str] = frozenset()  # inodes of those that its processes have open
    shared_memory: frozenset[Path] = frozenset()  # files of /dev/shm that they have open or mapped

    @staticmethod
    def of(run: Run, cox: subprocess.Popen[str]) -> Footprint:
        """Of this cox and all processes below it; at least one pod is alive."""
        pids = [cox.pid, *descendants(cox.pid)]
        assert any(b"POD_UID=" in read_process(pid, "environ") for pid in pids), "no pod is alive"
        return Footprint.of_processes(run.folder, pids)

    @staticmethod
    def of_processes(folder: Path, pids: Iterable[int]) -> Footprint:
        opened = {link for pid in pids for link in _opened(pid)}
        sockets = frozenset(link[len("socket:[") : -1] for link in opened if link.startswith("socket:["))
        shared_memory = frozenset(Path(link) for link in opened if link.startswith("/dev/shm/"))
        return Footprint(str(folder).encode(), sockets, shared_memory)

    def rest(self) -> list[str]:
        """What is still there of it, in words."""
        found = [f"process {pid}" for pid in _processes_with(self.mark)]
        found += [f"socket {line}" for inode, line in _bound() if inode in self.sockets]
        found += [f"shared memory {path}" for path in self.shared_memory if path.exists()]
        return found + [f"mount {line}" for line in _mounts().splitlines() if self.mark.decode() in line]

    def assert_gone(self, deadline: float = 15) -> None:
        try:
            wait_until(lambda: not self.rest(), f"nothing is left of {self.mark.decode()}", deadline)
        except AssertionError as error:
            raise AssertionError(f"{error}, but {self.rest()}") from None


def _mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def _processes_with(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            pid = int(entry.name)
            if mark in read_process(pid, "environ") or mark in read_process(pid, "cmdline"):
                yield pid


def read_process(pid: int, name: str) -> bytes:
    """A file of /proc; empty when the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _opened(pid: int) -> Iterator[str]:
    """What its memory and its descriptors refer to, without the standard ones: those may be its starter's."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if int(descriptor.name) > 2:
                    yield str(descriptor.readlink())
    yield from re.findall(r"/dev/shm/\S+", read_process(pid, "maps").decode())


def _bound() -> Iterator[tuple[str, str]]:
    """Inode and line of every socket that listens, receives datagrams or has a Unix name on this machine."""
    for kind, inode, states in (("tcp", 9, {"0A"}), ("tcp6", 9, {"0A"}), ("udp", 9, {"07"}), ("unix", 6, {"01", "03"})):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            words = line.split()
            if words[5 if kind == "unix" else 3] in states:
                yield words[inode], f"{kind} {line.strip()}"
