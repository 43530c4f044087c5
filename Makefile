.DEFAULT_GOAL := help
.PHONY: help build test demo pictures

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

demo: ## Run a gateway in front of a built-in backend, with lines to try
	cargo run -- demo

pictures: ## Draw the pictures of docs/algorithms.md anew
	cargo run --release --example algorithm_pictures
