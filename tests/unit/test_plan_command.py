"""`cox plan step` as a user meets it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from coxswain_cli.plan.step import step_command
from tests.unit.plan_commands import invoke, printed


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    file = tmp_path / "lengths.json"
    file.write_text(json.dumps([17000, 300, 8192, 5, 40000, *range(100, 6000, 150)]))
    return file


def cox(*args: object) -> Result:
    return invoke(step_command, "--replicas", "8", "--capacity", "8192", *args)


def plan(*args: object) -> dict[str, Any]:
    return printed(cox(*args))


def test_the_plan_has_every_documented_field(lengths: Path) -> None:
    report = plan("--lengths", lengths)
    assert list(report) == [
        "balance", "replicas", "capacity", "makespan_seconds", "lower_bound_seconds", "makespan_over_bound", "work_seconds",
        "idle_fraction", "ring_bytes", "planner_seconds", "digest", "constants", "tasks",
    ]  # fmt: skip
    assert set(report["tasks"][0]) == {"index", "kind", "replicas", "seconds", "slices"}
    assert set(report["tasks"][0]["slices"][0]) == {"replica", "sequence", "start", "stop"}
    assert report["constants"]["linear_us_per_token"] == 77.3


def test_tokens_of_the_tasks_are_tokens_of_the_file(lengths: Path) -> None:
    slices = [s for t in plan("--lengths", lengths)["tasks"] for s in t["slices"]]
    assert sum(s["stop"] - s["start"] for s in slices) == 65497 + sum(range(100, 6000, 150))


def test_one_number_a_line_is_the_same_step(lengths: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lengths.txt"
    lines.write_text("\n".join(map(str, json.loads(lengths.read_text()))))
    assert plan("--lengths", lines)["digest"] == plan("--lengths", lengths)["digest"]


def test_a_file_that_another_system_wrote_is_the_same_step(lengths: Path, tmp_path: Path) -> None:
    """With a byte order mark, and carriage returns at the ends of lines."""
    lines = tmp_path / "lengths.txt"
    lines.write_bytes("\r\n".join(map(str, json.loads(lengths.read_text()))).encode("utf-8-sig"))
    assert plan("--lengths", lines)["digest"] == plan("--lengths", lengths)["digest"]


def test_the_output_file_has_the_json_and_standard_error_a_table(lengths: Path, tmp_path: Path) -> None:
    result = cox("--lengths", lengths, "--node-size", 4, "--output", tmp_path / "plan.json")
    assert result.stdout == ""
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["balance"] == "makespan"
    rings, sent = [t for t in found["tasks"] if t["kind"] == "ring"], found["ring_bytes"]
    assert sent["between_nodes"] != sent["inside_node"] and min(sent.values()) > 0
    assert dict(line.strip().split("  ", 1) for line in result.stderr.splitlines()) == {
        "sequences": "45 with 186497 tokens, longest 40000",
        "tasks": f"{len(found['tasks']) - len(rings)} packs, {len(rings)} rings, "
        f"widest over {max(len(t['replicas']) for t in rings)} replicas",
        "makespan": f"{found['makespan_seconds']:.3f} s, {found['makespan_over_bound']:.3f} x the lower bound",
        "idle": f"{100 * found['idle_fraction']:.1f} %",
        "ring traffic": f"{sent['inside_node'] / 1e9:.1f} GB inside nodes, {sent['between_nodes'] / 1e9:.1f} GB between them",
        "planned in": f"{1000 * found['planner_seconds']:.0f} ms by makespan",
    }


def test_a_picture_shows_the_plan_and_that_of_another_balance_beside_it(lengths: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    plan("--lengths", lengths, "--picture", file, "--beside", "Static")
    heads = [e.text for e in ET.parse(file).iter() if e.attrib.get("class") == "head"]
    assert heads == ["makespan", "static"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--beside", "static"], "--beside static draws nothing without --picture; add --picture FILE"),
        (["--beside", "x", "--picture", "plan.svg"], "balance 'x': not known; use one of"),
        (["--picture", "/no/such/folder/plan.svg"], "--picture /no/such/folder/plan.svg: No such file or directory"),
    ],
)
def test_a_picture_that_cannot_be_drawn_ends_with_2_and_names_the_option(
    args: list[str], says: str, lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cox("--lengths", lengths, *args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""
    assert [file.name for file in tmp_path.iterdir()] == ["lengths.json"]


@pytest.mark.parametrize("balance", ["naive", "static"])
def test_rivals_need_longer_on_four_nodes(balance: str, lengths: Path) -> None:
    ours, rival = (
        plan("--lengths", lengths, "--replicas", 32, "--balance", name)["makespan_seconds"]
        for name in ("makespan", balance)
    )
    assert rival > ours


def test_a_slow_replica_costs_time(lengths: Path, tmp_path: Path) -> None:
    speeds = tmp_path / "speeds"
    speeds.write_text("\n".join(["0.5"] * 8))
    slow = plan("--lengths", lengths, "--speeds", speeds)
    assert slow["makespan_seconds"] == pytest.approx(2 * plan("--lengths", lengths)["makespan_seconds"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[100, -4]", "lengths[1] is -4"),
        ("[100, 2.5]", "entry 1 is '2.5'"),
        ("", "no numbers"),
        ("[70000]", "hold only 65536"),
        ("[100, 200", "the JSON array is cut off"),
        ("100, 200]", "the JSON array is cut off"),
        (f"[7, {2**63}]", f"lengths[1] is {2**63}; every sequence must have at least 1 token and at most 1000000000"),
        ("7\n" + "1" * 400, "lengths[1] is 1111"),
        ("7\n" + "1" * 5000, "entry 1 is '1111"),
        ("[1000000001]", "lengths[0] is 1000000001"),
    ],
)
def test_bad_lengths_end_with_2_and_name_the_entry(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad"
    file.write_text(text)
    result = cox("--lengths", file)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


def test_a_missing_file_an_unknown_balance_and_unknown_hardware_end_with_2(lengths: Path, tmp_path: Path) -> None:
    for args in (["--lengths", tmp_path / "no"], ["--balance", "x"], ["--hardware", "x"], ["--model", "x"]):
        result = cox("--lengths", lengths, *args)
        assert result.exit_code == 2
        assert "use one of" in result.stderr or "No such file" in result.stderr


@pytest.mark.parametrize("option", ["replicas", "capacity", "node-size", "max-degree"])
@pytest.mark.parametrize("value", [-3, -1, 10**9 + 1, 10**20, 10**23, 10**400])
def test_a_number_out_of_bounds_ends_with_2_and_is_named_with_the_bound(option: str, value: int, lengths: Path) -> None:
    result = cox("--lengths", lengths, f"--{option}", value)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.search(rf"{option.replace('-', '[- ]')} is {value}; it must be at least [01] ", result.stderr)


def test_a_degree_of_zero_means_all_replicas_and_below_zero_is_refused(lengths: Path) -> None:
    assert plan("--lengths", lengths, "--max-degree", 0)["digest"] == plan("--lengths", lengths)["digest"]
    assert (
        "--max-degree is -1; it must be at least 0 (all replicas)"
        in cox("--lengths", lengths, "--max-degree", -1).stderr
    )


def test_a_terminal_gets_the_table_and_not_the_plan_behind_it(lengths: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coxswain_cli.plan.step.on_terminal", lambda: True)
    result = cox("--lengths", lengths)
    assert (result.stdout, "x the lower bound" in result.stderr) == ("", True)
    assert json.loads(cox("--lengths", lengths, "--json").stdout)["replicas"] == 8
