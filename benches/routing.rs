//! Finding a route must not get slower with their number: 10, 1,000 and 100,000 of them.
//! `cargo bench --bench routing`

#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use http::Method;
use sluice::config;
use sluice::snapshot::Router;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;

fn router(routes: usize) -> Router {
    let mut yaml = String::from("listen: 127.0.0.1:0\nupstreams: { app: http://a }\nroutes:\n");
    for n in 0..routes {
        let _ = writeln!(yaml, "  - {{ path: /api/v1/service-{n}/*, upstream: app }}");
    }
    let loaded = config::parse("bench", yaml, Path::new("."), &|_| None);
    Router::new(&loaded.expect("the file is valid").config.routes)
}

fn find(c: &mut Criterion) {
    let mut group = c.benchmark_group("find");
    for routes in [10, 1_000, 100_000] {
        let router = router(routes);
        let paths: Vec<String> =
            (0..1024).map(|n| format!("/api/v1/service-{}/items/{n}", n * 97 % routes)).collect();
        let mut next = 0;
        group.bench_function(BenchmarkId::from_parameter(routes), |b| {
            b.iter(|| {
                next = (next + 1) % paths.len();
                black_box(router.find("example.com", black_box(&paths[next]), &Method::GET))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, find);
criterion_main!(benches);
