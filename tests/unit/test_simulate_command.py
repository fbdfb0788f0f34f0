"""`cox simulate` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import Result

from coxswain_cli.reporting.goodput_picture import picture
from coxswain_cli.simulate import simulate_command
from tests.unit.plan_commands import invoke

SMALL = ("--model", "llama-7b", "--rivals", "rigid")


def cox(*args: object) -> Result:
    return invoke(simulate_command, *args)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"nodes": 2, "devices": 4, "seconds": 300, "seed": 0}\n'
        '{"t": 60, "component": "n0/1", "kind": "sick", "magnitude": 5.42, "duration": null}\n'
    )
    return file


def test_a_trace_gives_a_table_json_and_a_picture_the_same_each_time(trace: Path, tmp_path: Path) -> None:
    first, again, drawn = (tmp_path / name for name in ("first.json", "again.json", "goodput.svg"))
    done = cox(trace, *SMALL, "--output", first, "--picture", drawn)
    assert done.exit_code == 0 and "8 devices" in done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines()[2:]] == ["ours", "rigid"]
    assert cox(trace, *SMALL, "--output", again).exit_code == 0
    assert first.read_text() == again.read_text()
    ours, rigid = json.loads(first.read_text())["runs"]
    assert ours["goodput"] > rigid["goodput"] and ours["changes"] == 1
    words = "".join(ElementTree.fromstring(drawn.read_text()).itertext())
    assert "ours" in words and "rigid" in words and "Goodput over time" in words


def test_a_drawn_trace_is_saved_and_replays_to_the_same_results(tmp_path: Path) -> None:
    saved, first, again = (tmp_path / name for name in ("trace.jsonl", "first.json", "again.json"))
    drawn = ("--generate", "quiet", "--devices", "8", "--hours", "0.05", "--seed", "5", "--save", saved)
    assert cox(*drawn, *SMALL, "--output", first).exit_code == 0
    assert cox(saved, *SMALL, "--output", again).exit_code == 0
    assert first.read_text() == again.read_text()


def test_the_length_of_a_drawn_trace_is_in_hours_and_its_nodes_have_eight_devices(tmp_path: Path) -> None:
    saved, found = tmp_path / "trace.jsonl", tmp_path / "found.json"
    drawn = ("--generate", "quiet", "--devices", "16", "--hours", "0.05", "--save", saved, "--output", found)
    assert cox(*drawn, *SMALL).exit_code == 0
    head = json.loads(saved.read_text().splitlines()[0])
    assert (head["nodes"], head["devices"], head["seconds"]) == (2, 8, 180)


def test_without_rivals_ours_is_alone_and_where_no_person_reads_the_results_are_on_standard_output(trace: Path) -> None:
    done = cox(trace, *SMALL, "--rivals", "none")
    assert done.exit_code == 0
    assert [run["name"] for run in json.loads(done.stdout)["runs"]] == ["ours"]


def test_a_rival_that_is_named_twice_runs_once_whatever_spaces_are_beside_commas(trace: Path) -> None:
    done = cox(trace, *SMALL, "--rivals", "rigid, rigid")
    assert [run["name"] for run in json.loads(done.stdout)["runs"]] == ["ours", "rigid"]


def test_a_trace_file_beside_a_drawn_trace_is_refused(trace: Path) -> None:
    done = cox(trace, "--generate", "quiet", *SMALL)
    assert done.exit_code == 2 and "give either a trace file or --generate" in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "give either a trace file or --generate with one of contention"),
        (("nothing.jsonl",), "nothing.jsonl: No such file or directory; give a trace that can be read"),
        (("--generate", "hot"), "--generate is 'hot'; use one of"),
        (("--generate", "quiet", "--devices", "12"), "--devices is 12; it must be below 8 or a multiple of it"),
        (("--generate", "quiet", "--devices", "100008"), "a multiple of it, and at most 100000"),
        (("--generate", "quiet", "--hours", "0"), "--hours is 0.0; it must be above 0"),
        (("--generate", "quiet", "--hours", "1e5"), "--hours is 100000.0; it must be above 0 and at most 10000"),
        (("--generate", "quiet", "--seed", "-1"), "--seed is -1; it must be 0 to 2^63 - 1"),
        (("--generate", "quiet", "--seed", str(2**63)), "it must be 0 to 2^63 - 1"),
        (("--generate", "quiet", "--hours", "1", "--rivals", "megatron"), "--rivals is 'megatron'; use some of rigid"),
        (("--generate", "quiet", "--hours", "1", "--action", "Fix"), "--action is 'Fix'; use one of None, Warn"),
        (("--generate", "quiet", "--hours", "1", "--restart", "-1"), "--restart is -1.0; it must be above 0"),
        (
            ("--generate", "quiet", "--spares", str(10**15)),
            "--spares is 1000000000000000; it must be at least 0 and at most",
        ),
        (("--generate", "quiet", "--hours", "1", "--model", "gpt"), "--model 'gpt': not known"),
        (("--generate", "quiet", "--devices", "8", "--hours", "1"), "hold the model on no layout"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(args: tuple[str, ...], words: str) -> None:
    done = cox(*args)
    assert done.exit_code == 2 and words in done.stderr


def test_the_picture_has_a_curve_and_a_legend_for_each_run() -> None:
    names = [f"run{i}" for i in range(9)]
    runs = [{"name": name, "goodput": 0.5, "curve": [0.0, 0.5, 1.2]} for name in names]
    found = ElementTree.fromstring(picture({"devices": 8, "seconds": 7200.0, "runs": runs}))
    lines = [e for e in found.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 2 * len(names)
    heights = [float(p.split(",")[1]) for line in lines for p in str(line.get("points")).split()]
    assert min(heights) >= 0
