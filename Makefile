# Every target makes its own virtual environment when it is missing or older than what it was made from.
PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
READY := $(VENV)/.ready

.PHONY: demo app test fuzz lint format bench docs package clean help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'hemnet needs Python 3.11 or newer: make PYTHON=python3.11 ...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,data,export,nncf,app]"
	$(BIN)/python -c "import pathlib; pathlib.Path('$(READY)').touch()"

# Threads that wait without spinning: many times faster when other programs use the cores too.
demo: export OMP_WAIT_POLICY = PASSIVE
demo: $(READY) ## train HEMNet on built-in scenes, about two minutes; report in runs/demo
	$(BIN)/python -m hemnet demo

app: $(READY) ## explore the demo's model in the browser; `make demo` first
	$(BIN)/python -m hemnet app --open

# In several processes, each file in one of them: a crash is a failure of the test that it names.
test: $(READY) ## the whole test suite
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 2 --durations 25

fuzz: $(READY) ## hostile inputs by the thousand, about an hour; see docs/reliability.md
	$(BIN)/python tests/fuzz.py

lint: $(READY) ## style, types, and who may import whom
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

format: $(READY) ## mend the style
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(READY) ## speed and memory, as ratios of variants interleaved in one run
	$(BIN)/python benchmarks/attention.py --json benchmarks/results/attention.json
	$(BIN)/python benchmarks/models.py --json benchmarks/results/models.json
	$(BIN)/python benchmarks/data.py --json benchmarks/results/data.json
	$(BIN)/python benchmarks/train.py --json benchmarks/results/train.json
	$(BIN)/python benchmarks/inference.py --json benchmarks/results/inference.json

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY) ## the documents as a site in site/, warnings are errors
	$(BIN)/python -m mkdocs build --strict

package: $(READY) ## sdist and wheel in dist/, checked for publishing
	$(BIN)/python -c "import shutil; shutil.rmtree('dist', ignore_errors=True)"
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean: ## remove the environment and caches
	$(PYTHON) -c "import shutil; [shutil.rmtree(p, ignore_errors=True) for p in ('.venv', '.pytest_cache', '.mypy_cache', '.ruff_cache', '.hypothesis')]"
