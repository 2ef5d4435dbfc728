# Targets that need more than Go say so. Everything else needs Go alone.
GO     ?= go
BIN    := bin/bulkhead
LINTER := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.DEFAULT_GOAL := help
.PHONY: help build up test race drill prove bench recall-8k sdk lint ci

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

bench: ## measure against the baselines of bench/
	$(GO) run ./bench

recall-8k: ## recite from 8,000 tokens through prefill, hand-off and decode
	$(GO) test ./internal/worker -run 'TestRecite$$' -recite8k -timeout 30m -v

sdk: build ## run the official OpenAI SDKs against bulkhead up (needs Node 20 and the registries)
	cd interop/sdk && npm ci --no-audit --no-fund && $(GO) run ./drive -bin ../../$(BIN)

lint: ## run the linters (needs the Go module proxy the first time)
	$(GO) run $(LINTER) run ./...

ci: ## run what continuous integration runs
	.ci/run
