//! Which metrics and labels an expression of `PromQL` names. Enough of a tokenizer for that, and no more.

use std::collections::BTreeSet;

/// What an expression names.
#[derive(Debug, Default)]
pub struct Named {
    /// Metrics, each with the labels it is selected by.
    pub metrics: Vec<(String, BTreeSet<String>)>,
    /// Labels that are kept (`by`), each with the metrics that are added up.
    pub kept: Vec<(String, Vec<String>)>,
    /// Labels that two sides are matched by: `on`, `ignoring`, `group_left`, `group_right`.
    pub matched: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// A quoted text, a number or a duration.
    Value,
    Sign(char),
}

/// Splits an expression; the test fails on what it does not know.
fn tokens(text: &str) -> Vec<Token> {
    let mut rest = text.chars().peekable();
    let mut all = Vec::new();
    while let Some(&first) = rest.peek() {
        let mut take = |fits: fn(char) -> bool| {
            let mut word = String::new();
            while let Some(next) = rest.next_if(|next| fits(*next)) {
                word.push(next);
            }
            word
        };
        match first {
            _ if first.is_whitespace() => {
                take(char::is_whitespace);
            }
            '"' => {
                rest.next();
                while let Some(next) = rest.next() {
                    match next {
                        '\\' => drop(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                all.push(Token::Value);
            }
            '0'..='9' => {
                take(|next| next.is_ascii_alphanumeric() || next == '.');
                all.push(Token::Value);
            }
            'a'..='z' | 'A'..='Z' | '_' | ':' => {
                let word = take(|next| next.is_ascii_alphanumeric() || next == '_' || next == ':');
                all.push(Token::Word(word));
            }
            _ if "(){}[],=!~<>+-*/^%@".contains(first) => {
                rest.next();
                all.push(Token::Sign(first));
            }
            _ => panic!("{first:?} in {text}"),
        }
    }
    all
}

/// Reads an expression.
pub fn names(text: &str) -> Named {
    let mut named = Named::default();
    read(&tokens(text), &mut named);
    named
}

fn read(tokens: &[Token], named: &mut Named) {
    const OPERATORS: [&str; 7] = ["and", "or", "unless", "offset", "bool", "atan2", "Inf"];
    let mut at = 0;
    while at < tokens.len() {
        let next = tokens.get(at + 1);
        match &tokens[at] {
            // A range: its length is no name.
            Token::Sign('[') => at = end_of(tokens, at, '[', ']'),
            Token::Word(word) if word == "by" || word == "without" => {
                let end = end_of(tokens, at + 1, '(', ')');
                // `sum by (…) (operand)`: what follows is added up.
                let operand = end_of(tokens, end + 1, '(', ')');
                let mut inner = Named::default();
                read(&tokens[end + 1..=operand], &mut inner);
                let metrics: Vec<String> =
                    inner.metrics.into_iter().map(|(name, _)| name).collect();
                assert!(!metrics.is_empty(), "'{word}' stands before what is added up");
                let labels = words(&tokens[at + 1..end]);
                named.kept.extend(labels.map(|label| (label, metrics.clone())));
                at = end;
            }
            Token::Word(word)
                if ["on", "ignoring", "group_left", "group_right"].contains(&word.as_str()) =>
            {
                if next == Some(&Token::Sign('(')) {
                    let end = end_of(tokens, at + 1, '(', ')');
                    named.matched.extend(words(&tokens[at + 1..end]));
                    at = end;
                }
            }
            Token::Word(word) if OPERATORS.contains(&word.as_str()) => {}
            // A function, or `sum by`.
            Token::Word(_) if next == Some(&Token::Sign('(')) => {}
            Token::Word(_) if matches!(next, Some(Token::Word(by)) if by == "by" || by == "without") =>
                {}
            Token::Word(metric) => {
                let mut labels = BTreeSet::new();
                if next == Some(&Token::Sign('{')) {
                    let end = end_of(tokens, at + 1, '{', '}');
                    labels.extend(words(&tokens[at + 1..end]));
                    at = end;
                }
                named.metrics.push((metric.clone(), labels));
            }
            Token::Value | Token::Sign(_) => {}
        }
        at += 1;
    }
}

fn words(tokens: &[Token]) -> impl Iterator<Item = String> {
    tokens.iter().filter_map(|token| match token {
        Token::Word(word) => Some(word.clone()),
        _ => None,
    })
}

/// Where what is opened at `from` is closed.
fn end_of(tokens: &[Token], from: usize, open: char, close: char) -> usize {
    assert_eq!(tokens.get(from), Some(&Token::Sign(open)), "{tokens:?}");
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token {
            Token::Sign(sign) if *sign == open => depth += 1,
            Token::Sign(sign) if *sign == close => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("'{open}' is never closed in {tokens:?}")
}

#[test]
fn metrics_and_labels_of_an_expression_are_found() {
    let named = names(
        r#"histogram_quantile(0.99, sum by (route, le) (rate(a_bucket{status=~"5..", x!="by}"}[5m])))
           > 2 * 86400 and on (job) b:c == 1 unless ignoring (y) (max(d) offset 5m)"#,
    );
    let metrics: Vec<&str> = named.metrics.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(metrics, ["a_bucket", "b:c", "d"]);
    assert_eq!(named.metrics[0].1, ["status", "x"].map(String::from).into());
    let kept: Vec<_> =
        named.kept.iter().map(|(label, of)| (label.as_str(), of.join(" "))).collect();
    assert_eq!(kept, [("route", "a_bucket".into()), ("le", "a_bucket".into())]);
    assert_eq!(named.matched, ["job", "y"].map(String::from).into());
}
