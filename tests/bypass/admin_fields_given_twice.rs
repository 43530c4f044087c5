//! A JSON field that is there twice: one reader approves the first, another obeys the last.

use crate::common::operator::Operator;
use crate::common::{Backend, Gateway, limited};

#[test]
fn a_field_that_is_there_twice_is_refused_and_nothing_is_done() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, "[]")));
    let operator = Operator::of(&gateway);
    let json = [("content-type", "application/json")];
    let body = r#"{"caller":"ip:192.0.2.1","for":"1m","for":"99d"}"#;
    let reply = operator.send("POST", "/api/v1/bans", &json, body);
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.text().contains("'for' is there twice"), "{}", reply.text());
    assert_eq!(operator.get("/api/v1/bans")["bans"].as_array().unwrap().len(), 0);
}
