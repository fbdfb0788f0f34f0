"""`cox logs` of a work directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coxswain_cli.__main__ import app
from coxswain_cli.readers import folder
from coxswain_cli.readers.folder import FolderReader

LOGS = {
    "demo-coordinator-0/coordinator": "c\n",
    "demo-loader-0-0/loader": "l\n",
    "demo-trainer-0-0/trainer": "of a pod that was replaced\n",
    "demo-trainer-0-10/trainer": "newest\n",
    "demo-trainer-0-10/constructor": "beside it\n",
    "demo-trainer-0-9/trainer": "replaced, too\n",
    "demo-trainer-1-0/trainer": "whole\ntorn",
    "no-pod/x": "not a member's\n",
}


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "cluster").mkdir()
    for name, text in LOGS.items():
        path = tmp_path / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def cox(workdir: Path, *options: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["logs", str(workdir), *options])
    return done.exit_code, done.output.splitlines()


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["--coordinator"], ["[demo-coordinator-0/coordinator] c"]),
        (["--loader", "0"], ["[demo-loader-0-0/loader] l"]),
        (["--trainer", "0"], ["[demo-trainer-0-10/constructor] beside it", "[demo-trainer-0-10/trainer] newest"]),
        (["--trainer", "1"], ["[demo-trainer-1-0/trainer] whole", "[demo-trainer-1-0/trainer] torn"]),
    ],
)
def test_a_members_logs_are_those_of_its_newest_pod_to_the_last_byte(
    workdir: Path, options: list[str], lines: list[str]
) -> None:
    assert cox(workdir, *options) == (0, lines)


def test_without_a_member_every_members_logs_are_shown(workdir: Path) -> None:
    code, lines = cox(workdir)
    origins = {line.partition("]")[0][1:] for line in lines}
    replaced_or_foreign = ("-9/trainer", "0-0/trainer", "/x")
    assert (code, origins) == (0, {n for n in LOGS if not n.endswith(replaced_or_foreign)})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trainer", "7"], "holds no log of trainer-7; `cox status"),
        (["--trainer", "0", "--coordinator"], "give one of --trainer N, --loader N and --coordinator"),
        (["--trainer", "0", "--loader", "0"], "give one of --trainer N, --loader N and --coordinator"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(workdir: Path, options: list[str], words: str) -> None:
    code, lines = cox(workdir, *options)
    assert (code, len(lines), words in lines[0]) == (2, 1, True)


@pytest.mark.parametrize("name", ["logs", "logs/demo-loader-0-0"])
def test_a_folder_of_logs_that_cannot_be_listed_is_not_said_to_be_empty(workdir: Path, name: str) -> None:
    """As another user's; here a link to itself, which root may not list either."""
    (workdir / name).rename(workdir / "away")
    (workdir / name).symlink_to(workdir / name)
    code, lines = cox(workdir, "--loader", "0")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(
        f"cox logs: {workdir / name} cannot be listed (Too many levels of symbolic links); repeat this as"
    )


def test_the_advice_of_a_refusal_can_be_followed_to_the_letter_wherever_the_work_directory_is(tmp_path: Path) -> None:
    (tmp_path / "my runs" / "cluster").mkdir(parents=True)
    _, lines = cox(tmp_path / "my runs")
    assert f"; `cox status '{tmp_path}/my runs'` lists the pods" in lines[0]


def test_bytes_that_are_no_text_are_shown_as_escapes_and_end_nothing(workdir: Path) -> None:
    (workdir / "logs" / "demo-loader-0-0" / "loader.log").write_bytes(b"caf\xe9\nafter\n")
    assert cox(workdir, "--loader", "0") == (0, [f"[demo-loader-0-0/loader] {text}" for text in ("caf\\xe9", "after")])


def test_a_followed_log_goes_on_until_the_work_directory_is_free(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pod that replaces another one meanwhile, of which something was written since it was last looked at."""
    scenes: list[tuple[str, str]] = [
        ("demo-loader-0-0/loader", "a torn "),
        ("demo-loader-0-0/loader", "line\n"),
        ("demo-loader-0-1/loader", "of the next pod\n"),
        ("demo-loader-0-0/loader", "its last words\n"),
    ]
    assert follow(workdir, monkeypatch, lambda: scenes.pop(0) if scenes else None) == [
        "l\n", "a torn line\n", "of the next pod\n", "its last words\n",
    ]  # fmt: skip


def follow(workdir: Path, monkeypatch: pytest.MonkeyPatch, happen: Callable[[], tuple[str, str] | None]) -> list[str]:
    """What is written while `happen` appends to logs between two looks; it ends the job by None."""
    held, seen = [True], list[str]()

    def sleep(_: float) -> None:
        scene = happen()
        if scene is None:
            held[0] = False
            return
        path = workdir / "logs" / f"{scene[0]}.log"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(scene[1])

    monkeypatch.setattr(folder, "is_open", lambda _: held[0])
    monkeypatch.setattr(folder.time, "sleep", sleep)
    FolderReader(workdir).logs("loader-0", True, lambda origin, line: seen.append(line.decode()))
    return seen
