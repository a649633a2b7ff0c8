"""Sixty steps of the quickstart with every regulator, norm and stream: does each learn the text?

    python benchmarks/quickstart_kinds.py [PAGE]

A kind has learned something when its held-out loss is at least 0.1 nat below the entropy of the bytes
themselves. Every kind stands in the plainest model that takes it, at its default settings; `REMEDIES` are
tried beside those that need more. With PAGE, a Markdown page and a picture of the curves are written.
"""

from __future__ import annotations

import datetime
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from depthkit import config as configs
from depthkit.files import write_text
from depthkit.ladder.hosts import tried
from depthkit.training import metrics
from depthkit.training.run import train
from depthkit.utilization.report.plots import new_axes, save_png

ROOT = Path(__file__).parent.parent
STEPS, MARGIN = 60, 0.1
OVERRIDES = (f"train.steps={STEPS}", "train.eval_tokens=16384", "train.eval_every=10", "train.keep=1")
REMEDIES: dict[str, dict[str, Any]] = {
    "norm_dyt, final_norm: rms": {"model.norm": "dyt", "model.final_norm": "rms"},
    "norm_derf, final_norm: rms": {"model.norm": "derf", "model.final_norm": "rms"},
    "norm_dyt, embedding_std: 1.0": {"model.norm": "dyt", "model.embedding_std": 1.0},
    "norm_derf, embedding_std: 1.0": {"model.norm": "derf", "model.embedding_std": 1.0},
}


TEXT = """# {steps} steps of the quickstart with every kind

Measured {date} with torch {torch}, one CPU thread a run:

```
python benchmarks/quickstart_kinds.py {path}
```

`configs/quickstart.yaml` with {steps} steps (61k bytes), seed 0, every kind at its default settings
in the plainest model that takes it; held-out loss on 16,384 bytes. The byte-unigram entropy of the
held-out text is {entropy} nats; the aim is to end at least {margin} nat below it. One seed and
{steps} steps say that a kind learns, not which is better.

| kind | settings | held-out loss | below the entropy | aim |
|---|---|---|---|---|
{rows}

## What misses the aim, and why

Missed: {missed}.

DyT, Derf and no norm at all do not normalise: with an embedding of std 0.02 everything they pass
on, logits included, starts at that scale, and the first steps are spent growing it. The last rows
put DyT and Derf beside a normalising final norm, or an embedding of std 1.

![curves](images/{image})
"""


@dataclass(frozen=True)
class Result:
    """Held-out loss after every ten steps, the entropy to beat, and why there are none."""

    losses: list[float] = field(default_factory=list)
    entropy: float = 0.0
    error: str = ""

    @property
    def below(self) -> float:
        """Nats below the byte-unigram entropy at the end."""
        return self.entropy - self.losses[-1]

    def cells(self) -> list[str]:
        """Loss, nats below the entropy, and whether that is enough."""
        if self.error:
            return [self.error, "", ""]
        return [f"{self.losses[-1]:.3f}", f"{self.below:+.3f}", "yes" if self.below >= MARGIN else "no"]


def measure_one(settings: dict[str, Any], reason: str) -> Result:
    """Train one kind."""
    if reason:
        return Result(error=reason)
    raw = configs.read(ROOT / "configs" / "quickstart.yaml")
    for override in OVERRIDES:
        raw = configs.apply_override(raw, override)
    for key, value in settings.items():
        raw = configs.set_value(raw, key, value)
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = train(configs.parse(raw), Path(folder) / "run", quiet=True)
        except (ValueError, RuntimeError) as error:  # one bad model must not hide the others
            return Result(error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
        rows = metrics.read(Path(folder) / "run" / "metrics.jsonl", "validation")
    return Result([row["val_loss"] for row in rows], ended["unigram_entropy"])


def measure() -> dict[str, tuple[dict[str, Any], Result]]:
    """Every kind and remedy, one process a core."""
    waiting = tried(configs.read(ROOT / "configs" / "quickstart.yaml"))
    waiting |= {name: (settings, "") for name, settings in REMEDIES.items()}
    settings, reasons = zip(*waiting.values(), strict=True)
    # Forking a process that has used threads can hang.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(measure_one, settings, reasons))
    return dict(zip(waiting, zip(settings, results, strict=True), strict=True))


def picture(found: dict[str, tuple[dict[str, Any], Result]], path: Path) -> None:
    """Curves of what misses the aim and of its remedies, beside no regulator."""
    figure, axes = new_axes("What does not learn at first, and what mends it", "step", "held-out nats a byte")
    entropy = found["no regulator"][1].entropy
    for name, (_, result) in found.items():
        if name in REMEDIES or name == "no regulator" or (not result.error and result.below < MARGIN):
            steps = range(10, STEPS + 1, STEPS // len(result.losses))
            axes.plot(steps, result.losses, marker="o", markersize=3, linewidth=1.4, label=name)
    axes.axhline(entropy, color="black", linewidth=0.8, linestyle="--", label="byte-unigram entropy")
    axes.legend(frameon=False, fontsize=7)
    save_png(figure, path)


def page(found: dict[str, tuple[dict[str, Any], Result]], path: Path) -> str:
    """The dated page."""
    image = f"{path.stem}.png"
    picture(found, path.parent / "images" / image)
    rows = []
    for name, (settings, result) in found.items():
        shown = ", ".join(f"`{key.removeprefix('model.')}: {value}`" for key, value in settings.items())
        rows.append(f"| {name} | {shown} | " + " | ".join(result.cells()) + " |")
    plain = found["no regulator"][1]
    missed = [name for name, (_, result) in found.items() if not result.error and result.below < MARGIN]
    return TEXT.format(
        steps=STEPS,
        date=datetime.date.today(),
        torch=version("torch"),
        path=path,
        entropy=f"{plain.entropy:.4f}",
        margin=MARGIN,
        rows="\n".join(rows),
        missed=", ".join(missed) or "nothing",
        image=image,
    )


def main() -> None:
    """Measure, print, and write the page that was asked for."""
    found = measure()
    table = Table("kind", "held-out loss", "below the entropy", f"at least {MARGIN}", box=None)
    for name, (_, result) in found.items():
        table.add_row(name, *result.cells())
    Console(highlight=False, width=None if sys.stdout.isatty() else 130).print(table)
    if len(sys.argv) > 1:
        write_text(Path(sys.argv[1]), page(found, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
