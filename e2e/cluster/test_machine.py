"""The preflight names everything that a machine lacks; state and cgroups of a cluster never touch what is not theirs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster import preflight
from e2e.cluster.cgroups import Hierarchy, hierarchies
from e2e.cluster.namespaces import Process, commands_with, identify, start_time
from e2e.cluster.plan import Plan
from e2e.cluster.process import REPOSITORY
from e2e.cluster.state import ClusterRuns, NotOurs, State

FINE = preflight.Machine(
    system="Linux",
    root=True,
    commands=frozenset(preflight.COMMANDS),
    plugins=frozenset(preflight.PLUGINS),
    controllers=frozenset(preflight.CONTROLLERS),
)


def test_a_machine_with_everything_lacks_nothing() -> None:
    assert preflight.lacks(FINE, Path("/somewhere")) == []


def test_all_that_is_missing_is_said_at_once_with_the_line_that_helps() -> None:
    bare = replace(
        FINE, root=False, commands=FINE.commands - {"runc", "iptables"}, plugins=frozenset(), controllers=frozenset()
    )
    text = "\n".join(preflight.lacks(bare, Path("/somewhere")))
    assert "apt-get install --no-install-recommends containernetworking-plugins iptables runc" in text
    for what in ("root:", "command runc", "command iptables", "network plugin ptp", "cgroup controller memory"):
        assert what in text


def test_what_builds_images_is_asked_for_where_images_are_built() -> None:
    (debootstrap, img, line) = preflight.lacks(
        replace(FINE, commands=FINE.commands | {"buildah"}), Path("/x"), {**preflight.BUILDERS, "img": "img-tools"}
    )
    assert (debootstrap, img) == ("command debootstrap: not found (debootstrap)", "command img: not found (img-tools)")
    assert line == "    apt-get install --no-install-recommends debootstrap img-tools"


def test_what_the_demo_lacks_is_one_line_each_with_the_way_to_get_it() -> None:
    assert preflight.demo_lacks(FINE) == [
        "command buildah: not found: apt-get install --no-install-recommends buildah",
        "command debootstrap: not found: apt-get install --no-install-recommends debootstrap",
    ]
    assert preflight.demo_lacks(replace(FINE, commands=FINE.commands | set(preflight.BUILDERS))) == []
    disk, memory = preflight.DEMO_DISK, preflight.DEMO_MEMORY
    assert preflight.demo_room(replace(FINE, disk=disk, memory=memory)) == []
    assert preflight.demo_room(replace(FINE, disk=disk - 1, memory=memory - 1)) == [
        f"disk: {disk - 1} GB free, and it takes {disk} GB: delete files, or use a larger disk",
        f"memory: {memory - 1} GiB available, and cluster and job take {memory} GiB: end other programs",
    ]


def test_memory_is_what_programs_may_still_have() -> None:
    assert preflight.available("MemTotal: 9 kB\nMemAvailable:   19763264 kB\nBuffers: 1 kB\n") == 18


@pytest.mark.parametrize("page", ["Makefile", "README.md", "docs/install.md"])
def test_a_page_says_the_size_of_the_demo_that_was_measured(page: str) -> None:
    said = re.findall(r"\b(\d+) GB", " ".join(re.findall(r"demo.*", (REPOSITORY / page).read_text())))
    assert set(said) == {str(preflight.DEMO_DISK)}


def test_what_the_kernel_refuses_is_said() -> None:
    assert preflight.lacks(replace(FINE, failed_trials=("a network bridge",)), Path("/x")) == [
        "a network bridge: refused by the kernel"
    ]


def test_another_operating_system_is_refused_by_name() -> None:
    assert preflight.lacks(replace(FINE, system="Darwin"), Path("/x")) == [
        "operating system: Darwin, and nodes need Linux"
    ]


def test_a_folder_that_every_node_has_its_own_of_is_refused() -> None:
    (line,) = preflight.lacks(FINE, Path("/var/lib/ci/cluster"))
    assert line.startswith("--state /var/lib/ci/cluster: lies in /var/lib")


def test_the_script_for_ci_installs_every_package_that_the_preflight_asks_for() -> None:
    script = (REPOSITORY / "e2e" / "prepare.sh").read_text()
    listed = re.search(r'^packages="(.*)"$', script, re.M)
    assert listed is not None
    commands = {**preflight.COMMANDS, **preflight.BUILDERS}
    assert {*commands.values(), preflight.PLUGIN_PACKAGE} <= set(listed[1].split())


def test_hierarchies_of_both_versions_are_found() -> None:
    old, new = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0", "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0"
    assert hierarchies(f"{old}\ntmpfs /tmp tmpfs rw 0 0\n{new}\n") == [
        Hierarchy(Path("/sys/fs/cgroup/cpu"), unified=False),
        Hierarchy(Path("/sys/fs/cgroup/unified"), unified=True),
    ]


def test_a_process_is_not_mistaken_for_a_later_one_with_its_id() -> None:
    me = identify(os.getpid())
    assert me.alive
    assert not Process(me.pid, me.started - 1).alive


def test_an_ended_process_has_no_start_time_even_while_it_waits_to_be_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None
    child.wait()


def test_processes_are_found_by_all_words_of_their_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        assert commands_with(sys.executable, tmp_path) == [identify(child.pid)]
        assert commands_with(sys.executable, tmp_path / "fil") == []
        child.kill()


def test_a_process_file_that_was_cut_off_is_no_process(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("12")
    assert Process.read(tmp_path / "pid") is None
    assert Process.read(tmp_path / "absent") is None


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(NotOurs, match=r"thesis\.txt"):
        State(tmp_path).take()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_second_cluster_in_the_same_folder_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with State(tmp_path).take(), pytest.raises(ClusterRuns, match=r"already running.*e2e\.cluster down --state"):
        State(tmp_path).take()


def test_the_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = Plan("coxswain123456", "10.99.0.0/16", ["node-0"])
    State(tmp_path).write_plan(plan)
    assert State(tmp_path).plan() == plan


def test_a_sweep_removes_what_a_killed_cluster_left(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    with state.take():
        (state.root / "nodes" / "node-0").mkdir(parents=True)
        Process(os.getpid(), 1).write(state.first_file)  # an id that another process has by now
        state.remove()
    assert not state.root.exists()
