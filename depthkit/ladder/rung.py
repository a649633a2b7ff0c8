"""One rung, in a worker process: train, then evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from depthkit.ladder.spec import Rung
from depthkit.utilization.options import EvalOptions


class Outcome(NamedTuple):
    """How a rung ended: `error` is None when it is finished and evaluated."""

    name: str
    error: str | None = None


def run_rung(rung: Rung, folder: str, options: EvalOptions) -> Outcome:
    """Train and evaluate what is not yet done; an ordinary run folder holds the result.

    An error ends this rung only: it is written to `error.txt` in the folder and returned.
    """
    from depthkit.files import write_text

    path = Path(folder)
    try:
        _train_and_examine(rung, path, options)
    except (ValueError, OSError, RuntimeError) as error:
        write_text(path / "error.txt", f"{type(error).__name__}: {error}\n")
        return Outcome(rung.name, str(error))
    (path / "error.txt").unlink(missing_ok=True)
    return Outcome(rung.name)


def _train_and_examine(rung: Rung, path: Path, options: EvalOptions) -> None:
    from depthkit.training import checkpoint
    from depthkit.training.device import threads
    from depthkit.training.examine import examine, held_out
    from depthkit.training.run import train

    ended = train(rung.config, path, resume=True, quiet=True)
    if ended["stopped"]:
        raise ValueError(f"stopped by {ended['stopped']} at step {ended['step']}; start the ladder again")
    if (path / "report.json").exists():
        return
    with threads(rung.config.train.threads):
        loaded = checkpoint.load(path)
        report = examine(loaded, held_out(loaded, options), options)
    report.save(path, html=options.html, plots=options.plots)
