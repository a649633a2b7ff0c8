"""A few steps of a run under torch's profiler: a timeline, and a table of time by site."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile, record_function

from depthkit import files
from depthkit.training.profile_labels import STEP, Labels, Place
from depthkit.training.profile_table import added_up, by_place, text

if TYPE_CHECKING:
    from depthkit.training.folder import RunFolder
    from depthkit.training.trainer import Trainer

WARM_UP, STEPS = 3, 3
"""Steps that are let pass, and steps that are profiled."""
NEEDED = WARM_UP + STEPS
TRACE, TABLE, ROWS = "trace.json.gz", "profile.txt", "profile.json"

Around = Callable[[], contextlib.AbstractContextManager[None]]
"""Makes the context that every step of a run is taken in."""


@contextlib.contextmanager
def around_steps(trainer: Trainer, folder: RunFolder, say: Callable[[str], None]) -> Iterator[Around]:
    """For a whole run: gives the context for each of its steps, which is empty unless `train.profile` is on.

    Of several processes the first one is profiled.

    A run that ends before `NEEDED` steps, or has fewer left when it is resumed, leaves no profile and says
    so.
    """
    if not (trainer.config.train.profile and trainer.ranks.is_first):
        yield contextlib.nullcontext
        return
    profiler = StepProfiler(trainer, folder, say)
    try:
        yield profiler.step
    finally:
        profiler.close()


class StepProfiler:
    """Counts steps, profiles some, and writes what it found into `folder`."""

    def __init__(self, trainer: Trainer, folder: RunFolder, say: Callable[[str], None]):
        self.trainer, self.folder, self.say = trainer, folder, say
        self._taken = 0
        self._running = contextlib.ExitStack()
        self._profile: Any = None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step of the run."""
        if self._taken == WARM_UP:
            self._begin()
        with contextlib.nullcontext() if self._profile is None else record_function(Place(STEP).label):
            yield
        self._taken += 1
        if self._taken == NEEDED:
            self._end()

    def _begin(self) -> None:
        kinds = [ProfilerActivity.CPU]
        if self.trainer.device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        labels = Labels(self.trainer.model, self.trainer.optimizer)
        self._running.enter_context(labels.up())
        self._profile = self._running.enter_context(profile(activities=kinds))

    def _end(self) -> None:
        self._running.close()
        found, self._profile = self._profile, None
        rows = by_place(found.events(), STEPS)
        last = self.trainer.step
        content = {"steps": [last - STEPS + 1, last], "by_branch": added_up(rows), "by_site": rows}
        path = self.folder.path
        with self.folder.writing("the profile"):
            files.write_json(path / ROWS, content)
            files.write_text(path / TABLE, text(rows, STEPS))
            with files.replacing(path / TRACE) as temporary:
                found.export_chrome_trace(str(temporary))
        self.say(f"profile of steps {last - STEPS + 1} to {last}: {path / TABLE}")

    def close(self) -> None:
        """Take everything down again."""
        self._running.close()
        if self._taken < NEEDED:
            self.say(f"no profile: it takes {NEEDED} steps, and this run took {self._taken}")
