"""A display that shows nothing."""

from typing import TYPE_CHECKING

from engram.display.progress import Record

if TYPE_CHECKING:
    from engram.training.run import RunPlan, RunResult


class SilentDisplay:
    def __enter__(self) -> "SilentDisplay":
        return self

    def __exit__(self, *error: object) -> None: ...

    def building(self, run: str, what: str) -> None: ...

    def start(self, plan: "RunPlan") -> None: ...

    def update(self, record: Record) -> None: ...

    def message(self, text: str) -> None: ...

    def finish(self, result: "RunResult") -> None: ...
