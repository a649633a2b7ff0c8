"""What the documents show must work: commands parse, configs exist, code blocks run."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from depthkit import config as c
from depthkit.model.registries import REGULATORS
from tests.models import make_ids, make_model

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
LOOPS, PAPERS, DATA = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("loops_and_moe", "papers", "data")
)
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text, language=""):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [content for name, content in fenced if name == language]


def commands(script, *texts):
    lines = (line for text in texts or [README] for block in blocks(text) for line in block.splitlines())
    return [line for line in lines if line.startswith(f"python {script} ")]


@pytest.mark.parametrize("command", commands("train.py", README, LOOPS, PAPERS, DATA))
def test_train_commands_name_a_config_that_validates(command):
    sys.path.insert(0, str(ROOT))
    import train

    arguments = train.parser().parse_intermixed_args(shlex.split(command)[2:])
    c.load(ROOT / arguments.config, arguments.overrides)


def test_eval_commands_use_known_settings():
    import eval as script

    for command in commands("eval.py"):
        words = [word for word in shlex.split(command)[2:] if "=" in word]
        script.read_options(words)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for path in DOCS:
        for target in re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)$", path.read_text(), re.M):
            assert re.search(rf"^{target[0] or target[1]}:", makefile, re.M), target


def test_links_lead_somewhere():
    for path in DOCS:
        for link in re.findall(r"\]\(([^)#]+)", path.read_text()):
            if "://" not in link:
                assert (path.parent / link).exists(), f"{path.name}: {link}"


@pytest.mark.filterwarnings("ignore")
def test_readme_yaml_and_python_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    (yaml,) = blocks(README, "yaml")
    (ROOT / "configs" / "quickstart.yaml").exists()
    raw = c.merge(c.read(ROOT / "configs" / "base" / "small.yaml"), __import__("yaml").safe_load(yaml))
    raw.pop("extends")
    assert c.parse(raw).model.plan().depth == 2 + 24 + 2
    for text in (README, LOOPS):
        (code,) = blocks(text, "python")
        exec(compile(code, "a document", "exec"), {"__name__": "__main__"})


def test_the_regulator_of_the_guide_works():
    (code,) = blocks((ROOT / "docs" / "write_a_regulator.md").read_text(), "python")
    try:
        exec(compile(code, "write_a_regulator.md", "exec"), {"__name__": "guide"})
        ids = make_ids()
        learned = make_model(depth=3, regulators=["learned_damping"])
        lns = make_model(depth=3, regulators=["lns"])
        assert learned(ids, ids).loss.item() == pytest.approx(lns(ids, ids).loss.item(), rel=1e-5)
        learned(ids, ids).loss.backward()
        assert (learned.schedules.regulators[0].exponent.grad != 0).all()
        raw = c.read(ROOT / "configs" / "quickstart.yaml")
        c.parse(c.apply_override(raw, "model.regulators=[{kind: learned_damping, start: 0.25}]"))
    finally:
        REGULATORS.remove("learned_damping")
