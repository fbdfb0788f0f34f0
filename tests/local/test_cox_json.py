"""`cox run --json` on a real run: a script reads every step and the end, and nothing else than JSON."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.local.jobs import STEPS

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_a_script_reads_each_step_and_event_of_a_run_and_its_end(calm):
    lines = [json.loads(line) for line in (calm.folder / "output.jsonl").read_text().splitlines()]
    steps = [{k: v for k, v in line.items() if k != "type"} for line in lines if line["type"] == "step"]
    assert steps == list(calm.steps().values())
    reasons = [line["reason"] for line in lines if line["type"] == "event"]
    assert reasons == calm.events()
    assert [line["state"] for line in lines if line["type"] == "state"][-1] == "Completed"
    end = lines[-1]
    assert (end["type"], end["exit_code"], end["state"], end["step"]) == ("end", 0, "Completed", STEPS)
    assert end["loss"] == calm.losses()[-1]
    assert end["checkpoint"]["step"] == STEPS
    facts = json.loads(
        subprocess.check_output([sys.executable, "-m", "coxswain_cli", "report", end["workdir"], "--json"])
    )
    assert (facts["state"], facts["steps"], facts["loss"]["last"]) == ("Completed", STEPS, end["loss"])
    assert facts["stream_digest"] == calm.digests()[-1][0]


def test_a_line_has_no_other_type_than_those_that_the_page_names(calm):
    lines = [json.loads(line) for line in (calm.folder / "output.jsonl").read_text().splitlines()]
    (said,) = re.findall(r"^`--json` makes `cox run` (.*?) a refusal", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert (
        {line["type"] for line in lines}
        == {"step", "event", "state", "note", "end"}
        <= set(re.findall(r"`(\w+)`", said))
    )


def test_behind_a_complete_run_each_of_its_processes_has_ended_with_code_0(calm):
    status = [sys.executable, "-m", "coxswain_cli", "status", str(calm.workdir)]
    shown = subprocess.check_output(status, text=True)
    ended = re.findall(r"Succeeded \(exit codes: (.*)\)", shown)
    assert sorted(ended) == ["constructor 0, trainer 0", "constructor 0, trainer 0", "coordinator 0", "loader 0"]
