//! Parses the command line and hands over.

fn main() -> std::process::ExitCode {
    sluice::cli::main()
}
