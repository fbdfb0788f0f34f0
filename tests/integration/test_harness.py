"""The API server's harness leaves nothing behind, whichever way its user ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes import client, config

from e2e.tools.build import KUBERNETES
from e2e.tools.other_kubernetes import chosen
from tests.children import REPOSITORY
from tests.integration.apiserver import ApiServer

_HOLDER = """
import sys
from tests.integration.apiserver import ApiServer
with ApiServer() as api:
    print(api.audit.parent, api.plane.pid("etcd"), api.plane.pid("kube-apiserver"), flush=True)
    sys.stdin.read()
"""


def test_both_servers_and_their_folder_are_gone_after_the_block() -> None:
    with ApiServer() as api:
        processes = [os.pidfd_open(api.plane.pid(name)) for name in ("etcd", "kube-apiserver")]
        folder = api.audit.parent
    assert len(processes) == 2
    assert all(has_ended(process) for process in processes)
    assert not folder.exists()


def test_a_killed_test_run_takes_its_servers_with_it() -> None:
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER], cwd=REPOSITORY, stdin=-1, stdout=-1, text=True)
    assert holder.stdout is not None
    folder, *pids = holder.stdout.readline().split()
    processes = [os.pidfd_open(int(pid)) for pid in pids]
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert len(processes) == 2
    assert all(has_ended(process) for process in processes)
    subprocess.run(["rm", "-r", Path(folder)], check=True)


def test_the_error_of_a_server_that_cannot_start_shows_its_log() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1:.*unknown flag: --no-such-flag"):
        ApiServer(flags={"kube-apiserver": ["--no-such-flag"]}).__enter__()


def test_other_clients_reach_it_by_its_kubeconfig(api: ApiServer) -> None:
    with config.new_client_from_config(str(api.kubeconfig)) as connection:
        version = client.VersionApi(connection).get_code().git_version
    assert version == (chosen() or KUBERNETES)


def has_ended(process: int, deadline: float = 20) -> bool:
    """Whether the process behind a pidfd ends in time; closes it."""
    try:
        return bool(select.select([process], [], [], deadline)[0])
    finally:
        os.close(process)
