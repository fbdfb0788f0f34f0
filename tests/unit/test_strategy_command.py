"""`cox plan strategy` as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import Result

from coxswain.api.configure import parallel_config
from coxswain.api.field_errors import parse
from coxswain.api.parallelism import ParallelismPolicySpec
from coxswain.config import ParallelConfig, ReplicaShape
from coxswain.layout import Device, layout_for
from coxswain.plan.lengths import draw_lengths
from coxswain_cli.plan.strategy import strategy_command
from coxswain_cli.validate import validate_command
from tests.unit.plan_commands import invoke


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    file = tmp_path / "lengths.json"
    file.write_text(json.dumps(draw_lengths("github", context=65536, tokens=2**20, seed=1).tolist()))
    return file


def cox(*args: object) -> Result:
    return invoke(strategy_command, "--devices", 16, "--context", 32768, "--model", "llama-13b", *args)


def policy_in(file: Path) -> ParallelConfig:
    spec, faults = parse(ParallelismPolicySpec, json.loads(file.read_text())["spec"], "spec")
    assert not faults
    assert isinstance(spec, ParallelismPolicySpec)
    return parallel_config(spec)


def test_the_strategy_has_every_documented_field_and_alternatives_no_faster_than_the_choice(lengths: Path) -> None:
    result = cox("--lengths", lengths, "--hardware", "a100-40g", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {"chosen", "alternatives", "refused", "memory_bytes", "tokens", "policy", "seconds_to_choose"} <= set(found)
    assert {"summary", "replicas", "seconds", "peak_bytes"} <= set(found["chosen"])
    placed = [each["seconds"] for each in found["alternatives"] if each.get("placed", True)]
    assert placed == sorted(placed)
    assert placed[0] >= found["chosen"]["seconds"]


def test_the_table_names_the_choice_its_memory_the_alternatives_and_why_others_are_refused(
    lengths: Path, tmp_path: Path
) -> None:
    result = cox("--lengths", lengths, "--hardware", "a100-40g", "--output", tmp_path / "found.json")
    assert result.stderr.startswith("chosen ")
    assert "memory of 40 GiB" in result.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    rows = [line.split() for line in result.stderr.splitlines() if re.match(r"\d+ x tp", line)]
    wanted = [
        (
            f"{each['seconds']:.3f}",
            f"{each['seconds'] / found['chosen']['seconds']:.3f}",
            f"{each['peak_bytes'] / 2**30:.1f}",
        )
        for each in (found["chosen"], *found["alternatives"])
    ]
    assert len(wanted) > 2 and len(rows) == len(wanted)
    assert [set(numbers) <= set(row) for row, numbers in zip(rows, wanted, strict=True)] == [True] * len(wanted)
    assert "refused      tp1pp1: a device needs" in result.stderr


def test_a_job_with_the_written_policy_has_the_chosen_layout(lengths: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    found = json.loads(cox("--lengths", lengths, "--hardware", "a100-40g", "--policy", policy).stdout)
    assert invoke(validate_command, policy).exit_code == 0
    config = policy_in(policy)
    assert config.layout == msgspec.convert(found["chosen"]["replicas"], tuple[ReplicaShape, ...])
    assert config.recompute == found["chosen"]["recompute"]
    layout = layout_for([Device(t, d) for t in range(2) for d in range(8)], 40, config)
    assert layout.summary() == found["chosen"]["summary"]
    assert len(layout.replicas) == sum(shape.count for shape in config.layout)


def test_longer_sequences_are_split_at_the_context(lengths: Path) -> None:
    result = invoke(strategy_command, "--lengths", lengths, "--devices", 8, "--max-degree", 1, "--context", 8192)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--devices", "0"], "--devices is 0; it must be at least 1"),
        (["--capacity", "0"], "--capacity is 0; it must be at least 1"),
        (["--tokens", "-1"], "--tokens is -1; it must be at least 0"),
        (["--tokens", "9" * 30], "it must be at least 0 and at most 1000000000"),
        (["--context", "1"], "a step has some 1048576 sequences; it may have 1000000: lower --tokens, raise --context"),
        (["--devices", "100001"], "--devices is 100001; it must be at least 1 and at most 100000"),
        (["--recompute", "Some"], "--recompute is 'Some'; use None, Selective, Full or Auto"),
        (["--balance", "best"], "balance 'best': not known; use one of makespan"),
        (["--model", "gpt"], "model 'gpt': not known; use one of"),
        (["--devices", "1", "--hardware", "a100-40g"], "NoStrategy: no layout of 1 devices fits the model"),
        (
            ["--policy", "/no/such/p.json"],
            "--policy /no/such/p.json: No such file or directory; give a path that can be",
        ),
        (
            ["--output", "/no/such/o.json"],
            "--output /no/such/o.json: No such file or directory; give a path that can be",
        ),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(args: list[str], message: str, lengths: Path) -> None:
    result = cox("--lengths", lengths, *args)
    assert result.exit_code == 2
    assert message in result.stderr
