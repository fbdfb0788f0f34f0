"""`cox plan layout` as a user meets it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import Result

from coxswain.plan.layouts.result import read_current
from coxswain.plan.layouts.rivals import RIVALS
from coxswain_cli.plan.layout import layout_command
from tests.unit.layout_cases import DEAD, LARGE, cluster_of, costs_of
from tests.unit.plan_commands import invoke, printed


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.json"
    file.write_bytes(msgspec.json.encode(cluster_of([[1.0, 1.0, 2.57, DEAD], [1.0, 1.0]], batch=6)))
    return file


def cox(*args: object) -> Result:
    return invoke(layout_command, "--model", "llama-1b", *args)


def plan(*args: object) -> dict[str, Any]:
    return printed(cox(*args))


def test_the_layout_has_every_documented_field_and_the_same_bytes_again(cluster: Path) -> None:
    report = plan("--cluster", cluster)
    assert list(report) == [
        "replicas", "standby", "step_seconds", "healthy_seconds", "optimum_ratio", "ratio_to_optimum", "memory_limit_bytes",
        "planner_seconds", "digest", "transfers",
    ]  # fmt: skip
    assert set(report["replicas"][0]) == {"micro_batches", "stages"}
    assert set(report["replicas"][0]["stages"][0]) == {"node", "devices", "layers", "memory_bytes"}
    assert report["optimum_ratio"] == pytest.approx(6 / (4 + 1 / 2.57))
    ideal = report["healthy_seconds"] * report["optimum_ratio"]
    assert report["ratio_to_optimum"] == pytest.approx(report["step_seconds"] / ideal)
    assert report["transfers"] is None
    assert all(s["memory_bytes"] <= report["memory_limit_bytes"] for r in report["replicas"] for s in r["stages"])
    assert plan("--cluster", cluster)["digest"] == report["digest"]


def test_from_a_current_layout_the_moves_are_listed_and_rivals_compared(cluster: Path, tmp_path: Path) -> None:
    healthy, layout = tmp_path / "healthy.json", tmp_path / "layout.json"
    healthy.write_bytes(msgspec.json.encode(cluster_of([[1.0] * 4, [1.0, 1.0]], batch=6)))
    assert cox("--cluster", healthy, "--output", layout).exit_code == 0
    result = cox("--cluster", cluster, "--current", layout, "--rival", "all", "--output", tmp_path / "new.json")
    report = json.loads((tmp_path / "new.json").read_text())
    assert set(report["transfers"]) == {
        "bytes", "least_bytes", "from_checkpoint_bytes", "most_sent_bytes", "most_received_bytes", "seconds",
        "lower_bound_seconds",
    }  # fmt: skip
    assert report["transfers"]["bytes"] == report["transfers"]["least_bytes"] > 0
    assert list(report["rivals"]) == list(RIVALS)
    assert report["rivals"]["rigid"] is None and "rigid  has no layout" in result.stderr
    found = [rival["over_ours"] for rival in report["rivals"].values() if rival]
    assert found and min(found) >= 1 - 1e-9
    fullest = max(s["memory_bytes"] for r in report["replicas"] for s in r["stages"])
    assert (
        f"memory  {fullest / 2**30:.1f} of {report['memory_limit_bytes'] / 2**30:.1f} GiB on the fullest"
        in result.stderr
    )
    moved = report["transfers"]
    assert f"moves  {moved['bytes'] / 1e9:.1f} GB in {moved['seconds']:.2f} s, bound" in result.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_batch": 0}, "global_batch is 0; it must be at least 1"),
        ({"micro_batch": 4}, "global_batch is 6; it must be a multiple of micro_batch 4"),
        ({"nodes": []}, "no device is alive"),
        (
            {"nodes": [{"name": "n0", "devices": [{"slowdown": 0.5}]}]},
            "device 0: slowdown is 0.5; it must be at least 1",
        ),
        (
            {"nodes": [{"name": "n0", "devices": [{}], "bandwidth": 2}]},
            "bandwidth is 2.0; it must be at least 1e-06 and at most 1",
        ),
        ({"nodes": [{"name": "n", "devices": [{}]}] * 2}, "'n' stands twice"),
        ({"nodes": "x"}, "Expected `array`"),
        (
            {"global_batch": 100_001},
            "global_batch / micro_batch is 100001 micro-batches; at most 100000 are planned for",
        ),
        ({"global_batch": 10**30}, "it must be at least 1 and at most 100000000"),
        ({"micro_batch": 6, "sequence": 10**9}, "micro_batch x sequence is 6000000000 tokens; it must be at most"),
        ({"max_tensor": 10**18}, "max_tensor is 1000000000000000000; it must be at least 1 and at most 1024"),
        ({"nodes": [{"name": "n", "devices": [{}], "bandwidth": 1e-320}]}, "it must be at least 1e-06 and at most 1"),
        ({"nodes": [{"name": "n", "devices": [{"slowdown": 1e308}]}]}, "slowdown is 1e+308; it must be at least 1"),
        ({"nodes": [{"name": "n", "devices": [{}] * 1025}]}, "it has 1025 devices; a node has at most 1024"),
        (
            {"nodes": [{"name": str(n), "devices": [{}] * 1000} for n in range(101)]},
            "they have 101000 devices; at most",
        ),
        ({"hardware": "\0"}, "embedded null byte; use one of a100-40g"),
        ({"nodes": [{"name": "n0", "devices": [{}]}], "sequence": 4_000_000}, "hold the model on no layout"),
    ],
)
def test_a_bad_cluster_ends_with_2_and_names_the_field(cluster: Path, change: dict[str, Any], message: str) -> None:
    cluster.write_text(json.dumps({**json.loads(cluster.read_text()), **change}))
    result = cox("--cluster", cluster)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"node": "x", "devices": [0], "layers": [0, 16]}], "node 'x' is not in the cluster file"),
        ([{"node": "n0", "devices": [9], "layers": [0, 16]}], "device 9 is not on node 'n0'"),
        ([{"node": "n0", "devices": [-1], "layers": [0, 16]}], "device -1 is not on node 'n0'"),
        (
            [{"node": "n0", "devices": [d], "layers": layers} for d, layers in enumerate([[0, 9], [9, 7], [7, 16]])],
            "do not have each of the 16 layers once, in order",
        ),
        ([{"node": "n0", "devices": [0, 1, 2], "layers": [0, 16]}], "a tensor group of 3 cannot share the model"),
        ([{"node": "n0", "devices": [0], "layers": [0, 9]}], "do not have each of the 16 layers once"),
        (
            [{"node": "n0", "devices": [0], "layers": [0, 8]}, {"node": "n0", "devices": [0], "layers": [8, 16]}],
            "two stages",
        ),
        (
            [{"node": "n0", "devices": [0], "layers": [0, 16]}, {"node": "n0", "devices": [1], "layers": [16, 16]}],
            "the stage on 'n0' has no layer, [16, 16]; leave it out",
        ),
    ],
)
def test_a_bad_current_layout_ends_with_2_and_says_what_is_wrong(
    cluster: Path, tmp_path: Path, stages: list[dict[str, Any]], message: str
) -> None:
    current = tmp_path / "current.json"
    current.write_text(json.dumps({"replicas": [{"micro_batches": 6, "stages": stages}]}))
    result = cox("--cluster", cluster, "--current", current)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_current_layout_of_16384_devices_is_checked_in_seconds() -> None:
    """Of the processor: 0.2 s here; 8 s where each device was looked for among all."""
    costs = costs_of([[1.0] * 8] * 2048, batch=4 * 2048, model=LARGE)
    replicas = [
        {
            "micro_batches": 4,
            "stages": [{"node": f"n{n}", "devices": [d], "layers": [10 * d, 10 * d + 10]} for d in range(8)],
        }
        for n in range(2048)
    ]
    began = time.process_time()
    running = read_current(json.dumps({"replicas": replicas}).encode(), "--current", costs)
    assert time.process_time() - began < 3
    assert len(running.chains) == 2048


@pytest.mark.parametrize("count", [0, -3, -(10**30)])
def test_a_current_layout_whose_replica_has_no_micro_batch_is_refused(
    cluster: Path, tmp_path: Path, count: int
) -> None:
    """Though all of them together have those of the cluster file."""
    current, layers = tmp_path / "current.json", [0, 16]
    stages = [[{"node": node, "devices": [0], "layers": layers}] for node in ("n0", "n1")]
    pairs = zip(stages, (count, 6 - count), strict=True)
    current.write_text(json.dumps({"replicas": [{"micro_batches": n, "stages": each} for each, n in pairs]}))
    result = cox("--cluster", cluster, "--current", current)
    assert result.exit_code == 2
    assert f"replica 0: micro_batches is {count}; it must be at least 1" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--rival", "best"], "--rival is 'best'; use one of rigid,"),
        (["--horizon", "0"], "--horizon is 0; it must be at least 1 step"),
        (["--current", "missing.json"], "--current missing.json: No such file"),
        (["--model", "gpt"], "--model 'gpt': not known"),
    ],
)
def test_a_bad_option_ends_with_2_and_names_it(cluster: Path, args: list[str], message: str) -> None:
    result = cox("--cluster", cluster, *args)
    assert result.exit_code == 2
    assert message in result.stderr
