"""Every picture of the pages is made by `make pictures` and listed on one page."""

from __future__ import annotations

import re

import pytest

from coxswain.plan import planners
from docs.tools import goodput_picture, pictures, plan_pictures

ROOT = pictures.ROOT
LIST = (ROOT / "docs" / "pictures.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE = {"run.svg", *(shot.name for shot in pictures.SHOTS), *map(plan_pictures.name, plan_pictures.BESIDE)}
MADE |= {plan_pictures.STAGES, goodput_picture.NAME}
QUICK = [balance for balance in plan_pictures.BESIDE if balance not in getattr(planners, "SLOW", ())]


def test_the_page_of_pictures_lists_just_those_that_the_command_makes() -> None:
    assert set(re.findall(r"^\| \[([\w.-]+)\]\(pictures/\1\)", LIST, re.MULTILINE)) == MADE


def test_the_folder_holds_just_those_too() -> None:
    assert {file.name for file in (ROOT / "docs" / "pictures").iterdir()} == MADE


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_page_shows_no_other_picture_and_says_in_words_what_it_shows(page) -> None:
    shown = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)|<img[^>]*src=\"([^\"]+)\"", page.read_text())
    assert [path or html for _, path, html in shown if (path or html).rpartition("/")[2] not in MADE] == []
    assert [path for words, path, html in shown if not words and not html] == []


def test_the_recording_is_of_a_run_that_ended_and_shows_no_path_of_its_machine() -> None:
    text = re.sub(r"<[^>]+>", "", (ROOT / "docs" / "pictures" / "run.svg").read_text())
    assert "stdlib: Completed" in text
    assert not re.search(r"/(tmp|work|home|root)/", text)


@pytest.mark.parametrize("balance", QUICK)
def test_a_picture_of_plans_is_what_its_command_draws_now(balance: str, tmp_path) -> None:
    drawn = plan_pictures.draw(balance, tmp_path).read_text()
    assert drawn == (plan_pictures.PICTURES / plan_pictures.name(balance)).read_text(), "run `make generate`"


def test_the_picture_of_stages_is_what_is_planned_now(tmp_path) -> None:
    drawn = plan_pictures.draw_stages(tmp_path).read_text()
    assert drawn == (plan_pictures.PICTURES / plan_pictures.STAGES).read_text(), "run `make generate`"


def test_a_picture_of_plans_that_cannot_be_drawn_ends_the_command_with_the_reason(tmp_path) -> None:
    with pytest.raises(SystemExit, match="balance 'x': not known"):
        plan_pictures.draw("x", tmp_path)


@pytest.mark.parametrize("balance", plan_pictures.BESIDE)
def test_every_balance_has_its_lines_and_its_picture_on_the_page(balance: str) -> None:
    page = (ROOT / "docs" / "parallelism.md").read_text()
    before, picture, _ = page.partition(f"(pictures/plan-{balance}.svg)")
    assert picture
    assert before.rpartition("\n**`")[2].lower().startswith(f"{balance}`**")


def test_the_page_says_the_command_of_its_pictures() -> None:
    page = (ROOT / "docs" / "parallelism.md").read_text()
    assert plan_pictures.COMMAND.format(balance="static", file="plan.svg") in " ".join(page.split())


def test_the_page_says_the_command_of_the_picture_of_goodput() -> None:
    page = (ROOT / "docs" / "stragglers.md").read_text()
    assert goodput_picture.COMMAND.format(file="goodput.svg") in " ".join(page.split())
    assert f"(pictures/{goodput_picture.NAME})" in page


def test_without_a_browser_the_command_says_so_and_makes_nothing(tmp_path) -> None:
    with pytest.raises(pictures.Failed, match="no chromium"):
        pictures.make("", tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()


def test_a_run_that_fails_makes_no_recording(tmp_path) -> None:
    with pytest.raises(pictures.Failed, match="false failed"):
        pictures.record(tmp_path, tmp_path / "run.svg", "false")
    assert not (tmp_path / "run.svg").exists()


def test_a_recording_shows_the_command_and_its_output(tmp_path) -> None:
    pictures.record(tmp_path, tmp_path / "run.svg", "echo ship shape")
    text = (tmp_path / "run.svg").read_text()
    assert "$ echo ship shape" in text
    assert ">ship shape<" in text
