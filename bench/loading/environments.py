"""A virtual environment for each group of peers, in `.cache/loading`: their packages pin each other's."""

from __future__ import annotations

import hashlib
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from bench.recorded import ROOT
from e2e.tools.guarded import run_guarded

CACHE = ROOT / ".cache" / "loading"
OURS = ("coxswain", "bare")  # of the checkout's own environment
PACKAGES = {
    "mosaic": ("mosaicml-streaming==0.13.0",),
    "litdata_chunks": ("litdata==0.2.76",),
    "grain_records": ("grain==0.2.18", "array-record==0.8.6"),
    "hugging_face": ("datasets==5.2.0", "torchdata==0.11.0"),
}
SYSTEMS = (*OURS, *PACKAGES)


def python_of(system: str) -> Path:
    """Its interpreter, after installing what it needs: the checkout's version of torch, and the newest tokenizer that fits."""
    if system in OURS:
        return Path(sys.executable)
    packages = (*PACKAGES[system], f"torch=={version('torch').partition('+')[0]}", "tokenizers")
    folder = CACHE / f"{system}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    if not (folder / ".ready").exists():
        _install(folder, packages)
    return folder / "bin" / "python"


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    run_guarded([sys.executable, "-m", "venv", folder])
    uv = Path(sys.executable).parent / "uv"
    run_guarded([uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", *packages])
    (folder / ".ready").touch()
