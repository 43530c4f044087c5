//! What others say, as far as a terminal may show it.

/// What others have named, as far as it prints: nobody draws on the operator's terminal, or turns its
/// text around.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { '?' } else { c }).collect()
}

/// Whether a character is not shown itself but changes how the text around it is: control and format
/// characters, and separators of lines. (Unicode's categories Cc, Cf, Zl and Zp.)
pub fn is_hidden(c: char) -> bool {
    c.is_control() || (!c.is_ascii() && is_format(c))
}

fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
        | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// The text with every such character escaped as Rust writes it: `\u{1b}`. Tabs stay.
pub fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    let hidden = |c: char| c != '\t' && is_hidden(c);
    if !text.contains(hidden) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            c if hidden(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out.into()
}
