# Working on the template. Needs Python 3.11 or newer, git and make; everything else goes into .venv.

PROJECT := {{cookiecutter.project_slug}}
BIN     := $(CURDIR)/.venv/bin
JOBS    ?= 2

# Every database and every transport is in one of these projects.
KINDS := database=sqlite database=postgres database=sqlserver transport=rabbitmq transport=azure_service_bus

# The first Python that is new enough; a name may be there without an interpreter behind it, so it is asked.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

# Caches outside the project's folder: cookiecutter takes that folder as it is.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/python
export COVERAGE_FILE := $(CURDIR)/.cache/coverage
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
# uv uses the Python that everything else uses, and downloads none.
export UV_PYTHON := $(BIN)/python
export UV_PYTHON_DOWNLOADS := never

PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
SPHINX := $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky
RENDER := $(BIN)/cookiecutter --no-input --output-dir
LINTED := benchmarks docs hooks tests "$(PROJECT)/src/mailroom" "$(PROJECT)/tests/mailroom" "$(PROJECT)/migrations"

comma   := ,
UNTRIED := */claims/sqlserver.py$(if $(findstring postgres,$(TEST_REQUIRE)),,$(comma)*/claims/postgres.py)

.PHONY: help demo test test-all test-lint test-framework test-template test-long test-chaos test-soak bench-claim bench-cleanup bench-consume bench-generate \
	bench-latency bench-peers bench-relay lint format docs docs-links docs-settings clean
.DEFAULT_GOAL := help

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

demo: .venv/render.done ## render the default project into .demo, install it, run its demo
	@rm -rf .demo && mkdir -p .demo .cache
	@$(RENDER) .demo "$(CURDIR)" 2>.cache/render.log || { cat .cache/render.log >&2; exit 1; }
	@cd .demo/shop && $(BIN)/uv sync --quiet --no-dev && .venv/bin/shop demo
	@echo
	@echo "That project is in .demo/shop. Go on there:"
	@echo "    cd .demo/shop"
	@echo "    .venv/bin/shop posture                               what is on, and why"
	@echo "    MESSAGE_BUS__ENABLE_OUTBOX=true .venv/bin/shop demo  the same with the outbox, no migration in between"
	@echo "    .venv/bin/shop --help                                what else it can do"
	@echo "To make your own:    .venv/bin/cookiecutter .            To test everything:    make test"

test: .venv/dev.done ## run every test of the template, the framework and a rendered project
	@mkdir -p .cache; failed=""; \
	for step in lint framework template; do \
		echo "== $$step"; \
		{ $(MAKE) --no-print-directory test-$$step; echo $$? > .cache/$$step.status; } 2>&1 | tee .cache/$$step.log; \
		[ "$$(cat .cache/$$step.status)" = 0 ] || failed="$$failed $$step"; \
	done; \
	echo; echo "== summary"; \
	for step in lint framework template; do \
		printf "%-10s %s\n" $$step "$$(grep -E 'passed|failed|error|right' .cache/$$step.log | tail -n 1)"; \
	done; \
	passed=$$(cat .cache/framework.log .cache/template.log | grep -oE '[0-9]+ passed.* in [0-9.]+s' | awk '{ sum += $$1 } END { print sum + 0 }'); \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed"; exit 1; fi; \
	[ "$$passed" -gt 0 ] || { echo "no test ran"; exit 1; }; \
	echo "$$passed passed, 0 failed"

test-all: ## run every test, and the framework's in every combination of database and transport
	@MAILROOM_EVERY_COMBINATION=1 $(MAKE) --no-print-directory test

test-lint: .venv/dev.done
	@$(BIN)/ruff check --quiet --config pyproject.toml $(LINTED)
	@$(BIN)/ruff format --quiet --check --config pyproject.toml $(LINTED)
	@MYPYPATH="$(PROJECT)/src" $(BIN)/mypy --config-file pyproject.toml "$(PROJECT)/src/mailroom"
	@echo "style and types are right"

# A run that collects no test fails: pytest exits with 5. The rule, the write point, the claims and the consume path
# are covered branch by branch; of claims that need a server, those whose server is required (see .ci/run).
test-framework: .venv/dev.done ## run the framework's tests where they lie
	@cd "$(PROJECT)" && PYTHONPATH="$(CURDIR)/$(PROJECT)/src:$(CURDIR)/tests" $(BIN)/python -m pytest -p servicebus.plugin \
		-c ../pyproject.toml --rootdir . --confcutdir tests/mailroom -q -n $(JOBS) --dist worksteal --timeout 60 --cov --cov-config=../pyproject.toml --cov-report= tests/mailroom
	@cd "$(PROJECT)" && $(BIN)/coverage report --rcfile=../pyproject.toml --fail-under=95 | tail -n 1
	@cd "$(PROJECT)" && $(BIN)/coverage report --rcfile=../pyproject.toml --fail-under=100 --show-missing --skip-covered \
		--include="*/posture.py,*/capture.py,*/claims/*,*/consumer.py" --omit="$(UNTRIED)"

test-template: .venv/dev.done ## run the template's tests: answers, both engines, hooks, the rendered project
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests

test-long: .venv/dev.done ## kill, crowd and restart more often and for longer than `make test` does
	@MAILROOM_KILLS=500 MAILROOM_EVENTS=20000 MAILROOM_ROWS=1000000 $(BIN)/python -m pytest -q tests/long --timeout 3600

test-chaos: .venv/dev.done ## 100,000 events over RabbitMQ while processes are killed 1,000 times; an hour or more
	@MAILROOM_CHAOS_EVENTS=100000 MAILROOM_CHAOS_KILLS=1000 $(BIN)/python -m pytest -q -s tests/long/test_chaos.py

test-soak: .venv/dev.done ## 5,000 events over a double of Azure Service Bus while processes are killed 200 times; some minutes
	@MAILROOM_SOAK_EVENTS=5000 MAILROOM_SOAK_KILLS=200 $(BIN)/python -m pytest -q -s tests/long/test_soak.py

bench-claim: .venv/dev.done ## measure what a claim costs in a full table
	@$(BIN)/python benchmarks/claim.py

bench-cleanup: .venv/dev.done ## measure what commits and claims notice of a purge
	@$(BIN)/python benchmarks/cleanup.py

bench-relay: .venv/dev.done ## measure how fast the relay is, against a client that only publishes
	@$(BIN)/python benchmarks/relay.py

bench-peers: .venv/dev.done ## measure how fast others relay on this machine; installs them
	@$(PIP) install --requirement benchmarks/peers/requirements.txt
	@$(BIN)/python benchmarks/peers/relay.py

bench-latency: .venv/dev.done ## measure how long it takes from a commit to the handler
	@$(BIN)/python benchmarks/latency.py

bench-consume: .venv/dev.done ## measure how fast messages are consumed, against a bare client
	@$(BIN)/python benchmarks/consume.py

bench-generate: .venv/dev.done ## measure how long a project takes to be made and to be updated
	@$(BIN)/python benchmarks/generate.py

lint: test-lint ## check style and types

format: .venv/dev.done ## fix style
	@$(BIN)/ruff check --quiet --fix --config pyproject.toml $(LINTED)
	@$(BIN)/ruff format --quiet --config pyproject.toml $(LINTED)

# A broken link, a reference to nothing and a page outside of the contents fail the build.
docs: .venv/dev.done ## build the documentation into .cache/docs
	@$(SPHINX) -b html docs .cache/docs
	@echo "open .cache/docs/index.html"

docs-links: .venv/dev.done ## check the links to other sites; needs the network
	@$(SPHINX) -b linkcheck docs .cache/docs-links

docs-settings: .venv/dev.done ## write the tables of docs/settings.md from the settings classes
	@$(BIN)/python docs/settings_reference.py

clean: ## remove what these commands made
	rm -rf .venv .demo .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	@echo "Making .venv; this takes a minute, once."
	@$(PYTHON) -m venv .venv
	@$(PIP) install "pip>=25.1"  # the first that knows dependency groups

.venv/render.done: .venv/bin/python pyproject.toml
	@$(PIP) install --group render
	@touch $@

# With what a rendered project needs, so that its tests can run in this environment too.
.venv/dev.done: .venv/render.done $(PROJECT)/pyproject.toml
	@$(PIP) install --group dev
	@rm -rf .cache/rendered && mkdir -p .cache/rendered
	@for kind in $(KINDS); do \
		project=shop-with-$${kind#*=}; \
		$(RENDER) .cache/rendered "$(CURDIR)" project_slug=$$project $$kind 2>.cache/render.log \
			|| { cat .cache/render.log >&2; exit 1; }; \
		$(PIP) install ".cache/rendered/$$project[dev]" && $(PIP) uninstall --yes $$project || exit 1; \
	done
	@touch $@
