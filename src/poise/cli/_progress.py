"""A live line per run on standard error, where that is a terminal; plain lines elsewhere are left to the report."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..events import Event, Mended, Noticed, RunFinished, RunStopped, Swapped
from ..events import Progress as Step


class Live:
    """Bars for several runs, and the latest incident behind them."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"), console=self._console, disable=not self._console.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def run(self, name: str, steps: int) -> Listener:
        """A listener that moves a new bar."""
        return Listener(self._progress, name, steps)


class Listener:
    """Moves one bar with a run's events."""

    def __init__(self, progress: Progress, name: str, steps: int) -> None:
        self._progress, self._steps = progress, steps
        self._task = progress.add_task(name, total=steps, note="warming")

    def __call__(self, event: Event) -> None:
        """Hear an event."""
        match event:
            case Step():
                self._progress.update(self._task, completed=event.step)
            case Noticed():
                note = f"step {event.fault.step}: {event.fault.kind} -> {event.action.value}"
                self._progress.update(self._task, completed=event.fault.step, note=note)
            case Mended() | Swapped():
                self._progress.update(
                    self._task, completed=event.fault.step if isinstance(event, Mended) else event.step
                )
            case RunFinished():
                self._progress.update(self._task, completed=self._steps, note="done")
            case RunStopped():
                self._progress.update(self._task, note="stopped")
            case _:
                self._progress.update(self._task)
