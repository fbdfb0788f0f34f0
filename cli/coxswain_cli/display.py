"""Shows a run: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Protocol

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coxswain.wire import StepLine
from coxswain_cli.progress import View, amount, clock, duration

_ENDS = ("Completed", "Failed")  # the summary that follows has them


class Display(Protocol):
    """Shows views one after the other."""

    def show(self, view: View) -> None: ...

    def say(self, text: str) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display_for(console: Console) -> Display:
    """Chooses a panel for a real terminal, else lines.

    FORCE_COLOR, which many pipelines set, makes rich take a file for a terminal.
    """
    return Panels(console) if console.is_interactive and console.file.isatty() else Lines(console)


class Lines:
    """Prints one line a step, an event, a change of state or of the wait, in the order of time.

    Events arrive later than steps: a line is held until all events of its time are known.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ("", "")
        self._known_until = 0.0
        self._held: list[tuple[float, str]] = []

    def show(self, view: View) -> None:
        self._held += [(e.seconds, f"{e.reason}: {e.message}") for e in view.new_events if e.reason not in _ENDS]
        self._held += [(line.time, _step(view, line)) for line in view.new_steps]
        now = (view.state, view.waiting_for)
        if now != self._last and not view.new_steps and not view.ended:
            self._held.append((time.time(), ": waiting for ".join(part for part in now if part)))
        self._last = now
        set_back = view.known_until < self._known_until  # the clock went back: held lines would wait for their old time
        self._print_until(math.inf if view.ended or set_back else view.known_until)
        self._known_until = view.known_until
        self._console.file.flush()  # what a slow reader did not take before

    def say(self, text: str) -> None:
        self._print(time.time(), text)

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print_until(math.inf)

    def _print_until(self, end: float) -> None:
        for when, text in sorted(line for line in self._held if line[0] <= end):
            self._print(when, text)
        self._held = [line for line in self._held if line[0] > end]

    def _print(self, when: float, text: str) -> None:
        self._console.print(f"{clock(when)} {text}", markup=False, highlight=False, soft_wrap=True)


class Panels:
    """Keeps a panel in place. `show` refreshes it, unless the terminal still has to take earlier ones."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def show(self, view: View) -> None:
        file = self._live.console.file
        file.flush()
        self._live.update(panel(view), refresh=not getattr(file, "is_behind", False))

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Panels:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _step(view: View, line: StepLine) -> str:
    speed = amount(line.tokens / line.seconds if line.seconds else 0)
    return (
        f"step {line.step + 1}/{view.steps or '?'}  loss {line.loss:.4f}{_evaluated(line)}  gradient {line.gradient_norm:.3g}  "
        f"rate {line.learning_rate:.3g}  {speed} tokens/s{_used(line.mfu)}  idle {line.idle_fraction:.1%}{_left(view, line.step)}"
    )


def _evaluated(line: StepLine) -> str:
    return "" if line.evaluation_loss is None else f"  held-out {line.evaluation_loss:.4f}"


def _used(mfu: float | None) -> str:
    return "" if mfu is None else f"  MFU {mfu:.1%}"


def _left(view: View, step: int) -> str:
    """Returns the time left, for the last of several new steps only."""
    if view.eta_seconds is None or step != view.new_steps[-1].step:
        return ""
    return f"  left {duration(view.eta_seconds)}"


def panel(view: View) -> RenderableType:
    """Draws the state of a run."""
    rows = Table.grid(expand=True)  # in a plain group a progress bar hides what follows it
    rows.add_row(_numbers(view))
    rows.add_row(_line(view.waiting_for or view.message or view.layout))
    if view.steps:
        rows.add_row(ProgressBar(total=view.steps, completed=view.step))
    for event in view.events:
        rows.add_row(_line(f"{event.reason}: {event.message}", style="dim"))
    saved = "no checkpoint yet" if view.checkpoint_step < 0 else f"checkpoint before step {view.checkpoint_step}"
    return Panel(rows, title=f"{view.name}: {view.state}", title_align="left", subtitle=saved, subtitle_align="right")


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def _numbers(view: View) -> Columns:
    """As many beside each other as the terminal has room for."""
    last, idle = view.last, "-" if view.idle_fraction is None else f"{view.idle_fraction:.1%}"
    texts = (
        f"step {view.step}/{view.steps or '?'}",
        f"loss {'-' if view.loss is None else f'{view.loss:.4f}'}",
        "" if view.evaluation_loss is None else f"held-out {view.evaluation_loss:.4f}",
        "" if last is None else f"gradient {last.gradient_norm:.3g}, rate {last.learning_rate:.3g}",
        f"{amount(view.tokens_per_second)} tokens/s{_used(last.mfu if last else None)}",
        f"idle {idle}",
        f"left {'-' if view.eta_seconds is None else duration(view.eta_seconds)}",
    )
    return Columns([_line(text) for text in texts if text], padding=(0, 3))
