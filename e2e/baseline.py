"""What a run on the cluster must equal: the same job on this machine's local cluster, undisturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from e2e.job import Digests, Object, digests, local_objects


def cox_run(folder: Path, objects: Iterable[Object], store: Path) -> Digests:
    """By step. `folder`: an empty one. `store`: the S3 server's buckets."""
    file, work = folder / "job.yaml", folder / "work"
    file.write_text("\n---\n".join(map(json.dumps, local_objects(objects, store, folder / "checkpoints"))))
    command: list[str | Path] = [sys.executable, "-m", "coxswain_cli", "run", file, "--workdir", work]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return digests([work / "steps.jsonl"])
