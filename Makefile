PYTHON ?= python3

.PHONY: check fix test test-all bench

check: ## lint, format, types, tests: what CI runs
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q

fix: ## repair what can be repaired
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test:
	$(PYTHON) -m pytest -q

test-all: ## with the slow tests and the comparisons with llama.cpp
	$(PYTHON) -m pytest -q -m "not gpu"

bench: ## figures of the CPU backend beside llama.cpp; wants an idle machine
	PYTHONPATH=tests/lib $(PYTHON) tests/bench/cpu_figures.py
