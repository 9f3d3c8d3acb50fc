# `make demo` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
POISE := $(VENV)/bin/poise

.PHONY: demo test lint clean

demo: $(VENV)/.user
	$(POISE) demo

test: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check src tests examples benchmarks validation
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/lint-imports

clean:
	rm -rf $(VENV) poise-out build

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install --quiet '.[cli]'
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install --quiet -e '.[dev]'
	touch $@ $(VENV)/.user
