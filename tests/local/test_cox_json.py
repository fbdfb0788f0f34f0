"""`cox run --json` on a real run: a script reads every step and the end, and nothing else than JSON."""

import json
import subprocess
import sys

from tests.local.jobs import Run, job_objects


def test_a_script_reads_each_step_and_event_of_a_run_and_its_end(tmp_path, corpus):
    run = Run(tmp_path, job_objects(corpus, f"file://{tmp_path}/checkpoints", trainers=1, stop={"steps": 4}))
    assert run.run("--json") == 0, run.output + run.logs()
    lines = [json.loads(line) for line in run.output.splitlines()]
    steps = [{k: v for k, v in line.items() if k != "type"} for line in lines if line["type"] == "step"]
    assert steps == list(run.steps().values())
    reasons = [line["reason"] for line in lines if line["type"] == "event"]
    assert reasons == run.events()
    assert [line["state"] for line in lines if line["type"] == "state"][-1] == "Completed"
    end = lines[-1]
    assert (end["type"], end["exit_code"], end["state"], end["step"]) == ("end", 0, "Completed", 4)
    assert end["loss"] == run.losses()[-1]
    assert end["checkpoint"]["step"] == 4
    facts = json.loads(
        subprocess.check_output([sys.executable, "-m", "coxswain_cli", "report", end["workdir"], "--json"])
    )
    assert (facts["state"], facts["steps"], facts["loss"]["last"]) == ("Completed", 4, end["loss"])
    assert facts["stream_digest"] == run.digests()[-1][0]
