"""What processes put together, and which probes they cannot share."""

import numpy as np
import pytest
import torch

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Largest, Scratch, Total, Totals
from depthkit.utilization.merging import together
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.result import Result


class Twins:
    """Stands for two processes: the other one has done what this one has."""

    rank, size = 0, 2

    def sum(self, tensor):
        return 2 * tensor

    def gather(self, value):
        return [value, value]


class Cache(Scratch):
    value = 0


class Config(Spec):
    kind: str = "counting"


class Counting(Probe):
    """Adds to whatever `adds` says."""

    alike = frozenset({"reason", "found"})

    def __init__(self):
        super().__init__(Config(), Context(None, None, 2, 0, []))
        self.total, self.totals, self.largest = Total(2), Totals(), Largest(2)
        self.nested = {"deep": [Total(1)]}
        self.cache = Cache()
        self.reason, self.found = None, {}
        self.number, self.array, self.tensor, self.listed = 0, np.zeros(2), torch.zeros(2), []

    def see(self, trace):
        """One look."""
        self.total.add(0, 1.5)
        self.totals.add("key", torch.ones(2))
        self.totals.add_rows("rows", torch.ones(1, 3), slice(1, 2), 4)
        self.largest.add(1, 3.0)
        self.nested["deep"][0].add(0, 1.0)
        self.cache.value += 1
        self.reason, self.found = "why", {1: "one"}

    def compute(self):
        """Nothing."""
        return Result()


def test_accumulators_are_merged_wherever_they_are():
    probe = Counting()
    with together([probe], Twins()):
        probe.see(None)
        probe.see(None)
    assert probe.total.values.tolist() == [6.0, 0.0]
    assert probe.totals.values["key"].tolist() == [4.0, 4.0]
    assert probe.totals.values["rows"].sum(1).tolist() == [0.0, 12.0, 0.0, 0.0]
    assert probe.largest.values[1] == 3.0
    assert np.isnan(probe.largest.values[0])
    assert probe.nested["deep"][0].values.tolist() == [4.0]
    assert (probe.reason, probe.found) == ("why", {1: "one"})


def test_what_was_not_added_to_is_not_added_up_again():
    probe = Counting()
    for _ in range(2):
        with together([probe], Twins()):
            if not probe.total.merged:
                probe.see(None)
    assert probe.total.values.tolist() == [3.0, 0.0]


def test_one_process_merges_nothing():
    probe = Counting()
    with together([probe], None):
        probe.see(None)
        probe.number += 1
    assert probe.total.values.tolist() == [1.5, 0.0]


def count(probe):
    probe.number += 1


def fill(probe):
    probe.array[1] = 1.0


def shift(probe):
    probe.tensor.add_(1)


def collect(probe):
    probe.listed.append(1)


def invent(probe):
    probe.other = 1


def replace(probe):
    probe.number = lambda: 1


@pytest.mark.parametrize("change", [count, fill, shift, collect, invent, replace])
def test_a_probe_that_changes_anything_else_is_refused_by_name(change):
    probe = Counting()
    with pytest.raises(ValueError, match=r"probe counting: keeps state .* run it in one process"):  # noqa: SIM117
        with together([probe], Twins()):
            change(probe)


def test_adding_to_what_was_merged_is_refused():
    probe = Counting()
    with together([probe], Twins()):
        probe.see(None)
    with pytest.raises(ValueError, match="adds to what has been merged"):  # noqa: SIM117
        with together([probe], Twins()):
            probe.total.add(0, 1.0)


class Unlike(Twins):
    """The other process has told something else."""

    def __init__(self, change):
        self.change = change

    def gather(self, value):
        import copy

        other = copy.deepcopy(value)
        self.change(other)
        return [value, other]


def other_reason(value):
    if isinstance(value, list):
        value[0].alike[1] = "another"


def other_keys(value):
    if isinstance(value, list):
        value[0].forms[1].append(("more", (1,)))


@pytest.mark.parametrize(
    ("change", "message"), [(other_reason, "'another' and 'why'"), (other_keys, "other things in some")]
)
def test_processes_that_found_different_things_are_refused(change, message):
    probe = Counting()
    with pytest.raises(ValueError, match=message):  # noqa: SIM117
        with together([probe], Unlike(change)):
            probe.see(None)


def test_unions_keep_the_order_of_the_first():
    probe = Counting()

    def more(value):
        if isinstance(value, list):
            value[0].alike[0] = {0: "zero", 1: "not this"}

    with together([probe], Unlike(more)):
        probe.see(None)
    assert list(probe.found.items()) == [(1, "one"), (0, "zero")]
