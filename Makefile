PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
BENCH = PYTHONPATH=tests:tests/lib:tests/cuda_host:$$PYTHONPATH $(PYTHON) -m
ROWS ?= 1
REQUESTS ?= 20000
GPU_TESTS = tests/gpu tests/cuda_kernels tests/core/backend/cuda

.PHONY: help setup quick check fix test test-all check-kernels check-cuda test-timing test-gpu gpu-bundle bench bench-kernels bench-gpu bench-profile soak

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 16

setup: ## install for development, and run `make quick` before each commit
	$(PYTHON) -m pip install -q -e '.[dev]'
	git config core.hooksPath .githooks

quick: ## what each commit must pass: lint, types, the rules of the house, tests of what changed
	$(PYTHON) tests/quick_gate.py

check: ## lint, format, types, tests: what CI runs
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q

fix: ## repair what can be repaired
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test: ## the tests that need neither minutes nor llama.cpp
	$(PYTHON) -m pytest -q

test-all: ## everything: all cases, the slow tests, long runs in full, comparisons with llama.cpp
	SPEC_TEST_ALL=1 $(PYTHON) -m pytest -q -m "not gpu and not timing"

check-kernels: ## the tests of CUDA sources in full; CI leaves the slow ones out while no source changes
	PYTHONPATH=tests/lib:tests/cuda_host:$$PYTHONPATH $(PYTHON) -m checked_sources kernels

check-cuda: ## the long tests of the CUDA backend; CI leaves them out while neither it nor models change
	PYTHONPATH=tests/lib:tests/cuda_host:$$PYTHONPATH $(PYTHON) -m checked_sources backend

test-timing: ## the tests that judge by the clock, on an idle machine
	SPEC_TEST_ALL=1 $(PYTHON) -m pytest -q -m timing -n 0

test-gpu: ## kernels and models on the CUDA device here, then kernels under compute-sanitizer if there is one
	SPEC_TEST_ALL=1 $(PYTHON) -m pytest -q -rs -m gpu -n 8 --continue-on-collection-errors $(GPU_TESTS)
	$(PYTHON) tests/cuda_host/sanitizer_run.py

gpu-bundle: ## what a borrowed machine with a GPU and no network lacks, into .gpu; then tests/gpu/first_run.sh A there
	$(BENCH) bench.gpu.bundle

bench: ## CPU and speculation figures beside llama.cpp, on an idle machine; ONLY=moe,context OUT=record.json FILES=folder
	$(BENCH) bench $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT)) $(if $(FILES),--files $(FILES))

bench-kernels: ## every CUDA kernel on this machine's GPU; ONLY=qmm MATCH='27B.* 1 rows' OUT=record.json, or DRY=1 to try it on the CPU
	$(BENCH) bench.kernels $(if $(DRY),--dry) $(if $(ONLY),--only $(ONLY)) $(if $(MATCH),--match '$(MATCH)') $(if $(OUT),--out $(OUT))

bench-gpu: ## whole steps on this machine's GPU; ONLY=27B:mtp OUT=record.json, DRY=1 on the CPU, LEDGER=1 counts bytes and launches
	$(BENCH) bench.gpu $(if $(LEDGER),--ledger) $(if $(DRY),--dry) $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

bench-profile: ## time of every kernel within a step; FILE=model.gguf ROWS=1,4
	$(BENCH) bench.profile_step $(FILE) --rows $(ROWS)

soak: ## thousands of requests of all kinds to `spec serve`, every answer checked; REQUESTS=20000
	$(BENCH) bench.soak --requests $(REQUESTS)
