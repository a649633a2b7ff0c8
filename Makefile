# Every target makes .venv itself, and installs again only when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all check bench init-study depth-sweep docs clean install

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python train.py configs/ladders/demo.yaml --run-dir runs/demo

test: $(STAMP)
	$(BIN)/python -m pytest -W error -n 2

test-all: $(STAMP)
	$(BIN)/python -m pytest -W error -n 2 -m 'not gpu and not bench'

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/telemetry.py

init-study: $(STAMP)
	$(BIN)/python -m depthkit init configs/studies/init_variance.yaml

depth-sweep: $(STAMP)
	$(BIN)/python benchmarks/depth_sweep.py docs/results/$$(date +%F)_depth_sweep.md

docs: $(STAMP)
	$(BIN)/python -m depthkit docs docs/regulators.md

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
