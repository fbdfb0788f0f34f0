"""SIGKILL of the process that holds a local cluster leaves nothing: no process, no port, no
address, no lock.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from coxswain_operator.local import LocalCluster
from tests.local.jobs import read_process, wait_until

HOLDER = """
import asyncio, sys
from pathlib import Path
from coxswain_operator.local import LocalCluster
from tests.local.pods import container, pod

LISTEN = '''
import os, socket, subprocess, sys, signal
s = socket.create_server((os.environ["IP"], PORT))
print(os.getpid(), os.environ["IP"], flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pause()
'''
ENV = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]

async def main():
    async with LocalCluster(Path(sys.argv[1])) as cluster:
        side = container(LISTEN.replace("PORT", "7421"), "side", env=ENV)
        await cluster.create(pod(container(LISTEN.replace("PORT", "7431"), env=ENV), sidecars=(side,)))
        await asyncio.Event().wait()

asyncio.run(main())
"""

LEAVER = HOLDER.replace(
    "print(os.getpid(),",
    'idle = [sys.executable, "-c", "import signal; signal.pause()"]\n'
    "print(subprocess.Popen(idle, start_new_session=True).pid,",
)


def lines(workdir: Path) -> list[list[str]]:
    logs = [workdir / f"logs/p/{name}.log" for name in ("main", "side")]
    return [log.read_text().split() for log in logs if log.exists() and "\n" in log.read_text()]


def is_gone(pid: str) -> bool:
    return not Path(f"/proc/{pid}").exists()


def start(workdir: Path, program: str = HOLDER) -> tuple[subprocess.Popen[bytes], list[list[str]]]:
    holder = subprocess.Popen([sys.executable, "-c", program, str(workdir)])
    wait_until(lambda: len(lines(workdir)) == 2, "both containers run")
    return holder, lines(workdir)


def test_a_killed_cluster_leaves_no_process_no_port_and_no_lock(tmp_path):
    holder, containers = start(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    wait_until(lambda: all(is_gone(pid) for pid, _ in containers), "all containers are dead", deadline=10)
    for port, (_, address) in zip((7431, 7421), containers, strict=True):
        with socket.create_server((address, port)):
            pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as guard:
        guard.bind((containers[0][1], 7399))


async def test_after_a_kill_the_next_cluster_takes_over_and_finds_the_pod_lost(tmp_path):
    holder, _ = start(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    async with LocalCluster(tmp_path) as cluster:  # the lock is free once the last container is dead
        status = (await cluster.list("Pod", "default"))[0]["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "ProcessLost")
        assert not (tmp_path / "volumes").exists()


async def test_a_cluster_in_a_copy_of_a_work_directory_ends_no_process_of_the_original(tmp_path):
    holder, left = start(tmp_path / "work", LEAVER)
    shutil.copytree(tmp_path / "work/cluster", tmp_path / "copy/cluster")
    async with LocalCluster(tmp_path / "copy"):
        assert all(read_process(int(pid), "environ") for pid, _ in left)  # which one that was killed has no more
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    async with LocalCluster(tmp_path / "work"):
        wait_until(lambda: all(is_gone(pid) for pid, _ in left), "what was left has ended", deadline=10)


async def test_what_a_container_has_put_in_a_session_of_its_own_ends_when_the_next_cluster_takes_over(tmp_path):
    holder, left = start(tmp_path, LEAVER)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    async with LocalCluster(tmp_path):
        wait_until(lambda: all(is_gone(pid) for pid, _ in left), "what was left has ended", deadline=10)


def test_two_clusters_on_one_machine_never_share_an_address(tmp_path):
    holders = [start(tmp_path / name) for name in ("a", "b")]
    addresses = [containers[0][1] for _, containers in holders]
    for holder, _ in holders:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert addresses[0] != addresses[1], json.dumps(addresses)
