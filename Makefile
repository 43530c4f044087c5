.DEFAULT_GOAL := help
.PHONY: help build debug release test clients browser torture nightly soak restarts slow fuzz shuttle load overload bench bench-peers guard micro demo pictures

# What a change is checked by is in .ci/run: make test, clients, browser, torture, shuttle. What a
# release is checked by takes longer, and is in make nightly.

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the release binary, target/release/sluice
	cargo build --release --locked

# With an example, dependencies have the features that tests need, so that this is the build of
# `make test` and not a second one.
debug: ## Build the binary that the tests use, target/debug/sluice
	cargo build --bin sluice --example tower_service

release: ## Write dist/sluice, the binary to deploy: LTO and profile-guided optimisation
	scripts/release.sh

test: ## Formatting, lints, documentation and all tests
	scripts/test-deps.sh
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items
	cargo test

clients: debug ## The gateway as curl, h2load, grpcio, websockets, openssl and testssl.sh see it; ARGS=grpc for a part
	scripts/clients/run.sh target/debug/sluice $(ARGS)

browser: debug ## The dashboard and the reports of simulate in headless Chromium; ARGS=ban for a part
	scripts/browser/run.sh target/debug/sluice $(ARGS)

torture: debug ## 900 requests, answers and floods of frames that two parsers could read differently; ARGS=chunks for a part
	scripts/torture/run.sh target/debug/sluice $(ARGS)

nightly: ## What a release is checked by: hours, of which fuzzing is one and a half; goes on after a failure
	$(MAKE) --keep-going --no-print-directory release load guard soak restarts slow fuzz

soak: build ## Ten minutes of mixed traffic: no errors, no growth, no leaks
	scripts/soak/run.sh target/release/sluice $(ARGS)

restarts: build ## A thousand reloads, and restarts by systemd's sockets and SIGUSR2, under load
	scripts/soak/reloads.sh target/release/sluice reloads activation2 handover

slow: build ## Slow clients by the hundreds (slowhttptest), while others are served
	scripts/soak/slow.sh target/release/sluice $(ARGS)

fuzz: ## Each fuzz target for ten minutes (SECONDS_EACH=600); ARGS=path for some
	scripts/fuzz.sh $(ARGS)

shuttle: ## Locks of the memory store and of gates under orders of events that chance would not find
	RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/scripts/shared/shuttle-rustc.sh" cargo test --features shuttle --lib shuttled

load: ## Tests that take minutes: bursts, storms, a minute of stress
	cargo test --release -- --ignored --nocapture --test-threads 1

bench: dist/sluice build ## The gateway beside its peers: about half an hour; ARGS="--rounds 2 --only rejected" for less
	cargo bench --bench compare -- $(ARGS)

dist/sluice: $(shell find src -type f) Cargo.toml Cargo.lock
	scripts/release.sh

bench-peers: ## Install nginx, HAProxy, Envoy, Caddy, wrk, h2load and valgrind
	scripts/bench-peers.sh

overload: build ## A backend of known capacity at up to ten times of it, with and without; draws docs/overload: seven minutes
	cargo bench --bench overload -- target/release/sluice

guard: build ## Instructions per request, compared with what is recorded; ARGS=--update records
	cargo bench --bench compare -- guard $(ARGS)

micro: ## Micro-benchmarks, beside governor where there is something to compare
	cargo bench --bench limits --bench memory --bench routing

demo: ## Run a gateway in front of a built-in backend, with lines to try
	cargo run -- demo

pictures: build ## Draw the pictures of docs/algorithms.md anew, and take those of the dashboard and a report: three minutes
	cargo run --release --example algorithm_pictures
	scripts/browser/picture.sh target/release/sluice docs/operations/dashboard.png
	scripts/browser/report.sh target/release/sluice docs/calibrating/report-light.png
