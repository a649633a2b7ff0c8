import json

import pytest

from depthkit.training import metrics


@pytest.fixture
def log(tmp_path):
    log = metrics.MetricsLog(tmp_path / "metrics.jsonl")
    yield log
    log.close()


def test_rows_are_there_at_once_and_undefined_numbers_are_null(log):
    log.append("train", 1, loss=float("nan"), parts={"a": [1.0, float("inf")]})
    line = log.path.read_text()
    assert json.loads(line) == {"event": "train", "step": 1, "loss": None, "parts": {"a": [1.0, None]}}
    assert line.endswith("\n")


def test_rewinding_moves_later_rows_aside_and_keeps_the_others_to_the_byte(log):
    for step in range(1, 6):
        log.append("train", step, loss=step / 3)
    log.close()
    lines = log.path.read_text().splitlines(keepends=True)
    log.rewind(3)
    aside = log.path.with_name("metrics.discarded.jsonl")
    assert log.path.read_text() == "".join(lines[:3])
    assert aside.read_text() == "".join(lines[3:])
    log.append("train", 4, loss=0.5)
    log.close()
    log.rewind(3)
    assert [json.loads(line)["step"] for line in aside.read_text().splitlines()] == [4, 5, 4]


def test_half_a_last_line_goes_aside(log):
    log.append("train", 1, loss=1.0)
    log.close()
    with open(log.path, "a") as file:
        file.write('{"event": "train", "st')
    assert [row["step"] for row in metrics.read(log.path)] == [1]
    log.rewind(1)
    assert log.path.read_text().count("\n") == 1


def test_a_rewind_interrupted_between_its_files_doubles_nothing(log, monkeypatch):
    for step in range(1, 4):
        log.append("train", step)
    log.close()
    real = metrics.files.write_text

    def only_aside(path, text):
        if path == log.path:
            raise KeyboardInterrupt
        real(path, text)

    monkeypatch.setattr(metrics.files, "write_text", only_aside)
    with pytest.raises(KeyboardInterrupt):
        log.rewind(1)
    monkeypatch.undo()
    log.rewind(1)
    aside = log.path.with_name("metrics.discarded.jsonl").read_text()
    assert [json.loads(line)["step"] for line in aside.splitlines()] == [2, 3]
    assert [row["step"] for row in metrics.read(log.path)] == [1]
