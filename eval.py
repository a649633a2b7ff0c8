"""Measure what every layer of a trained model contributes.

    python eval.py TARGET [key=value ...]         TARGET: a run folder or one of its checkpoints; a Hugging
                                                  Face model as a folder or a name; smollm2
    python eval.py TARGET tasks=[agreement]       accuracies of lm-eval's tasks; with skip=[3,5] also without
                                                  these visits
    python eval.py TARGET drop=[3,4] [out=DIR]    a Hugging Face checkpoint without layers 3 and 4
    python eval.py compare A B ... [out=DIR]      A, B: folders with a report, or report.json files
    torchrun --nproc-per-node=N eval.py TARGET [key=value ...]          the same report, the windows shared

Exit codes: 0 done; 2 something to mend, said in one message.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from depthkit import cli, config
from depthkit.training.parallel.world import told_once, world
from depthkit.utilization.options import PRETRAINED_ONLY, EvalOptions

if TYPE_CHECKING:  # torch and datasets are imported when they are needed, so that --help is quick
    from depthkit.training.checkpoint import Loaded
    from depthkit.training.parallel.ranks import Ranks
    from depthkit.utilization import Report, Sequences


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, then measure or compare."""
    words = parser().parse_args(argv)
    return cli.run(lambda: execute(words.target, words.settings))


def execute(target: str, words: Sequence[str]) -> None:
    """Compare, or evaluate with all processes that torchrun has started."""
    with told_once():
        if target == "compare":
            return compare_reports(words)
        options = with_null(read_options(words))
        refuse_to_share({"tasks": options.asked_tasks, "drop": options.dropped})

        from depthkit.interop.hf import is_pretrained
        from depthkit.training import device
        from depthkit.training.parallel.launch import joined

        evaluate = examine_pretrained if is_pretrained(target) else examine_run
        chosen = device.choose(options.device)
    with joined(chosen) as ranks:
        evaluate(target, options, ranks)


def refuse_to_share(asked: Mapping[str, Any]) -> None:
    """Only measurements are shared among processes.

    Raises:
        ValueError: something else is asked for, under torchrun.
    """
    several = world().size
    for name in (name for name, wanted in asked.items() if wanted and several > 1):
        raise ValueError(f"{name}: one process does this, and torchrun started {several}: use python eval.py")


def parser() -> argparse.ArgumentParser:
    """The command line; the settings describe themselves."""
    fields = EvalOptions.model_fields.items()
    lines = [f"  {name}={shown(field)}".ljust(30) + (field.description or "") for name, field in fields]
    parse = argparse.ArgumentParser(
        prog="eval.py",
        description=(__doc__ or "").strip(),
        epilog="settings and their defaults:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument(
        "target", metavar="TARGET", help="a run, a checkpoint, a Hugging Face model, or: compare"
    )
    parse.add_argument("settings", metavar="key=value", nargs="*", help="settings; after compare: reports")
    return parse


def shown(field: Any) -> Any:
    """A setting's default as it would be written."""
    default = field.get_default()
    return default.model_dump(exclude_none=True) if isinstance(default, BaseModel) else default


def read_options(words: Sequence[str]) -> EvalOptions:
    """Validated settings from `key=value` words."""
    raw: dict[str, Any] = {}
    for word in words:
        raw = config.apply_override(raw, word)
    return config.validate(EvalOptions, raw, "eval.py")


def examine_run(target: str, options: EvalOptions, ranks: Ranks) -> None:
    """Evaluate a run's last checkpoint, or all of them, and say where the reports are."""
    if options.dropped:
        raise ValueError(
            f"drop: prunes Hugging Face checkpoints; first: python -m depthkit export {target} DIR"
        )
    warn_without_effect(options)
    from rich.console import Console

    from depthkit.interop.lm_eval import models
    from depthkit.interop.lm_eval.answering import answer
    from depthkit.training import checkpoint
    from depthkit.training.examine import examine, held_out
    from depthkit.utilization.report import terminal
    from depthkit.utilization.report.tasks import print_tasks

    console, reports = Console(quiet=not ranks.is_first), {}
    sequences: Sequences | None = None
    for path in checkpoints(Path(target), options.checkpoints):
        loaded = checkpoint.load(path)
        options = options.within(loaded.config.data.sequence_length, loaded.config.data.corpus)
        sequences = sequences or ranks.first_then_all(partial(held_out, loaded, options))
        tasks = answer(options, models.of_run(loaded))
        with terminal.progress_bar(console, f"step {loaded.step}") as progress:
            reports[loaded.step] = report = examine(loaded, sequences, options, progress, tasks.items, ranks)
        tasks.join(report)
        folder = report_folder(Path(target), loaded, options)
        ranks.first(partial(report.save, folder, html=options.html, plots=options.plots))
        print_tasks(console, tasks.content)
    terminal.print_report(console, report, table=not options.only_tasks)
    if options.checkpoints == "all":
        root = Path(options.out or beside(Path(target), options))
        folder = ranks.first(lambda: show_training(root, reports, options, console))
    show_folder(console, folder, options)


def examine_pretrained(target: str, options: EvalOptions, ranks: Ranks) -> None:
    """Evaluate a Hugging Face model and say where the report is, or prune it."""
    if options.checkpoints == "all":
        raise ValueError(f"checkpoints=all: {target} is one model, not a run")
    if options.dropped:
        return prune(target, options)
    from rich.console import Console

    from depthkit.interop import hf
    from depthkit.interop.examine import examine
    from depthkit.interop.lm_eval import models
    from depthkit.interop.lm_eval.answering import answer
    from depthkit.interop.text import windows
    from depthkit.utilization.report import terminal
    from depthkit.utilization.report.tasks import print_tasks

    console = Console(quiet=not ranks.is_first)
    pretrained = hf.load(target, options)
    sequences = ranks.first_then_all(partial(windows, pretrained, options))
    tasks = answer(options, models.of_pretrained(pretrained))
    with terminal.progress_bar(console, pretrained.name) as progress:
        report = examine(pretrained, sequences, options, progress, tasks.items, ranks)
    tasks.join(report)
    folder = Path(options.out or beside(Path("reports") / pretrained.name, options))
    ranks.first(partial(report.save, folder, html=options.html, plots=options.plots))
    print_tasks(console, tasks.content)
    terminal.print_report(console, report, table=not options.only_tasks)
    show_folder(console, folder, options)


def prune(target: str, options: EvalOptions) -> None:
    """Write a checkpoint without some layers, and say what was measured of it."""
    from depthkit.interop.prune import prune

    folder, pruned = prune(target, options)
    print(f"  {pruned.sentence}\n  {folder}")


def with_null(options: EvalOptions) -> EvalOptions:
    """`null=auto` decided: a random initialisation, except of every checkpoint, on disk, or beside tasks."""
    if options.null != "auto":
        return options
    none = options.only_tasks or options.checkpoints == "all" or options.subject.stream == "disk"
    null = [] if none else ["random_init"]
    return EvalOptions.model_validate(options.model_dump(exclude_unset=True) | {"null": null})


def warn_without_effect(options: EvalOptions) -> None:
    """Name the settings that were given although only Hugging Face models have a use for them.

    Raises:
        ValueError: layers are to stay on disk, which a run of depthkit cannot do.
    """
    if options.subject.stream == "disk":
        raise ValueError(
            "subject.stream=disk: a run of depthkit is loaded whole; it is for Hugging Face models"
        )
    for name in sorted(options.model_fields_set & PRETRAINED_ONLY):
        warnings.warn(f"{name} has no effect on a run of depthkit", stacklevel=2)


def show_folder(console: Any, folder: Path, options: EvalOptions) -> None:
    """Say where the report is."""
    console.print(f"  {folder / ('report.html' if options.html else 'report.json')}", highlight=False)


def show_training(folder: Path, reports: dict[int, Report], options: EvalOptions, console: Any) -> Path:
    """The last report once more at the top, and what changed over training."""
    from depthkit.utilization import Trajectory
    from depthkit.utilization.report.terminal import print_trajectory

    reports[max(reports)].save(folder, html=options.html, plots=options.plots)
    trajectory = Trajectory(reports)
    trajectory.save(folder, plots=options.plots)
    print_trajectory(console, trajectory)
    return folder


def checkpoints(target: Path, which: str) -> list[Path]:
    """The checkpoint folders that were asked for, in the order of training."""
    from depthkit.training import checkpoint

    if not target.is_dir():
        raise ValueError(f"{target}: no such run or checkpoint folder")
    last = checkpoint.find(target)
    if which == "last":
        return [last]
    if last == target:
        raise ValueError(f"checkpoints=all: {target} is one checkpoint; give the run folder")
    root = checkpoint.root_of(target)
    return [checkpoint.find(target, step) for step in checkpoint.steps(root)]


def report_folder(target: Path, loaded: Loaded, options: EvalOptions) -> Path:
    """The run folder; for one checkpoint of many, a folder of its own beside the others."""
    if target != loaded.path and options.checkpoints == "last":
        return Path(options.out or beside(target, options))
    if options.out and options.checkpoints == "last":
        return Path(options.out)
    root = options.out or beside(loaded.path.parent.parent, options)
    return Path(root) / "reports" / loaded.path.name


def beside(folder: Path, options: EvalOptions) -> Path:
    """Tasks without measurements have a folder of their own, so that a report of layers stays where it is."""
    return folder / "tasks" if options.only_tasks else folder


def compare_reports(words: Sequence[str]) -> None:
    """Overlay saved reports and say where the page is."""
    refuse_to_share({"compare": True})
    from rich.console import Console

    from depthkit.utilization import Report, compare
    from depthkit.utilization.report.terminal import print_comparison

    options = read_options([word for word in words if "=" in word])
    comparison = compare([Report.load(word) for word in words if "=" not in word])
    folder = Path(options.out or "comparison")
    comparison.save(folder, html=options.html, plots=options.plots)
    console = Console()
    print_comparison(console, comparison)
    console.print(f"  {folder / ('compare.html' if options.html else 'compare.json')}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
