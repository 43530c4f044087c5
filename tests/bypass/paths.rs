//! Spelling a path so that another route's limits apply.

use crate::common::{Backend, Gateway};

#[test]
fn parameters_of_a_segment_do_not_walk_around_an_exact_route() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: 'http://{}' }}
routes:
  - {{ path: /, upstream: app }}
  - {{ path: /login, upstream: app, limits: [{{ by: ip, rate: 3/hour }}] }}
",
        backend.address()
    ));
    let spellings = ["/login", "/login;x=1", "/login;", "/;a/login", "/login;a;b=2"];
    let statuses = spellings.map(|path| gateway.get(path).status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    let seen: Vec<String> = backend.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(seen, ["/login", "/login;x=1", "/login;"], "forwarded as they came");
    assert_eq!(gateway.get("/login%3Bx").status, 200, "an escaped semicolon begins no parameter");
    assert_eq!(gateway.get("/a/..;/login").status, 400, "nor does it hide a dot segment");
}

#[test]
fn a_prefix_is_stripped_whatever_parameters_its_segments_have() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: 'http://{}' }}
routes:
  - {{ path: /api/v1/*, upstream: app, rewrite: {{ strip_prefix: /api/v1 }} }}
",
        backend.address()
    ));
    for (path, target) in [("/api;a/v1;b/x;c=1?q", "/x;c=1?q"), ("/api/v1;b", "/")] {
        assert_eq!(gateway.get(path).status, 200, "{path}");
        assert_eq!(backend.last().target, target);
    }
}
