"""Keeps what a bench printed in docs/results, with its command, commit, date and machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def keep(name: str, title: str, command: str, figures: dict[str, Any], on: str = "") -> Path:
    """Writes docs/results/NAME.json; `make generate` puts its tables into the pages. `on`: what the figures depend on, where that
    is no machine."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    result = {
        "title": title, "command": command, "commit": commit, "recorded": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": on or machine(), "from": "the JSON object that the command printed", "figures": figures,
    }  # fmt: skip
    file = ROOT / "docs" / "results" / f"{name}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    return file


def machine() -> str:
    """Such as `2 x86-64 cores (AMD EPYC), no accelerator`."""
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*: (.*)$", known, re.MULTILINE)
    return f"{os.cpu_count()} shared cores ({model[1] if model else os.uname().machine}), no accelerator"
