"""`make pictures`: every picture of the pages, from one real run of the main job. docs/pictures.md lists them.

    python -m docs.tools.pictures

Copies the example job into a scratch folder, records `cox run` on a terminal of its own, then photographs
parts of the report of that run. Nothing is drawn by hand. A missing tool or a failed run ends this program with 1.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.browser import BROWSER, Page, browser

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
BIN = Path(sys.executable).parent
COMMAND = "cox run examples/stdlib.yaml"
TERMINAL = "92x14"
# What happens within GROUP ms is one frame, shown for FRAME ms: the recording plays about ten times as fast as the run was.
GROUP, FRAME, LAST = 2000, 200, 5000
WIDTH, SCALE = 960, 0.6  # of the report's window, and of its pixels (two a unit) in the picture


class Failed(Exception):
    """A picture cannot be made; the message says what to do."""


@dataclass(frozen=True)
class Shot:
    """Part of the report, from the top of one element to the bottom of another."""

    name: str
    first: str  # selectors; of `last` the first match
    last: str


SHOTS = (
    Shot("report.png", "body", "details"),
    Shot("step.png", "details", "details"),
)


def main() -> None:
    try:
        make()
    except Failed as failure:
        sys.exit(f"make pictures: {failure}")


def make(chromium: str = BROWSER, pictures: Path = PICTURES) -> None:
    if not chromium:
        raise Failed("no chromium on this machine; on Debian: apt-get install chromium")
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = prepare(Path(scratch))
        record(folder, pictures / "run.svg")
        subprocess.run([BIN / "cox", "report", "runs/stdlib"], cwd=folder, check=True)
        with browser() as page:
            photograph(page, folder / "runs" / "stdlib" / "report.html", pictures)


def prepare(folder: Path) -> Path:
    """A checkout's examples with the corpus beside them, so that the paths within the job file hold."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    subprocess.run([sys.executable, "examples/make_corpus.py", "--output", "runs/corpus"], cwd=folder, check=True)
    return folder


def record(folder: Path, picture: Path, command: str = COMMAND) -> None:
    """The run on a terminal, as an animated SVG."""
    cast, code = folder / "run.cast", folder / "exit-code"
    line = f"echo '$ {command}'; {command}; echo $? > {code}"
    (folder / "record.sh").write_text(line)
    tool = [str(BIN / "termtosvg"), "record", str(cast), "-g", TERMINAL, "-c", "bash record.sh"]
    path = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "xterm-256color"}
    with subprocess.Popen(tool, cwd=folder, env=path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as recorder:
        recorder.wait()  # its input stays open: at its end the recorder would hang up on the run
    if not code.exists() or code.read_text().strip() != "0":
        raise Failed(f"{command} failed; its terminal:\n{cast.read_text()[-2000:] if cast.exists() else ''}")
    cast.write_text(cast.read_text().replace(str(folder), "/…"))  # this machine's folder says nothing to a reader
    render = [str(BIN / "termtosvg"), "render", str(cast), str(picture), "-t", "window_frame"]
    subprocess.run([*render, "-m", str(GROUP), "-M", str(FRAME), "-D", str(LAST)], check=True)
    if folder.name in picture.read_text():
        raise Failed("the recording shows the scratch folder, split over two events; run it again")


def photograph(page: Page, report: Path, pictures: Path) -> None:
    page.open(report.as_uri(), width=WIDTH, height=740)
    for shot in SHOTS:
        clip = {"x": 0, "width": WIDTH, "scale": SCALE} | _extent(page, shot)
        data = page.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        (pictures / shot.name).write_bytes(base64.b64decode(data))


def _extent(page: Page, shot: Shot) -> dict[str, float]:
    top = page.evaluate(f"document.querySelector({shot.first!r}).getBoundingClientRect().top + scrollY")
    bottom = page.evaluate(f"document.querySelector({shot.last!r}).getBoundingClientRect().bottom + scrollY")
    return {"y": max(0, top - 12), "height": bottom - max(0, top - 12) + 12}


if __name__ == "__main__":
    main()
