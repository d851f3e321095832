# Two commands do everything on a new machine (python3 >= 3.11 with pip and venv, g++, git, make):
#   make demo    make test

SHELL := /bin/bash
VENV := $(or $(STITCH_VENV),.venv)
# An interpreter that already has torch is used as it is; the file is written by scripts/setup.
TARGET = STITCH_PYTHON="$${STITCH_PYTHON:-$$(scripts/setup --target)}"

# Hundreds of processes start in a test run: none compiles our modules, or rewrites the tests' asserts, anew.
COMPILED = env -u PYTHONDONTWRITEBYTECODE

# Tests side by side. Programs are timed one at a time in a test run whatever this says.
PROCESSES ?= 2

.PHONY: demo test check lint clean

demo:
	@scripts/setup
	@$(TARGET) "$(VENV)/bin/stitch-mcp" demo

test:
	@scripts/setup --dev
	@$(COMPILED) "$(VENV)/bin/python" -m compileall -q stitch_mcp planner rag_index tools
	@$(COMPILED) $(TARGET) "$(VENV)/bin/python" -m pytest -q -n $(PROCESSES) --dist worksteal $(ARGS)

check:
	@scripts/setup --dev
	@$(TARGET) scripts/check $(ARGS)

lint:
	@scripts/setup --dev
	@$(TARGET) scripts/check --static

clean:
	rm -rf "$(VENV)" "$(VENV).lock" .stitch .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
