"""Shows a run: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coxswain_cli.progress import View, amount, clock, duration


class Display(Protocol):
    """Shows one View after the other."""

    def show(self, view: View) -> None: ...

    def say(self, text: str) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display_for(console: Console) -> Display:
    return Panels(console) if console.is_terminal else Lines(console)


class Lines:
    """One line a step, an event, a change of state or of what is waited for: what a log file can keep."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ("", "")

    def show(self, view: View) -> None:
        for event in view.new_events:
            self.say(f"{event.reason}: {event.message}")
        for line in view.new_steps:
            self.say(
                f"step {line.step + 1}/{view.steps or '?'}  loss {line.loss:.4f}  "
                f"{amount(line.tokens / line.seconds if line.seconds else 0)} tokens/s  idle {line.idle_fraction:.1%}"
                f"{_left(view, line.step)}"
            )
        now = (view.state, view.waiting_for)
        if now != self._last and not view.new_steps and not view.ended:
            self.say(": waiting for ".join(part for part in now if part))
        self._last = now

    def say(self, text: str) -> None:
        self._console.print(f"{clock()} {text}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Panels:
    """A panel that stays in place. Refreshed by `show` only: a refresh thread would be one too many when we spawn."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def show(self, view: View) -> None:
        self._live.update(panel(view), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Panels:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _left(view: View, step: int) -> str:
    """Time left, with the last of several new steps only."""
    if view.eta_seconds is None or step != view.new_steps[-1].step:
        return ""
    return f"  left {duration(view.eta_seconds)}"


def panel(view: View) -> RenderableType:
    """The whole picture of a run."""
    rows = Table.grid(expand=True)  # a grid, since a progress bar in a plain group swallows what follows it
    rows.add_row(_numbers(view))
    rows.add_row(_line(view.waiting_for or view.message or view.layout))
    if view.steps:
        rows.add_row(ProgressBar(total=view.steps, completed=view.step))
    for event in view.events:
        rows.add_row(_line(f"{event.reason}: {event.message}", style="dim"))
    return Panel(rows, title=f"{view.name}: {view.state}", title_align="left")


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def _numbers(view: View) -> Table:
    idle = "-" if view.idle_fraction is None else f"{view.idle_fraction:.1%}"
    table = Table.grid(padding=(0, 3))
    table.add_row(
        f"step {view.step}/{view.steps or '?'}",
        f"loss {'-' if view.loss is None else f'{view.loss:.4f}'}",
        f"{amount(view.tokens_per_second)} tokens/s",
        f"idle {idle}",
        f"left {'-' if view.eta_seconds is None else duration(view.eta_seconds)}",
        f"checkpoint {'none yet' if view.checkpoint_step < 0 else f'step {view.checkpoint_step}'}",
    )
    return table
