# Every target does only what is missing, and says what it does.
#   PYTHON=python3.12 make setup      another interpreter (3.11 or newer) for .venv
#   PYTEST_ARGS="-k paths" make test  narrower tests

.DEFAULT_GOAL := help
.PHONY: help venv setup demo check test golden docs fuzz soak api lock foreign engines
PYTEST_ARGS ?=
FRAMES ?= 100000
SEED ?= 1
MINUTES ?= 60
EXAMPLES ?= 100
SUITES ?=
ENGINES ?=
WRITE ?=
# Tests start hundreds of processes: without compiled modules each would compile all that it imports, which takes as long again.
unexport PYTHONDONTWRITEBYTECODE

help: ## what there is
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

venv:
	@.ci/venv

setup: venv ## the virtual environment, a Docker Engine, the images and the guest's runtime
	@.venv/bin/gamebox setup

demo: setup ## an agent finds and fixes a real bug in a real library, in a sandbox
	@.venv/bin/gamebox demo

check: venv ## ruff, mypy and the walls between packages
	@echo "checking style (ruff)"
	@.venv/bin/ruff check --quiet .
	@echo "checking types (mypy --strict)"
	@.venv/bin/mypy --no-error-summary
	@echo "checking the walls (import-linter)"
	@.venv/bin/lint-imports --no-logo 2>/dev/null || .venv/bin/lint-imports

test: venv ## set-up, the checks and every test
	@.ci/compile & $(MAKE) --no-print-directory -j2 setup check; failed=$$?; wait; exit $$failed
	@echo "running the tests that need the machine for themselves, then the others (4 at a time)"
	@.ci/tests $(PYTEST_ARGS)

golden: venv ## write the prompts anew that tests/golden compares with; look at the difference before you commit it
	@.venv/bin/python -m tests.golden

fuzz: venv ## both ends of the pipe against FRAMES=100000 mutated frames each (SEED=1)
	@.venv/bin/python -m tests.fuzz run --frames $(FRAMES) --seed $(SEED)

soak: setup ## sandboxes under commands, files, transfers and faults for MINUTES=60, every answer checked (SEED=1)
	@.venv/bin/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

docs: venv ## write docs/api and the generated parts of other pages anew; look at the difference before you commit it
	@.venv/bin/python -m tests.pages

api: setup ## schemathesis over the whole API of a service, EXAMPLES=100 requests to each route (SEED=1)
	@.venv/bin/python -m tests.openapi --examples $(EXAMPLES) --seed $(SEED)

# The extras of the gate; the others bring whole frameworks, which make foreign tries.
EXTRAS = mcp server remote otel

lock: venv ## renew requirements.lock from pyproject.toml
	.venv/bin/uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	    --custom-compile-command "make lock" --overrides .ci/overrides --group dev $(EXTRAS:%=--extra %) pyproject.toml --output-file requirements.lock --quiet

foreign: setup ## suites of others against Gamebox; FOREIGN_DIR has their checkouts (SUITES="swerex mini" for some of them)
	@.venv/bin/python -m tests.foreign $(SUITES)

engines: setup ## Gamebox on other engines, each in a root file system of Debian's packages (ENGINES="docker-26 podman-5" for some)
	@.venv/bin/python -m tests.engines $(WRITE) $(ENGINES)
