//! An operator who asks the admin API.

use super::{Connection, Gateway, Reply};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The operator of one gateway.
pub struct Operator(pub SocketAddr);

impl Operator {
    pub fn of(gateway: &Gateway) -> Self {
        Self(gateway.admin())
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        Connection::to_operator(self.0).send(method, path, headers, body.as_bytes())
    }

    /// A page of JSON, which must be there.
    pub fn get(&self, path: &str) -> Value {
        let (status, value) = self.ask("GET", path, None);
        assert_eq!(status, 200, "{path}: {value}");
        value
    }

    /// Does something, which must succeed.
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let (status, value) = self.ask("POST", path, Some(body));
        assert_eq!(status, 200, "{path} {body}: {value}");
        value
    }

    /// The status, and the JSON.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let kind = [("content-type", "application/json")];
        let body = body.map(Value::to_string).unwrap_or_default();
        let reply = self.send(method, path, if body.is_empty() { &[] } else { &kind }, &body);
        assert_eq!(reply.header("content-type"), Some("application/json"), "{reply:?}");
        (reply.status, serde_json::from_slice(&reply.body).expect("JSON"))
    }

    pub fn ban(&self, caller: &str, lasts: &str) -> Value {
        self.post("/api/v1/bans", &json!({ "caller": caller, "for": lasts }))
    }

    pub fn grant(&self, caller: &str, rate: &str, lasts: &str) -> Value {
        self.post("/api/v1/grants", &json!({ "caller": caller, "rate": rate, "for": lasts }))
    }

    /// One limit of a caller.
    pub fn limit(&self, caller: &str, name: &str) -> Value {
        let page = self.get(&format!("/api/v1/callers?caller={caller}"));
        let limits = page["limits"].as_array().expect("limits");
        limits.iter().find(|limit| limit["limit"] == name).expect("the limit").clone()
    }
}
