"""The test cluster behaves like Kubernetes and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster import preflight
from e2e.cluster.cgroups import here
from e2e.cluster.cluster import Cluster
from e2e.cluster.namespaces import Process, descendants, identify, run
from e2e.cluster.process import REPOSITORY, wait_until
from e2e.cluster.settings import PAUSE_IMAGE
from e2e.cluster.state import State

_USERLAND = ("usr", "lib", "lib64", "bin")
_ASK = """
import time, urllib.request
while True:
    try:
        print(urllib.request.urlopen("http://web/", timeout=2).status)
        break
    except OSError as error:
        print(error)
        time.sleep(0.2)
"""
_SERVE = "import http.server, os; os.chdir('/usr'); http.server.test(http.server.SimpleHTTPRequestHandler, port=8000)"
_OWNER = """
import sys, signal
from pathlib import Path
from e2e.cluster.cluster import Cluster
from e2e.test_cluster import pod
cluster = Cluster(Path(sys.argv[1]), nodes=1)
cluster.up()
cluster.kubectl("apply", "-f", "-", stdin=pod("sleeper", "node-0", "import time; time.sleep(3600)"))
cluster.kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")
print("up", flush=True)
signal.pause()
"""


def pod(name: str, node: str, program: str, **labels: str) -> str:
    """A manifest: a Python program, with this machine's own userland for an image."""
    mounts = [{"name": folder, "mountPath": f"/{folder}", "readOnly": True} for folder in _USERLAND]
    container = {
        "name": "main",
        "image": PAUSE_IMAGE,
        "command": ["/usr/bin/python3", "-uc", program],
        "volumeMounts": mounts,
    }
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": folder, "hostPath": {"path": f"/{folder}"}} for folder in _USERLAND],
    }
    return yaml.safe_dump(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    )


def service(name: str) -> str:
    ports = [{"port": 80, "targetPort": 8000}]
    spec = {"selector": {"app": name}, "ports": ports}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})


@pytest.fixture(scope="module")
def settings_before() -> str:
    return shared_settings()


@pytest.fixture(scope="module")
def cluster(settings_before: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if missing := preflight.lacks(preflight.look(), tmp_path_factory.getbasetemp()):
        pytest.exit("this machine cannot run nodes:\n" + "\n".join(missing), returncode=2)
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=2) as made:
        yield made


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of its own with a cluster of one node and a running pod, in `tmp_path / "cluster"`."""
    command = [sys.executable, "-c", _OWNER, str(tmp_path / "cluster")]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()
            Cluster(tmp_path / "cluster").down()


def traces(state: State, name: str) -> list[str]:
    """What this machine shows of a cluster."""
    links = [name] if Path("/sys/class/net", name).exists() else []
    groups = [str(hierarchy.root / name) for hierarchy in here() if (hierarchy.root / name).exists()]
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(state.root) in line]
    return [*links, *groups, *mounts, *map(str, [state.root] if state.root.exists() else [])]


def shared_settings() -> str:
    """What all processes of the machine share and a careless node changes."""
    keys = ["vm.overcommit_memory", "kernel.panic", "kernel.panic_on_oops", "net.ipv4.ip_forward"]
    networks = sorted(path.name for path in Path("/var/run/netns").glob("*"))
    rules = [line for line in run(["iptables-save"]).splitlines() if line.startswith("-A")]
    return run(["sysctl", *keys]) + "\n".join([*rules, *networks])


def test_pods_of_both_nodes_reach_a_service_by_its_name(cluster: Cluster) -> None:
    manifests = [
        service("web"), pod("web", "node-1", _SERVE, app="web"), pod("near", "node-1", _ASK), pod("far", "node-0", _ASK),
    ]  # fmt: skip
    cluster.kubectl("apply", "-f", "-", stdin="---\n".join(manifests))
    for name in ("near", "far"):
        cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=60s")
        assert cluster.kubectl("logs", name).splitlines()[-1] == "200"


def test_a_command_can_be_run_in_a_pod_and_sees_its_own_host_name(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=pod("host", "node-0", "import time; time.sleep(3600)"))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/host", "--timeout=60s")
    program = "import socket; print(socket.gethostname())"
    assert cluster.kubectl("exec", "host", "--", "/usr/bin/python3", "-c", program) == "host\n"


def test_a_running_cluster_changes_no_setting_of_the_machine(cluster: Cluster, settings_before: str) -> None:
    assert shared_settings() == settings_before


def test_a_killed_node_becomes_not_ready_and_ready_after_its_restart(cluster: Cluster) -> None:
    cluster.node(1).kill()
    cluster.kubectl("wait", "--for=condition=Ready=Unknown", "node/node-1", "--timeout=60s")
    cluster.node(1).start()
    cluster.kubectl("wait", "--for=condition=Ready", "node/node-1", "--timeout=60s")


def test_a_disconnected_node_runs_on_and_cannot_be_reached(cluster: Cluster) -> None:
    cluster.node(0).disconnect()
    cluster.kubectl("wait", "--for=condition=Ready=Unknown", "node/node-0", "--timeout=60s")
    assert cluster.node(0).alive
    cluster.node(0).connect()
    cluster.kubectl("wait", "--for=condition=Ready", "node/node-0", "--timeout=60s")


def test_a_second_cluster_in_the_same_folder_is_refused_and_the_first_stays(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "e2e.cluster", "up", "--state", str(cluster.state.root)]
    second = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert (second.returncode, "already running" in second.stderr) == (2, True)
    assert len(cluster.kubectl("get", "nodes", "-o", "name").split()) == 2


@pytest.mark.timeout(180)
def test_nothing_is_left_when_its_owner_is_killed(owner: subprocess.Popen[str], tmp_path: Path) -> None:
    state = State(tmp_path / "cluster")
    name, family = made(state, owner.pid)
    owner.kill()
    wait_until(lambda: not traces(state, name), "the reaper to remove everything", 60)
    wait_until(lambda: not any(process.alive for process in family), "the end of all processes", 10)


@pytest.mark.timeout(180)
def test_nothing_runs_when_owner_and_reaper_are_killed_and_down_removes_the_rest(
    owner: subprocess.Popen[str], tmp_path: Path
) -> None:
    state = State(tmp_path / "cluster")
    name, family = made(state, owner.pid)
    reaper = Process.read(state.reaper_file)
    assert reaper is not None
    os.kill(reaper.pid, signal.SIGKILL)
    owner.kill()
    wait_until(lambda: not any(process.alive for process in family), "the end of all processes", 60)
    assert f"{state.root}/" not in Path("/proc/self/mounts").read_text()
    run([sys.executable, "-m", "e2e.cluster", "down", "--state", str(state.root)])
    assert traces(state, name) == []


def made(state: State, owner: int) -> tuple[str, list[Process]]:
    """(the cluster's name, all its processes), after a look that there is something to leave
    behind.
    """
    plan = state.plan()
    assert plan is not None
    family = [identify(pid) for pid in descendants(owner)]
    assert len(family) > 20
    assert len(traces(state, plan.name)) > 3
    return plan.name, family
