# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOB := $(BIN)/mimi-jobs

.PHONY: demo test lint clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'moshi>=0.2.13'
	touch $@

demo: $(VENV)/.installed
	rm -rf runs/demo
	$(JOB) submit examples/demo.yaml
	$(JOB) inspect runs/demo

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest

clean:
	rm -rf $(VENV) runs

# Longer checks, not part of `make test`.
.PHONY: torture fuzz scale

torture: $(VENV)/.installed-dev
	$(BIN)/python -m tests.torture.torture --runs 20

fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz.fuzz_audio

# How driver and actors scale, with a stand-in for the encoder: some minutes each on a machine that does nothing else.
scale: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/scale.py driver
	$(BIN)/python benchmarks/scale.py actors
	$(BIN)/python benchmarks/scale.py rows
