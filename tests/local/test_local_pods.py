"""The local cluster runs pods as a kubelet does: real processes, tiny programs."""

import asyncio
import errno
import os
import signal
import socket
from pathlib import Path

import pytest

from coxswain.errors import Refused
from coxswain.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB_UID, LABEL_ROLE
from coxswain_operator.local import LocalCluster
from coxswain_operator.local.memory import MemoryKills
from coxswain_operator.reconcile.context import parse_fault
from tests.local.pods import container, pod, run_to_end, terminated, until, until_gone, until_text

SLEEP = "import signal; signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
READY = """
import http.server, os, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer((os.environ["POD_IP"], 7400), Ready).serve_forever()
"""
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@pytest.fixture
async def cluster(tmp_path):
    async with LocalCluster(tmp_path / "work") as cluster:
        yield cluster


async def test_a_pod_whose_containers_all_exit_with_zero_succeeded(cluster):
    status = await run_to_end(cluster, pod(container("pass"), container("pass", "second")))
    assert status["phase"] == "Succeeded"
    assert terminated(status)["reason"] == "Completed"


@pytest.mark.parametrize("program, code", [("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
async def test_an_exit_code_is_shown_as_a_kubelet_shows_it(cluster, program, code):
    status = await run_to_end(cluster, pod(container(program)))
    assert (status["phase"], terminated(status)["exitCode"]) == ("Failed", code)


KILLED = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("counted", "reasons"),
    [
        ([0, 1, 1], ["OOMKilled", "Error"]),
        ([0, 2, 2], ["OOMKilled", "OOMKilled"]),
        ([1, 1, 1], ["Error", "Error"]),
    ],
)
async def test_of_killed_processes_as_many_are_killed_for_memory_as_the_kernel_counts(tmp_path, counted, reasons):
    async with LocalCluster(tmp_path / "work", memory=MemoryKills(iter(counted).__next__)) as cluster:
        ends = [terminated(await run_to_end(cluster, pod(container(KILLED), name=name))) for name in "ab"]
    assert [(end["exitCode"], end["reason"]) for end in ends] == [(137, reason) for reason in reasons]
    for fault in (parse_fault(end["message"]) for end in ends if end["reason"] == "OOMKilled"):
        assert fault.retryable and fault.message.startswith("main was killed for its memory")
        assert fault.message.endswith("raise the limit of the control group that `cox run` runs in")


async def test_a_kill_that_an_agent_has_reported_explains_no_later_one(tmp_path):
    async with LocalCluster(tmp_path / "work", memory=MemoryKills(iter([0, 1, 1]).__next__)) as cluster:
        assert terminated(await run_to_end(cluster, pod(container("exit(1)"), name="a")))["reason"] == "Error"
        assert terminated(await run_to_end(cluster, pod(container(KILLED), name="b")))["reason"] == "Error"


async def test_a_pod_is_dated_by_the_clock_of_its_cluster(tmp_path):
    async with LocalCluster(tmp_path / "work", clock=lambda: 1e9) as cluster:
        status = await run_to_end(cluster, pod(container("pass")))
    times = {status["startTime"], terminated(status)["startedAt"], terminated(status)["finishedAt"]}
    assert times == {"2001-09-09T01:46:40Z"}


async def test_a_work_directory_may_have_a_name_that_is_no_text(tmp_path):
    async with LocalCluster(tmp_path / os.fsdecode(b"work-\xfc")) as cluster:
        status = await run_to_end(cluster, pod(container("pass")))
    assert status["phase"] == "Succeeded"


async def test_a_program_that_does_not_exist_is_a_start_error(cluster):
    status = await run_to_end(cluster, pod({"name": "main", "command": ["/no/such/program"]}))
    assert (terminated(status)["exitCode"], terminated(status)["reason"]) == (128, "StartError")
    assert "/no/such/program" in terminated(status)["message"] and "signal" not in terminated(status)


def children():
    """Numbers of this process's own processes."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


async def test_a_process_that_cannot_be_watched_ends_at_once(cluster, monkeypatch):
    def no_more(pid):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", no_more)
    before = children()  # servers that other tests share
    status = await run_to_end(cluster, pod(container(SLEEP)))
    assert terminated(status)["message"] == "cannot start 'main': Too many open files"
    assert children() <= before


async def test_a_pod_that_gets_no_address_is_refused_and_not_kept(cluster, monkeypatch):
    def no_more(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", no_more)
        with pytest.raises(Refused, match=r"no socket for .* \(Too many open files\); raise `ulimit -n`"):
            await cluster.create(pod(container("pass")))
    assert await cluster.list("Pod", "default") == []
    assert (await run_to_end(cluster, pod(container("pass"))))["phase"] == "Succeeded"


async def test_the_termination_log_becomes_the_termination_message(cluster):
    program = (
        "import os, pathlib; pathlib.Path(os.environ['COXSWAIN_TERMINATION_LOG']).write_text('bad corpus'); exit(2)"
    )
    status = await run_to_end(cluster, pod(container(program)))
    assert terminated(status)["message"] == "bad corpus"


async def test_output_lands_in_the_containers_log(cluster):
    await run_to_end(cluster, pod(container("import sys; print('out'); print('err', file=sys.stderr)"), name="talks"))
    assert sorted((cluster.workdir / "logs/talks/main.log").read_text().split()) == ["err", "out"]


async def test_a_sidecar_starts_first_restarts_and_does_not_decide_the_phase(cluster):
    sidecar = container("print('up', flush=True); exit(5)", "helper")
    waits = (
        "import time, pathlib\nwhile pathlib.Path('logs/p/helper.log').read_text().count('up') < 2: time.sleep(0.02)"
    )
    status = await run_to_end(cluster, pod(container(waits), sidecars=(sidecar,)))
    assert status["phase"] == "Succeeded"
    assert status["initContainerStatuses"][0]["restartCount"] >= 1


async def test_a_sidecar_outlives_the_main_container_and_stops_last(cluster):
    sidecar = container(
        "import signal, sys\nsignal.signal(15, lambda *_: (print('stopped', flush=True), sys.exit()))\n"
        "print('up', flush=True)\nwhile True: signal.pause()",
        "helper",
    )
    waits = "import time, pathlib\nwhile 'up' not in pathlib.Path('logs/p/helper.log').read_text(): time.sleep(0.02)"
    await run_to_end(cluster, pod(container(waits), sidecars=(sidecar,)))
    assert (cluster.workdir / "logs/p/helper.log").read_text().split() == ["up", "stopped"]


async def test_a_pod_is_ready_once_its_probe_answers(cluster):
    probe = {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 1}
    server = container(READY, ports=[{"name": "http", "containerPort": 7400}], readinessProbe=probe, env=[POD_IP])
    await cluster.create(pod(server))
    ready = await until(
        cluster, lambda p: p["status"]["conditions"][0]["status"] == "True" if "podIP" in p["status"] else False
    )
    assert ready["status"]["containerStatuses"][0]["ready"] is True


async def test_two_pods_use_the_same_port_at_their_own_addresses(cluster):
    probe = {"httpGet": {"path": "/readyz", "port": 7400}}
    for name in "ab":
        await cluster.create(pod(container(READY, readinessProbe=probe, env=[POD_IP]), name=name))
    pods = [await until(cluster, lambda p: p["status"].get("containerStatuses", [{}])[0].get("ready"), n) for n in "ab"]
    assert pods[0]["status"]["podIP"] != pods[1]["status"]["podIP"]


async def said_with_a_deletion(cluster, program):
    """The words of a pod's only container, which says `up` first, once the pod is deleted and gone."""
    await cluster.create(pod(container(program)))
    log = cluster.workdir / "logs/p/main.log"
    await until_text(log, "up")
    await cluster.delete("Pod", "default", "p")
    await until_gone(cluster)
    return log.read_text().split()


async def test_deletion_sends_sigterm_and_removes_the_object(cluster):
    polite = "import signal, sys\nsignal.signal(15, lambda *_: (print('bye', flush=True), sys.exit()))\n"
    polite += "print('up', flush=True)\nsignal.pause()"
    assert await said_with_a_deletion(cluster, polite) == ["up", "bye"]


async def test_a_deletion_asks_the_first_process_of_a_container_alone(cluster):
    """An agent ends its workers itself, after it has let them save."""
    program = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})\n"
    program += "if child := os.fork():\n print('up', flush=True); signal.sigwait({signal.SIGTERM})\n"
    program += " os.kill(child, signal.SIGUSR1); os.waitpid(child, 0)\n"
    program += "else:\n signal.sigwait({signal.SIGUSR1}); print(signal.SIGTERM in signal.sigpending(), flush=True)"
    assert await said_with_a_deletion(cluster, program) == ["up", "False"]


async def test_a_process_that_ignores_sigterm_is_killed_with_its_group_after_the_grace(cluster):
    child = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]).pid, flush=True)\n{STUBBORN}"
    await cluster.create(pod(container(child), terminationGracePeriodSeconds=0.2))
    log = cluster.workdir / "logs/p/main.log"
    await until_text(log, "deaf")
    await cluster.delete("Pod", "default", "p")
    await until_gone(cluster)
    await until_ended(next(int(word) for word in log.read_text().split() if word.isdigit()))


async def test_a_process_that_a_container_leaves_behind_ends_with_it(cluster):
    leaves = "import os, signal\nprint(child, flush=True) if (child := os.fork()) else signal.pause()"
    await run_to_end(cluster, pod(container(leaves)))
    await until_ended(int((cluster.workdir / "logs/p/main.log").read_text()))


async def test_a_process_that_a_container_leaves_in_a_session_of_its_own_ends_with_its_pod(cluster):
    program = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True).pid)"
    await run_to_end(cluster, pod(container(program)))
    await until_ended(int((cluster.workdir / "logs/p/main.log").read_text()))


async def test_deleting_another_uid_is_no_deletion(cluster):
    await cluster.create(pod(container(SLEEP)))
    await cluster.delete("Pod", "default", "p", uid="another")
    assert "deletionTimestamp" not in (await cluster.list("Pod", "default"))[0]["metadata"]


async def test_closing_the_cluster_ends_its_pods(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(pod(container("import os, signal; print(os.getpid(), flush=True); signal.pause()")))
        await until_text(tmp_path / "logs/p/main.log", "\n")
    assert not is_alive(int((tmp_path / "logs/p/main.log").read_text()))


DEAF = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); print('up', flush=True)\n"
DEAF += "while True: signal.pause()"


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_cluster_that_closes_waits_for_two_seconds_whatever_the_grace_of_its_pods(tmp_path, skip, deleted):
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(pod(container(DEAF), terminationGracePeriodSeconds=20))
        log = tmp_path / "logs/p/main.log"
        await until_text(log, "up")
        if deleted:
            await cluster.delete("Pod", "default", "p")
            await until_text(log, "asked")
        closing = asyncio.create_task(cluster.__aexit__(None, None, None))
        await until_text(log, "asked\n" * (1 + deleted))
        skip(2)
        await asyncio.wait_for(closing, 10)
        await cluster.__aenter__()


async def test_a_cluster_that_closes_on_a_full_disk_ends_its_pods_all_the_same(tmp_path, monkeypatch):
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(pod(container("import os, signal; print(os.getpid(), flush=True); signal.pause()")))
        await until_text(tmp_path / "logs/p/main.log", "\n")
        (tmp_path / "cluster/Pod/default/.p.json.new").mkdir()  # where the draft of its status would be
    assert not is_alive(int((tmp_path / "logs/p/main.log").read_text()))


async def test_a_deletion_shows_how_the_containers_of_a_pod_have_ended(cluster):
    """With 3 a service says that it has saved."""
    saves = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(3)); print('up', flush=True); signal.pause()"
    await cluster.create(pod(container(saves)))
    await until_text(cluster.workdir / "logs/p/main.log", "up")
    await cluster.delete("Pod", "default", "p")
    seen = await until(cluster, lambda p: "terminated" in p["status"]["containerStatuses"][0]["state"])
    assert terminated(seen["status"])["exitCode"] == 3


async def test_of_several_sidecars_the_one_that_started_last_ends_first(cluster):
    sidecars = tuple(
        {
            "name": name,
            "command": ["/bin/sh", "-c", f"trap 'echo {name} >> order; exit' TERM; echo up; sleep 100 & wait"],
        }
        for name in ("first", "second")
    )
    both = "until grep -q up logs/p/first.log && grep -q up logs/p/second.log; do sleep 0.01; done"
    await run_to_end(cluster, pod({"name": "main", "command": ["/bin/sh", "-c", both]}, sidecars=sidecars))
    assert (cluster.workdir / "order").read_text().split() == ["second", "first"]


async def test_a_pod_is_not_ready_before_its_sidecars_are(cluster):
    side = container(SLEEP, "side", readinessProbe={"httpGet": {"path": "/", "port": 9}})  # never answers
    await cluster.create(pod(container(SLEEP), sidecars=(side,)))
    seen = await until(cluster, lambda p: p["status"].get("containerStatuses", [{}])[0].get("ready"))
    assert seen["status"]["conditions"][0]["status"] == "False"


async def test_the_pods_of_a_job_are_those_that_it_controls(cluster):
    """Not one that a user has given its label, nor one that names it as an owner beside another."""
    labels = {LABEL_JOB_UID: "1", LABEL_ROLE: "trainer", LABEL_INDEX: "0", LABEL_INCARNATION: "0"}
    for name, owners in {"own": [{"uid": "1", "controller": True}], "label": [], "other": [{"uid": "1"}]}.items():
        manifest = pod(container("pass"), name=name)
        manifest["metadata"] |= {"labels": labels, "ownerReferences": owners}
        await cluster.create(manifest)
    assert [view.name for view in await cluster.pod_views("default", "1")] == ["own"]


async def test_a_pod_that_was_running_is_found_lost_after_a_restart(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(pod(container(SLEEP)))
        await until(cluster, lambda p: p["status"]["phase"] == "Running")
        stored = (tmp_path / "cluster/Pod/default/p.json").read_bytes()
    (tmp_path / "cluster/Pod/default/p.json").write_bytes(stored)  # as a SIGKILL would have left it
    async with LocalCluster(tmp_path) as cluster:
        status = (await cluster.list("Pod", "default"))[0]["status"]
    assert status["phase"] == "Failed"
    assert {"type": "DisruptionTarget", "status": "True", "reason": "ProcessLost"}.items() <= status["conditions"][
        0
    ].items()
    assert terminated(status)["exitCode"] == 137


async def test_a_pod_that_had_ended_is_not_lost_with_its_cluster(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        status = await run_to_end(cluster, pod(container("pass")))
    async with LocalCluster(tmp_path) as cluster:
        assert [p["status"] for p in await cluster.list("Pod", "default")] == [status]


async def test_a_container_that_had_ended_keeps_its_end_in_a_pod_that_is_lost(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(pod(container("exit(3)"), container(SLEEP, "other")))
        await until(
            cluster, lambda p: "terminated" in p["status"].get("containerStatuses", [{"state": ()}])[0]["state"]
        )
    async with LocalCluster(tmp_path) as cluster:
        status = (await cluster.list("Pod", "default"))[0]["status"]
    assert [terminated(status, index)["exitCode"] for index in (0, 1)] == [3, 137]


async def test_a_pod_that_needs_kubernetes_is_refused_with_the_reason(cluster):
    with pytest.raises(Refused, match="restartPolicy must be Never"):
        await cluster.create(pod(container("pass"), restartPolicy="OnFailure"))
    with pytest.raises(Refused, match="exec needs Kubernetes"):
        await cluster.create(pod(container("pass", readinessProbe={"exec": {"command": ["true"]}})))
    status = await run_to_end(cluster, pod(container("pass"), volumes=[{"name": "v", "persistentVolumeClaim": {}}]))
    assert status["reason"] == "UnsupportedVolume"


async def test_a_process_keeps_the_lock_of_its_run_and_the_guard_of_its_address(cluster):
    """Until it has ended, no other run takes them, also where its own was killed."""
    program = "import os\nfor n in os.listdir('/proc/self/fd'):\n try: print(os.readlink('/proc/self/fd/' + n))\n"
    program += " except OSError: pass"
    await run_to_end(cluster, pod(container(program)))
    kept = (cluster.workdir / "logs/p/main.log").read_text().split()
    assert str(cluster.workdir / "cluster.lock") in kept
    assert sum(name.startswith("socket:") for name in kept) == 1


async def test_an_address_stays_held_while_a_process_of_the_pod_runs(cluster):
    await cluster.create(pod(container(SLEEP)))
    running = await until(cluster, lambda p: p["status"]["phase"] == "Running")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other, pytest.raises(OSError, match="in use"):
        other.bind((running["status"]["podIP"], 7399))


async def until_ended(pid):
    """The kernel ends a process a moment after the signal, and not this one reaps it."""
    async with asyncio.timeout(5):
        while is_alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"


async def test_a_sidecar_that_exits_with_zero_is_not_restarted_while_its_pod_ends(cluster):
    main = container("import time; time.sleep(1)")
    status = await run_to_end(cluster, pod(main, sidecars=(container("pass", "side"),)))
    side = status["initContainerStatuses"][0]
    assert side["restartCount"] == 0
    assert side["state"]["terminated"]["exitCode"] == 0


async def test_a_container_beside_one_that_cannot_start_does_not_outlive_the_pod(cluster):
    status = await run_to_end(cluster, pod(container(SLEEP), {"name": "other", "image": "x"}))
    assert (status["phase"], status["reason"]) == ("Failed", "NoCommand")
    assert terminated(status)["signal"] == signal.SIGTERM


async def test_a_pod_one_of_whose_sidecars_cannot_start_fails_before_any_container_runs(cluster):
    status = await run_to_end(cluster, pod(container("pass"), sidecars=({"name": "side", "image": "x"},)))
    assert (status["phase"], status["reason"]) == ("Failed", "NoCommand")
    assert not (cluster.workdir / "logs" / "p" / "main.log").exists()


async def test_a_cluster_that_closes_during_a_deletion_ends_the_pods_sidecars(tmp_path):
    side = container("import os; print(os.getpid(), flush=True); " + STUBBORN, "side")
    side["startupProbe"] = {"httpGet": {"path": "/", "port": 9}}  # never answers, so the pod stays Pending
    log = tmp_path / "logs" / "p" / "side.log"
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(pod(container("pass"), sidecars=(side,)))
        await until_text(log, "deaf")
        await cluster.delete("Pod", "default", "p")
        await asyncio.sleep(0.1)  # the deletion is on its way, and waits for the sidecar's grace
    assert not is_alive(int(log.read_text().split()[0]))


async def test_a_deletion_while_a_pod_that_cannot_start_ends_its_sidecars_leaves_none_of_them(cluster):
    """The second sidecar has no command, so the pod fails; the first one is asked to stop, and uses up its grace."""
    deaf = "import os, signal; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); print(os.getpid())"
    probe = {"httpGet": {"path": "/readyz", "port": 7400}}
    first = container(deaf + READY, "first", env=[POD_IP], startupProbe=probe)
    sidecars = (first, {"name": "other", "image": "x"})
    await cluster.create(pod(container("pass"), sidecars=sidecars, terminationGracePeriodSeconds=0.5))
    log = cluster.workdir / "logs" / "p" / "first.log"
    await until_text(log, "asked")
    await cluster.delete("Pod", "default", "p")
    await until_gone(cluster)
    assert not is_alive(int(log.read_text().split()[0]))


async def test_a_pod_that_closing_ends_is_lost_by_a_disruption_and_not_failed_by_itself(tmp_path):
    quits = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(1)); print('up', flush=True); signal.pause()"
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(pod(container(quits)))
        await until(cluster, lambda p: p["status"]["phase"] == "Running")
        await until_text(tmp_path / "logs/p/main.log", "up")
    async with LocalCluster(tmp_path) as cluster:
        found = (await cluster.list("Pod", "default"))[0]
    assert (found["status"]["reason"], terminated(found["status"])["exitCode"]) == ("ProcessLost", 137)
    assert {"type": "DisruptionTarget", "status": "True"}.items() <= found["status"]["conditions"][0].items()


async def test_a_file_of_the_work_directory_is_never_imported_in_place_of_a_library(cluster):
    """`--workdir .` is the user's own folder: a `queue.py` there ended each service."""
    (cluster.workdir / "queue.py").write_text("raise RuntimeError('of the user')")
    status = await run_to_end(cluster, pod(container("import queue")))
    assert status["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("variable", "given", "seen"),
    [
        ("PYTHONPATH", "mine::/usr/lib/mine:~/mine", "{0}/mine::/usr/lib/mine:~/mine"),
        ("AWS_CA_BUNDLE", "certificates/ca.crt", "{0}/certificates/ca.crt"),
        ("AWS_CONFIG_FILE", "~/config", "~/config"),
        ("COLOUR", "mine:yours", "mine:yours"),
    ],
)
async def test_a_path_that_is_relative_to_the_folder_of_the_command_names_the_same_file_in_each_process(
    tmp_path, monkeypatch, variable, given, seen
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, given)
    async with LocalCluster(tmp_path / "work") as cluster:
        await run_to_end(cluster, pod(container(f"import os; print(os.environ[{variable!r}])")))
    assert (tmp_path / "work/logs/p/main.log").read_text().strip() == seen.format(tmp_path)
