"""From lm-eval's results to what a report says: one metric per task, its error, chance, and every metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from depthkit.utilization.statistics import Number, Sample, number
from depthkit.utilization.tasks.items import Item, Items, Row

ACCURACIES = ("acc_mutual_info", "acc", "exact_match", "acc_norm", "em", "pass@1")
"""What is an accuracy, in the order in which one of several is taken."""
MUTUAL = "acc_mutual_info"
Encode = Callable[[str, str], tuple[list[int], list[int]]]


def of_task(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One task of what `simple_evaluate` gave.

    Returns:
        metric and accuracy (None where the task has no accuracy), stderr, n, chance (None unless every item
        has choices), version, num_fewshot, and all metrics.
    """
    metrics = _metrics(found["results"][name])
    metric = _headline(metrics)
    accuracy = metrics[metric] if metric else {"value": None, "stderr": None}
    samples = found.get("samples", {}).get(name, [])
    sizes = found.get("n-samples", {}).get(name, {})
    return {
        "metric": metric,
        "accuracy": accuracy["value"],
        "stderr": accuracy["stderr"],
        "n": sizes.get("effective"),
        "chance": _chance(found, name, samples),
        "version": found.get("versions", {}).get(name),
        "num_fewshot": found.get("n-shot", {}).get(name),
        "metrics": metrics,
    }


def _metrics(raw: Mapping[str, Any]) -> dict[str, dict[str, Number]]:
    """`metric,filter` -> value and standard error; lm-eval has text where there is none."""
    values = {key: value for key, value in raw.items() if "," in key and "_stderr," not in key}
    return {
        key.removesuffix(",none"): {
            "value": _number(value),
            "stderr": _number(raw.get(key.replace(",", "_stderr,", 1))),
        }
        for key, value in values.items()
    }


def _number(value: Any) -> Number:
    return number(value) if isinstance(value, int | float | np.number) else None


def _headline(metrics: Mapping[str, Any]) -> str | None:
    for wanted in ACCURACIES:
        for name in metrics:
            if name.partition(",")[0] == wanted:
                return name
    return None


def _chance(found: Mapping[str, Any], name: str, samples: list[dict[str, Any]]) -> Number:
    config = found.get("configs", {}).get(name, {})
    if config.get("output_type") != "multiple_choice" or not samples:
        return None
    return number(np.mean([len(_gold(sample)) / _count(sample) for sample in samples]))


def by_item(found: Mapping[str, Any], name: str, metric: str | None) -> Sample | None:
    """The accuracy of every item `[1, N]`, in lm-eval's order; None where it is no number."""
    kind, _, wanted = (metric or "").partition(",")
    samples = [s for s in found.get("samples", {}).get(name, []) if s["filter"] == (wanted or "none")]
    values = [_number(sample.get(kind)) for sample in sorted(samples, key=lambda s: s["doc_id"])]
    if not values or None in values:
        return None
    row = np.array([values], dtype=float)
    return Sample(row, np.ones_like(row))


def items_of(found: Mapping[str, Any], name: str, encode: Encode) -> Items | None:
    """The items of a multiple-choice task as token ids; None for other tasks.

    Args:
        found: what `simple_evaluate` gave.
        name: the task.
        encode: (context, continuation) -> ids of both, the context's at least one.
    """
    samples = found.get("samples", {}).get(name, [])
    if _chance(found, name, samples) is None:
        return None
    return Items(name, tuple(_item(sample, encode) for sample in samples))


def _item(sample: dict[str, Any], encode: Encode) -> Item:
    count, pairs = _count(sample), [encode(*arguments[:2]) for arguments in sample["arguments"]]
    signs = [1.0] * count + [-1.0] * (len(pairs) - count)  # PMI takes the choice's own off
    rows = [Row(tuple(first), tuple(then), sign) for (first, then), sign in zip(pairs, signs, strict=True)]
    return Item(tuple(tuple(rows[place::count]) for place in range(count)), _gold(sample))


def _count(sample: dict[str, Any]) -> int:
    asked = len(sample["arguments"])
    return asked // 2 if MUTUAL in sample["metrics"] else asked


def _gold(sample: dict[str, Any]) -> frozenset[int]:
    gold = sample["target"]
    if isinstance(gold, str):
        choices = [arguments[1].strip() for arguments in sample["arguments"][: _count(sample)]]
        gold = choices.index(gold.strip())
    return frozenset(gold if isinstance(gold, list) else [gold])
