"""The asked tasks as lm-eval takes them: our own, and whatever the library knows by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from depthkit.interop.lm_eval.tasks import TASKS
from depthkit.registry import nearest


@dataclass(frozen=True)
class Opener:
    """Tasks by name.

    Attributes:
        manager: lm-eval's index of tasks; empty where only ours are asked, since filling it takes seconds.
        limit: items of each task; None: all of lm-eval's, and our own number of ours.
    """

    manager: Any
    limit: int | None

    def task(self, name: str) -> Any:
        """What `simple_evaluate` takes for a name: the name, or one of ours with its documents made.

        Raises:
            ValueError: ours cannot be made here.
        """
        if name not in TASKS.names():
            return name
        from depthkit.interop.lm_eval.configured import Configured

        component = TASKS.get(name)
        size = {} if self.limit is None else {"count": self.limit}
        return Configured(component(component.Config(**size)).configuration(), component.prior)


def opener(names: Iterable[str], limit: int | None) -> Opener:
    """What opens these tasks.

    Raises:
        ValueError: one is unknown; the message has the nearest match.
    """
    from lm_eval.tasks import TaskManager

    others = [name for name in names if name not in TASKS.names()]
    manager = TaskManager(include_defaults=bool(others))
    known = set(manager.all_tasks)
    for name in others:
        if name not in known:
            raise ValueError(_unknown(name, known))
    return Opener(manager, limit)


def _unknown(name: str, known: set[str]) -> str:
    """lm-eval has thousands of names, so they are counted and not listed."""
    close = nearest(name, [*TASKS.names(), *sorted(known)])
    hint = f"; did you mean {close!r}?" if close else "."
    own = ", ".join(TASKS.names())
    listed = f"{len(known)} of lm-eval (lm-eval ls tasks)"
    return f"tasks: unknown task {name!r}{hint} Allowed: {own}, and {listed}."
