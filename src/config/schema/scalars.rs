//! Scalars as a JSON Schema. Each may be an environment variable instead.

use super::{any, object, typed};
use crate::config::section::{Bare, But, Grammar};
use serde_json::{Value, json};

/// An environment variable may stand in any scalar, whatever is wanted there.
const VARIABLE: &str = r"\$\{";

/// YAML 1.2 has no binary numbers; the parser has.
const BINARY: &str = "[+-]?0b[01]+";

// `errorMessage` is what editors show in place of the pattern.

/// `true` or `false`.
pub(super) fn truth() -> Value {
    json!({
        "type": ["boolean", "string"],
        "pattern": VARIABLE,
        "errorMessage": "true or false",
    })
}

pub(super) fn like(grammar: &Grammar) -> Value {
    let Grammar { pattern, help, bare, .. } = grammar;
    let pattern = format!("{VARIABLE}|^(?:{pattern})$");
    let mut map = object(match bare {
        Bare::Never => json!({ "type": "string" }),
        Bare::Whole => json!({ "type": ["string", "integer"], "minimum": 0 }),
        Bare::Any => json!({ "type": ["string", "number", "boolean"] }),
    });
    map.insert("pattern".to_owned(), json!(pattern));
    map.insert("errorMessage".to_owned(), json!(help));
    if let Some(but) = but(grammar) {
        map.insert("if".to_owned(), json!({ "type": "string", "pattern": VARIABLE }));
        map.insert("else".to_owned(), but);
    }
    Value::Object(map)
}

/// The name of a field, in which no variable stands.
pub(super) fn name(grammar: &Grammar) -> Value {
    let pattern = format!("^(?:{})$", grammar.pattern);
    let mut map = object(json!({ "pattern": pattern, "errorMessage": grammar.help }));
    map.extend(but(grammar).map(object).unwrap_or_default());
    Value::Object(map)
}

fn but(grammar: &Grammar) -> Option<Value> {
    let pattern = match grammar.but {
        But::Nothing => return None,
        But::Like(pattern) => pattern.to_owned(),
        But::Words(words) => {
            let words: Vec<String> = words.iter().map(|word| any_case(word)).collect();
            format!("^(?:{})$", words.join("|"))
        }
    };
    Some(json!({ "not": { "type": "string", "pattern": pattern } }))
}

/// `te` → `[Tt][Ee]`: patterns of a schema know no flags.
fn any_case(word: &str) -> String {
    let both = |c: char| {
        let (upper, lower) = (c.to_ascii_uppercase(), c.to_ascii_lowercase());
        if upper == lower { c.to_string() } else { format!("[{upper}{lower}]") }
    };
    word.chars().map(both).collect()
}

pub(super) fn number(least: u64, most: u64) -> Value {
    let help = match most {
        u64::MAX => format!("a whole number, at least {least}"),
        _ => format!("a whole number from {least} to {most}"),
    };
    let mut map = object(json!({
        "type": ["integer", "string"],
        "minimum": least,
        "pattern": format!("{VARIABLE}|^{BINARY}$"),
        "errorMessage": help,
    }));
    if most < u64::MAX {
        map.insert("maximum".to_owned(), json!(most));
    }
    Value::Object(map)
}

/// `off` is a word; `false` is one, too, and a boolean.
pub(super) fn words(words: &[&str]) -> Value {
    let texts = words.iter().map(|word| json!(word));
    let typed = words.iter().map(|word| typed(word)).filter(|value| !value.is_string());
    let all: Vec<Value> = texts.chain(typed).collect();
    any(vec![json!({ "enum": all }), json!({ "type": "string", "pattern": VARIABLE })])
}
