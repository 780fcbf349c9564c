# Everything here sets itself up: Python 3.11 or newer and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
# Extras that the suite needs; bench adds the slow-to-install peers.
SUITE := dev,flower,he,tensorboard,mlflow

.PHONY: demo test test-slow check docs bench clean

demo: $(VENV)/.demo
	$(BIN)/fedveil run method=dp_fedavg_local data=digits data.partition=dirichlet data.alpha=0.5 model=logistic \
		cohort=20 privacy.epsilon=8 clip_norm=0.5 lr=4 rounds=60 steps=3 batch=128

test: $(VENV)/.suite
	$(BIN)/python -m pytest

test-slow: $(VENV)/.suite
	$(BIN)/python -m pytest -m slow --timeout 3600

check: $(VENV)/.suite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html (for the search: $(BIN)/python -m http.server --directory build/site)"

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/fedavg_loop.py
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/shuffle.py
	mkdir -p runs
	$(BIN)/fedveil bench engine --json runs/engine.json --page runs/engine.md

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("FedVeil needs Python 3.11 or newer; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# torch first and alone, so that a CPU build lying beside pip is taken as it is.
$(VENV)/.torch: $(VENV)/bin/python constraints.txt
	$(PIP) install "$$(grep '^torch==' constraints.txt)"
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.suite: $(VENV)/.torch pyproject.toml
	$(PIP) install -c constraints.txt -e '.[$(SUITE)]'
	$(PIP) install -c constraints.txt --no-deps byzfl
	touch $@ $(VENV)/.demo

$(VENV)/.docs: $(VENV)/.suite
	$(PIP) install -c constraints.txt -e '.[$(SUITE),docs]'
	touch $@

# pfl asks for an older dp-accounting than ours, which it needs only for accounting, not for training.
$(VENV)/.bench: $(VENV)/.suite
	$(PIP) install -c constraints.txt -e '.[$(SUITE),bench]'
	$(PIP) install -c constraints.txt --no-deps pfl
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
