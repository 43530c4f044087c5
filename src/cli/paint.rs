//! Colours for terminals, and none for anything else.

use std::io::IsTerminal;

pub(super) use crate::printable::printable;

/// How to paint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint(bool);

impl Paint {
    /// In colours if stdout is a terminal, unless `NO_COLOR` is set.
    pub(super) fn for_stdout() -> Self {
        Self(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    }

    /// In no colours.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self(false)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// Blue, which everybody can tell from orange.
    pub(super) fn good(self, text: &str) -> String {
        self.with("34", text)
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.with("1;33", text)
    }
}
