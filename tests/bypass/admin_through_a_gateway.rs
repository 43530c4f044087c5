//! A request for the admin listener by way of a gateway, and a proxy behind it that adds to `Via`.

use crate::common::operator::Operator;
use crate::common::{Backend, Gateway, limited};

#[test]
fn a_gateway_anywhere_in_via_is_refused() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, "[]")));
    let status =
        |via: &[(&str, &str)]| Operator::of(&gateway).send("GET", "/api/v1/status", via, "").status;
    for via in [
        &[("via", "1.1 sluice, 1.1 proxy")][..],
        &[("via", "1.1 sluice-0f3a, 1.1 proxy")],
        &[("via", "1.1 sluice-0f3a (an id), 1.1 proxy")],
        &[("via", "1.1 sluice"), ("via", "1.1 proxy")],
    ] {
        assert_eq!(status(via), 403, "{via:?}");
    }
    assert_eq!(status(&[("via", "1.1 proxy")]), 200);
}
