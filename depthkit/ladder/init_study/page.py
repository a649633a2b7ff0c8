"""The dated page of a study."""

from __future__ import annotations

import datetime
import os
from importlib.metadata import version
from pathlib import Path

from depthkit.ladder.init_study.findings import Findings
from depthkit.ladder.init_study.metrics import METRICS
from depthkit.ladder.init_study.tables import COLUMNS, markdown


def page_text(findings: Findings, source: Path, page: Path, picture: Path) -> str:
    """Markdown: how it was measured, tables, picture, what agrees and disagrees with the papers."""
    parts = [
        "# The residual stream at initialisation\n",
        _how(findings, source, page),
        *(f"## {depth} blocks\n\n{markdown(findings, depth)}\n" for depth in reversed(findings.depths)),
        f"![variance, angle, |J - I| by block]({os.path.relpath(picture, page.parent)})\n",
        _what_it_says(findings),
        _claims(findings),
        _left_out(findings),
        _settings(findings),
    ]
    return "\n".join(part for part in parts if part)


def _how(findings: Findings, source: Path, page: Path) -> str:
    study, today = findings.study, datetime.date.today().isoformat()
    run = study.rungs()[0].config
    tokens = f"{run.train.batch_size} x {run.data.sequence_length}"
    shown = "\n".join(f"- {heading}: {METRICS[name]}." for heading, name in COLUMNS.items())
    return (
        f"Measured {today} with torch {version('torch')}, one CPU thread a model, "
        f"{findings.seconds:.0f} s of CPU time:\n\n"
        f"```\npython -m depthkit init {source} --page {page}\n```\n\n"
        f"No step is taken. Width {run.model.dim}, {tokens} tokens of the {run.data.corpus.kind} corpus, "
        f"init `{run.model.init.kind}`, embedding std {run.model.embedding_std:g} unless a method says "
        f"otherwise; {len(study.seeds)} seeds, which draw weights and batch anew. Tables are means over "
        "seeds.\n\n"
        f"{shown}\n\n|J - I| is estimated by Hutchinson's method, {study.probes} random vector-Jacobian "
        f"product{'s' if study.probes > 1 else ''} a block, over all positions of the batch together.\n"
    )


def _what_it_says(findings: Findings) -> str:
    own = [s for s in findings.sentences() if s not in {a.sentence() for a in findings.answers()}]
    return "## Growth\n\n" + "\n".join(f"- {sentence}" for sentence in own) + "\n"


def _claims(findings: Findings) -> str:
    answers = findings.answers()
    if not answers:
        return ""
    parts = ["## Held against the papers\n"]
    for word in ("disagrees", "agrees", "undecided"):
        lines = [f"- {a.sentence().removeprefix(word + ': ')}" for a in answers if a.word == word]
        parts += [f"### {word.capitalize()}\n", "\n".join(lines) + "\n"] if lines else []
    parts.append(
        "A claim about trained models is not refuted by what holds before the first step; these sentences "
        "say what initialisation alone does.\n"
    )
    return "\n".join(parts)


def _left_out(findings: Findings) -> str:
    lines = [f"- {name} failed: {reason}" for name, reason in findings.failed.items()]
    lines += [f"- {name} is not included: {reason}" for name, reason in findings.refused.items()]
    lines += [f"- {name}: {note}" for name, note in findings.notes.items()]
    return "## Not measured\n\n" + "\n".join(lines) + "\n" if lines else ""


def _settings(findings: Findings) -> str:
    lines = [
        f"| {name} | {_words(settings)} |" for name, settings in sorted(findings.study.variants().items())
    ]
    return "\n".join(["## Methods\n", "| method | settings |", "|---|---|", *lines, ""])


def _words(settings: dict[str, object]) -> str:
    shown = (f"`{key.removeprefix('model.')}: {value}`" for key, value in settings.items())
    return ", ".join(shown) or "the base model"
