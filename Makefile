# Everything a person does here. `make` alone lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# What takes long and adds least is marked: make test leaves it out, and make test-long runs it; what takes minutes is for make faults.
MARKED = -m "not long and not campaign"
LONG = -m "long and not campaign"
LONG_PARTS := test-long-others test-long-folders test-long-spark test-long-airflow
# What is tested on each store but in an object store's memory: make test has its queues in this process, make test-long those of passes in folders,
# make faults those of the others.
OF_PASSES := tests/unit/passes
OF_OTHERS := tests/unit/desk tests/unit/sources tests/unit/watching
IN_FOLDERS := $(MARKED) -k "[delta or -delta]"
PARTS := test-unit test-airflow test-spark test-store test-passes test-sessions test-front test-docs test-faults
LIVE := test-live test-places test-tutorial test-buckets test-azure
SUBMITTED := $(addprefix tests/airflow/test_submit,.py _bucket.py _kubernetes.py _yarn.py)
.PHONY: help setup lint format test test-long $(PARTS) $(LONG_PARTS) $(LIVE) live compat faults demo demo-conversations demo-sources docs tables types pictures bench lock clean

VENV := .venv
PYTEST = $(BIN)/python -m pytest $(if $(SEED),--randomly-seed=$(SEED))
# Tests force thousands of files to disk: they do it in memory where there is enough of it, but for those with Spark.
IN_MEMORY := $(shell [ -w /dev/shm ] && [ $$(df -Pk /dev/shm | awk 'END {print $$4}') -gt 4000000 ] && echo TMPDIR=/dev/shm)
BIN := $(VENV)/bin
FRONT := airflow_poison/ui/frontend
PAGE := airflow_poison/ui/poison.js
# The page is built where there is Node >= 20.19; a clone without it works for everything else.
NODE := $(shell node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' 2>/dev/null && echo yes)
NPM = npm --prefix $(FRONT) --silent
export PATH := $(CURDIR)/$(BIN):$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of interpreters: without compiled modules each compiles Airflow again

help:  ## list what there is to do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(VENV)/.ready $(if $(NODE),$(PAGE))  ## make the locked environment in .venv, and the page of queues where Node is (every other target does it when needed)

$(VENV)/.ready: requirements.lock pyproject.toml tools/setup.sh
	@bash tools/setup.sh $(VENV)
	@$(if $(NODE),,echo "Node 20.19 or newer is not there: the page in the Airflow UI is not built and says so. Everything else works.")
	@touch $@

$(PAGE): $(FRONT)/node_modules/.ready $(shell find $(FRONT)/src -type f) $(FRONT)/vite.config.ts $(FRONT)/tsconfig.json
	@echo "Building the page of queues: $@"
	@$(NPM) run build

$(FRONT)/node_modules/.ready: $(FRONT)/package-lock.json
	@echo "Installing the locked packages of the page into $(FRONT)/node_modules"
	@$(NPM) ci
	@touch $@

demo: setup  ## the main job: a year of flights through a protected transformation with retry cycles, in a real Airflow; STORE=s3: over an object store, on two workers that share no folder
	@$(BIN)/python -m tools.demo $(if $(STORE),--store $(STORE))

demo-conversations: setup  ## a shop and a parts warehouse that talk in dialogs, and one poison order, in a real Airflow
	@$(BIN)/python -m tools.demo_conversations

demo-sources: setup  ## a Kafka topic, a folder and a Delta table that grows, taken and received once while who does it is killed at random; sums that agree. No Airflow
	@$(BIN)/python -m tools.demo_sources

lint: setup  ## formatting, lint rules, types, layers; of the page, too, where Node is
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(NODE),$(NPM) run types && $(NPM) run lint,@echo "NOT CHECKED: the page, for lack of Node 20.19 or newer")

format: setup  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup  ## the tests: the page, unit and store, Airflow, Spark, real processes, the documentation, a short fault campaign; two runs at a time, the output of each when it has ended; SEED=... repeats a run
	@$(MAKE) --no-print-directory --keep-going --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(PARTS)

test-long: setup  ## the tests that make test leaves out, as they take long, and passes with queues in folders
	@$(MAKE) --no-print-directory --keep-going --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(LONG_PARTS)

test-long-airflow: setup
	$(PYTEST) tests/airflow $(LONG) $(addprefix --ignore ,$(SUBMITTED))

test-long-others: setup
	$(IN_MEMORY) $(PYTEST) tests/unit tests/store tests/sessions tests/faults tests/docs $(LONG) --ignore tests/docs/test_tutorial.py

test-long-folders: setup
	$(IN_MEMORY) $(PYTEST) $(OF_PASSES) $(IN_FOLDERS)

test-long-spark: setup
	$(PYTEST) tests/spark $(LONG) --ignore tests/spark/places

test-front: setup  # the components of the page
	$(if $(NODE),$(NPM) run test,@echo "NOT RUN: the tests of the page, for lack of Node 20.19 or newer")

test-live: setup  # an Airflow with all its processes
	$(PYTEST) tests/live

test-unit: setup
	POISON_STORES=memory $(IN_MEMORY) $(PYTEST) tests/unit --ignore tests/unit/passes $(MARKED)

test-passes: setup
	POISON_STORES=memory $(IN_MEMORY) $(PYTEST) tests/unit/passes $(MARKED)

test-store: setup
	$(IN_MEMORY) $(PYTEST) tests/store $(MARKED)

test-spark: setup
	$(PYTEST) tests/spark $(MARKED) --ignore tests/spark/places

test-places: setup  # Spark clusters, a Spark Connect server; YARN, with Maven
	$(PYTEST) tests/spark/places $(SUBMITTED)

test-buckets: setup  # passes over queues in an object store; what is tested on each store but that, in memory
	POISON_STORES=bucket $(IN_MEMORY) $(PYTEST) tests/unit/passes -k bucket -m "not campaign"

test-azure: setup  # the tests of all stores, over Azurite; needs Node
	POISON_BUCKETS=azure $(IN_MEMORY) $(PYTEST) tests/store --ignore tests/store/s3 -k bucket $(MARKED)
	POISON_STORES=memory $(IN_MEMORY) $(PYTEST) $(OF_PASSES) $(OF_OTHERS) -k memory -m "not campaign"

test-sessions: setup
	$(IN_MEMORY) $(PYTEST) tests/sessions $(MARKED)

test-airflow: setup
	$(PYTEST) tests/airflow $(MARKED) $(addprefix --ignore ,$(SUBMITTED))

test-faults: setup
	$(IN_MEMORY) $(PYTEST) tests/faults $(MARKED)

test-docs: setup
	$(IN_MEMORY) $(PYTEST) tests/docs $(MARKED) --ignore tests/docs/test_tutorial.py

test-tutorial: setup  # every command of the tutorial, in a real Airflow
	$(PYTEST) tests/docs/test_tutorial.py

live: $(LIVE)  ## the tests with real servers: an Airflow with all its processes, Spark clusters, a Spark Connect server, passes over queues in an object store, and the tutorial

compat: setup  ## the installed wheel in the oldest and the newest Airflow, Python and Spark that are declared, each in an environment below .compat
	@bash tools/compat.sh

faults: setup  ## kill, stop and fail everything at least 2,000 times (below 100 minutes), run the tests that take minutes and all examples of properties, then check the whole history; the last line is JSON; STORE=s3: over an object store, at least 500 times (below 60 minutes); FAULTS="--kills 10": a try
ifeq ($(STORE),s3)
	@$(BIN)/python -m tests.faults --store s3 $(FAULTS)
else
	@POISON_FAULTS=full $(PYTEST) -q tests/faults/test_power_loss.py tests/faults/test_damage.py tests/store/test_full_disk.py tests/unit/passes/test_results.py
	@$(PYTEST) -q tests/spark --ignore tests/spark/places -m campaign
	@$(PYTEST) -q tests/unit tests/store tests/faults -m campaign
	@$(PYTEST) -q tests/airflow -m campaign
	@$(IN_MEMORY) $(PYTEST) -q $(OF_OTHERS) $(IN_FOLDERS)
	@POISON_EXAMPLES=all $(IN_MEMORY) $(PYTEST) -q tests/unit tests/store tests/sessions -m "hypothesis and not campaign"
	@$(BIN)/python -m tests.faults $(FAULTS)
endif

docs: setup  ## build the documentation's site into site, and fail at any warning
	$(BIN)/mkdocs build --strict --clean

tables: setup  ## write what docs take from the code: the tables of parameters in docs/reference/airflow.md, and docs/images/house.svg, the picture of the rooms
	@$(BIN)/python -W ignore -m tools.parameter_tables
	@$(BIN)/python -m tools.house

types: setup  ## make the types of the page's API from the server's shapes, airflow_poison/ui/shapes.py
	@$(BIN)/python -W ignore -m tools.api_types

pictures: setup  ## take the pictures of the page in docs/images anew, in a real Airflow with Chromium
	@$(BIN)/python -m tools.pictures

bench: setup  ## speed, as ratios measured in one run; the last line is JSON
	@$(BIN)/python -m benchmarks

lock: setup  ## compile requirements.lock again
	PATH=$$PATH:.tools/bin uv pip compile --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" pyproject.toml --all-extras --group dev -o requirements.lock

clean:  ## remove the demo's Airflow home, queue tables and caches (the environment stays)
	rm -rf .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
