//! What others say, as far as a terminal may show it.

/// What others have named, as far as it prints: nobody draws on the operator's terminal, or turns its
/// text around.
pub fn printable(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if hidden(c) { '?' } else { c }).collect()
}
