# `make demo` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
POISE := $(VENV)/bin/poise

.PHONY: demo test test-processes test-oracle golden lint sass clean

demo: $(VENV)/.user
	$(POISE) demo

test: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Real processes, killed and stopped: minutes, and a machine with nothing else to do.
test-processes: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -o addopts= -q --timeout=400 tests/processes

# Live comparison of the Llama with transformers, in an environment of its own (torch: a CPU build is enough).
test-oracle: .venv-oracle/.ready
	.venv-oracle/bin/python -m pytest tests/oracle -p no:cacheprovider

# The values that `make test` compares with; only after a change of tests/llama_models.py.
golden: .venv-oracle/.ready
	PYTHONPATH=tests .venv-oracle/bin/python tests/golden/record_llama.py

.venv-oracle/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-oracle
	.venv-oracle/bin/python -m pip install --quiet torch transformers
	.venv-oracle/bin/python -m pip install --quiet -e '.[dev]'
	touch $@

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check src tests examples benchmarks validation
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/lint-imports

# The CUDA kernels' machine code, read without a GPU.
sass: $(VENV)/.dev
	$(VENV)/bin/python -m pip install --quiet -r native/requirements-sass.txt
	$(VENV)/bin/python native/check_sass.py

clean:
	rm -rf $(VENV) .venv-oracle poise-out build

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install --quiet '.[cli]'
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install --quiet -e '.[dev]'
	touch $@ $(VENV)/.user
