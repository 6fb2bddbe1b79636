# Works with GNU make 3.81 (macOS) and later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done

# An extra package index for torch. On Linux without a GPU the CPU build saves gigabytes:
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

# A folder of text for the benchmarks that need more than the repository holds (benchmarks/alignment.py).
DATA ?=

# How many processes share the tests; auto: one per core.
WORKERS ?= auto

BENCHMARKS := attention_cpu train_throughput decode_throughput translate_soak serve_load fairness store_checksums alignment documents detection alternatives language_models
GPU_BENCHMARKS := train_throughput language_models profile_step loss_curves decode_throughput generate_throughput

# The tests start hundreds of processes: what they import is compiled once, not in each of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup browser demo serve screenshots test pytest test-gpu lint types format bench bench-gpu attack

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12   the Python to use (3.11 or later)"
	@echo "  TORCH_INDEX=URL     extra package index for torch, e.g. https://download.pytorch.org/whl/cpu for the small CPU build"

setup: $(STAMP) ## create .venv with Regard and everything the tests need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "Regard needs Python 3.11 or later, but $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing). Choose another with: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--constraint constraints.txt --editable '.[dev,tensorboard,export,serve]'
	@touch $@

browser: setup # Chromium for the browser tests, if there is none
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
		$(BIN)/playwright install chromium

demo: setup ## translate and search with the built-in models, score one, and train a classifier of questions
	@BIN=$(BIN) scripts/demo.sh

serve: setup ## serve the built-in models on http://127.0.0.1:8000 (MODEL=runs/mine serves another)
	$(BIN)/regard serve $(if $(MODEL),-m $(MODEL))

screenshots: setup browser ## take the screenshots of the README (MODEL=runs/mine; RUN=runs/multi30k-cpu for the training view)
	$(BIN)/python -m scripts.screenshots $(if $(MODEL),-m $(MODEL)) $(if $(RUN),--run $(RUN))

test: lint browser ## run linter, type checker, tests and doctests (WORKERS=4: four processes instead of one per core)
	@$(MAKE) --no-print-directory -j 2 types pytest

pytest: setup browser # worksteal: a file's tests stay in one process, with their fixtures, until another runs out of work
	$(BIN)/pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal --doctest-modules regard tests

test-gpu: setup ## run the tests that need a CUDA device
	$(BIN)/pytest -m gpu

lint: setup ## run the linter (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## run the type checker (mypy, strict)
	$(BIN)/mypy

format: setup ## fix style and formatting (ruff)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## run the benchmarks; each prints a table and writes JSON
	@set -e; $(if $(DATA),export REGARD_BENCH_DATA=$(DATA);) for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done

bench-gpu: setup ## run the benchmarks that need a CUDA device
	@set -e; for name in $(GPU_BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done
	@echo "== loop_overhead"; $(BIN)/python -m benchmarks.loop_overhead recipes/tatoeba.toml --set model.preset=base \
		--set train.batch_tokens=25000

attack: setup ## attack this checkout on this machine (some minutes); writes the table in docs/results.md
	$(BIN)/python -m benchmarks.attack
