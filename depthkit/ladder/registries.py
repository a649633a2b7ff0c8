"""What a ladder can be told: how rungs are made comparable, and where they run."""

from depthkit.registry import Registry

BUDGETS = Registry("budget", "depthkit.ladder.budgets")
"""How long every rung trains: `fit(run, reference) -> run` and `complaints(rungs)`."""

SIZES = Registry("size", "depthkit.ladder.sizes")
"""How wide every rung is: `fit(run, reference) -> run` and `complaints(rungs)`."""

RATES = Registry("learning rate treatment", "depthkit.ladder.rates")
"""Where every rung's learning rate comes from: `axes()` to add, and `treat(run) -> run`, on raw configs."""

LAUNCHERS = Registry("launcher", "depthkit.ladder.launchers")
"""Where rungs run; see `depthkit.ladder.launchers.base.Launcher`."""
