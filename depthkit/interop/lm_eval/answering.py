"""Ask a model tasks, intact and with visits skipped, and say what could not be asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from depthkit.interop.lm_eval import results
from depthkit.interop.lm_eval.library import import_lm_eval, quiet
from depthkit.interop.lm_eval.opened import Opener, opener
from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.statistics import paired_difference
from depthkit.utilization.tasks.answers import Answers
from depthkit.utilization.tasks.items import Items

CANNOT = (ImportError, OSError, RuntimeError, ValueError)
"""What opening a task raises: no network, a package it needs, data that is no longer read."""


def answer(options: EvalOptions, open_model: Callable[[EvalOptions], Any]) -> Answers:
    """Ask all tasks, each by itself, so that one that cannot be asked leaves the others alone.

    Args:
        options: tasks, tasks_limit, tasks_fewshot, skip, and the seed of intervals.
        open_model: makes the adapter.

    Raises:
        ValueError: lm-eval is not installed, an unknown task, a visit that is not there, or no task could be
            asked.
    """
    if not options.asked_tasks:
        return Answers()
    import_lm_eval()
    with quiet():
        tasks = opener(options.asked_tasks, options.tasks_limit)
        asking = _Asking(options, tasks, open_model(options))
        for name in options.asked_tasks:
            asking.ask(name)
    return asking.answers()


class _Asking:
    """The tasks of one model, one after the other."""

    def __init__(self, options: EvalOptions, tasks: Opener, lm: Any):
        self._options, self._tasks, self._lm = options, tasks, lm
        self._edit = _edit(options, lm)
        self._results: dict[str, Any] = {}
        self._items: dict[str, Items] = {}
        self._cannot: dict[str, str] = {}

    def ask(self, name: str) -> None:
        """Ask one task, or a group of them, and keep what was found or why not."""
        try:
            found = self._run(name)
            edited = None if self._edit is None else self._run(name, self._edit)
            self._keep(found, edited)
        except CANNOT as error:
            self._cannot[name] = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)

    def _run(self, name: str, edit: Edit | None = None) -> dict[str, Any]:
        import lm_eval

        with contextlib.nullcontext() if edit is None else self._lm.edited(edit):
            return lm_eval.simple_evaluate(
                self._lm,
                tasks=[self._tasks.task(name)],
                num_fewshot=self._options.tasks_fewshot,
                limit=self._options.tasks_limit,
                task_manager=self._tasks.manager,
                random_seed=None,  # the generators of whoever calls are left alone
                numpy_random_seed=None,
                torch_random_seed=None,
                fewshot_random_seed=self._options.seed,
            )

    def _keep(self, found: dict[str, Any], edited: dict[str, Any] | None) -> None:
        for name in found["results"]:
            told = results.of_task(found, name)
            if edited is not None:
                told["skipped"] = self._beside(name, found, edited)
            self._results[name] = told
            items = results.items_of(found, name, self._encode)
            self._items |= {} if items is None else {name: items}

    def _beside(self, name: str, found: dict[str, Any], edited: dict[str, Any]) -> dict[str, Any]:
        told = results.of_task(edited, name)
        before, after = (results.by_item(each, name, told["metric"]) for each in (found, edited))
        change = paired_difference(before, after, self._options.seed) if before and after else None
        return {key: told[key] for key in ("accuracy", "stderr", "metrics")} | {"difference": change}

    def _encode(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if context:
            return self._lm._encode_pair(context, continuation)
        return [self._lm.prefix_token_id], self._lm.plain(continuation)

    def answers(self) -> Answers:
        """All of it.

        Raises:
            ValueError: there is nothing.
        """
        if not self._results:
            told = "; ".join(f"{name}: {reason}" for name, reason in self._cannot.items())
            raise ValueError(f"tasks: none could be asked: {told}")
        content = {
            "lm_eval": version("lm_eval"),
            **self._lm.describe(),
            "limit": self._options.tasks_limit,
            "skip": self._options.skipped,
            "results": self._results,
            "unavailable": self._cannot,
        }
        return Answers(content, self._items)


def _edit(options: EvalOptions, lm: Any) -> Edit | None:
    """The asked skip.

    Raises:
        ValueError: a visit that the model does not have.
    """
    if not options.skipped:
        return None
    from depthkit.utilization.altered import depth_of

    depth = depth_of(lm.subject)
    if max(options.skipped) >= depth:
        raise ValueError(f"skip: {options.skipped}, but {lm.subject.name} has visits 0 to {depth - 1}")
    return skip(*options.skipped)
