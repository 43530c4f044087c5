//! Parses the command line and hands over.

/// Gives memory back when connections close, and costs least per idle connection of those that were
/// measured (docs/performance.md). The library leaves the choice to whoever uses it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    sluice::cli::main()
}
