.DEFAULT_GOAL := help
.PHONY: help build test shuttle load bench demo pictures

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the release binary, target/release/sluice
	cargo build --release --locked

test: ## Formatting, lints, documentation and all tests
	scripts/test-deps.sh
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items
	cargo test

shuttle: ## The memory store's locks under orders of events that chance would not find
	RUSTFLAGS="--cfg shuttle" cargo test --target-dir target/shuttle --lib shuttled

load: ## Tests that take minutes: bursts, storms, a minute of stress
	cargo test --release -- --ignored --nocapture --test-threads 1

bench: ## Micro-benchmarks, beside governor where there is something to compare
	cargo bench

demo: ## Run a gateway in front of a built-in backend, with lines to try
	cargo run -- demo

pictures: ## Draw the pictures of docs/algorithms.md anew
	cargo run --release --example algorithm_pictures
