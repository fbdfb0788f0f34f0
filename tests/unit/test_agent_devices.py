"""The environment of a worker: its device, its threads, and what its process imports."""

import os
import subprocess
import sys

import pytest

from coxswain.errors import Refused
from coxswain_train.agent.devices import fork_server_environment, trainer_devices, visible_devices, worker_environment
from tests.unit.agent_fakes import on


def test_workers_run_one_cpu_thread_each_unless_the_environment_says_otherwise():
    assert fork_server_environment({}, ())["OMP_NUM_THREADS"] == "1"
    assert fork_server_environment({"OMP_NUM_THREADS": "4"}, ())["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in fork_server_environment({}, ("0",))


@pytest.mark.parametrize("own", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_workers_on_gpus_let_segments_of_memory_grow_unless_the_container_says_how_torch_allocates(own):
    assert fork_server_environment({}, ("0",)) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert fork_server_environment({own: "backend:native"}, ("0",)) == {own: "backend:native"}
    assert "PYTORCH_ALLOC_CONF" not in fork_server_environment({}, ())


STEPS = """
import resource
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [b"x" * (16 << 20) for _ in range(4)]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_worker_on_cpus_takes_again_what_it_freed_in_the_step_before():
    environment = fork_server_environment(os.environ, ())
    done = subprocess.run([sys.executable, "-c", STEPS], env=environment, capture_output=True, timeout=60, check=True)
    assert int(done.stdout.split()[-1]) < 100  # page faults, of 16,384 pages


def test_a_container_says_itself_when_its_workers_give_memory_back():
    own = {"MALLOC_TRIM_THRESHOLD_": "131072"}
    assert fork_server_environment(own, ()).items() >= own.items()
    assert "MALLOC_TRIM_THRESHOLD_" not in fork_server_environment({}, ("0",))


@pytest.mark.parametrize(
    "devices, index, expected",
    [
        (("0", "1"), 1, "1"),
        (("0", "1", "2", "3"), 1, "3"),
        (("GPU-a", "GPU-b"), 0, "GPU-b"),
        (("0", "1"), 2, "1"),
        (("0", "1", "2", "3"), 2, "1"),
    ],
)
def test_a_worker_sees_one_cuda_device(devices, index, expected):
    assert worker_environment(on("h100-80g", index), 1, devices)["CUDA_VISIBLE_DEVICES"] == expected


def test_a_worker_of_a_job_on_cpus_sees_no_cuda_device_also_where_there_are_some(tmp_path):
    (tmp_path / "nvidia0").touch()
    env = on("cpu")
    assert trainer_devices(env.job, {}, tmp_path) == ()
    assert worker_environment(env, 1, ("0",)) == worker_environment(env, 1, ()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_trainer_that_sees_fewer_devices_than_it_has_workers_is_refused_and_shares_none(tmp_path):
    job = on("h100-80g").job
    assert job.devices_per_trainer == 2
    assert trainer_devices(job, {"CUDA_VISIBLE_DEVICES": "3,5"}) == ("3", "5")
    assert trainer_devices(job, {}, tmp_path) == ()  # the worker refuses, if torch finds none either
    with pytest.raises(Refused) as refused:
        trainer_devices(job, {"CUDA_VISIBLE_DEVICES": "3"})
    assert refused.value.reason == "TooFewDevices"
    assert refused.value.message == (
        "spec.trainers.devicesPerTrainer: 2, and the trainer sees 1 CUDA devices (3); lower devicesPerTrainer, "
        "or give the trainer as many devices"
    )


def test_cuda_devices_are_found_without_cuda(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert visible_devices({}, tmp_path) == ("0", "1")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, 5"}, tmp_path) == ("3", "5")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "0, -1, 2"}, tmp_path) == ("0",)


def test_the_agent_never_imports_torch():
    check = "import sys, coxswain_train.agent, coxswain_train.agent.forkserver; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0
