//! Host, path and method → route, in time that does not depend on the number of routes.
//!
//! ```text
//! host:   exact ► the longest wildcard ► any       path:  exact ► the longest prefix      method: named ► any
//! ```
//!
//! Each step is a hash look-up. Prefixes are tried from the longest that any route has down to
//! nothing, one per segment, so a path of ten thousand segments costs no more than the deepest
//! route. The first combination that answers to the method wins.

use crate::config::model::{Host, PathPattern, Route};
use crate::path::{has_parameters, without_parameters};
use http::{HeaderValue, Method};
use smallvec::SmallVec;
use std::collections::HashMap;

/// All routes by what they answer to.
#[derive(Debug, Default)]
pub struct Router {
    exact_hosts: HashMap<String, Paths>,
    wildcard_hosts: HashMap<String, Paths>,
    /// Dots in the longest wildcard, that of `*.` included.
    deepest_host: usize,
    any_host: Paths,
}

#[derive(Debug, Default)]
struct Paths {
    exact: HashMap<String, Methods>,
    prefixes: HashMap<String, Methods>,
    /// Slashes in the longest prefix.
    deepest: usize,
}

#[derive(Debug, Default)]
struct Methods {
    named: Vec<(Method, usize)>,
    any: Option<usize>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A route's index.
    Route(usize),
    /// The path is known, the method is not: what may be asked instead.
    MethodNotAllowed(HeaderValue),
    /// Nothing answers here.
    Nothing,
}

/// Why a route does not answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It is for other hosts.
    Host,
    /// It is for other paths.
    Path,
    /// It is for other methods.
    Method,
}

/// Why a route would not answer to a request, were it the only one. `host` in lower case without its
/// port, `path` normalised.
pub fn why_not(route: &Route, host: &str, path: &str, method: &Method) -> Option<Mismatch> {
    let path = &*without_parameters(path);
    let is_host = |known: &Host| match known {
        Host::Exact(name) => name == host,
        Host::Below(name) => {
            host.strip_suffix(name.as_str()).is_some_and(|below| below.ends_with('.'))
        }
    };
    let is_path = match &route.path {
        PathPattern::Exact(exact) => exact == path,
        PathPattern::Prefix(prefix) => path
            .strip_prefix(prefix.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
    };
    let is_method =
        |known: &Method| known == method || *known == Method::GET && *method == Method::HEAD;
    if !route.hosts.is_empty() && !route.hosts.iter().any(is_host) {
        Some(Mismatch::Host)
    } else if !is_path {
        Some(Mismatch::Path)
    } else if !route.methods.is_empty() && !route.methods.iter().any(is_method) {
        Some(Mismatch::Method)
    } else {
        None
    }
}

impl Router {
    /// Routes are known by their place in the list.
    pub fn new(routes: &[Route]) -> Self {
        let mut router = Self::default();
        for (index, route) in routes.iter().enumerate() {
            if route.hosts.is_empty() {
                router.any_host.add(route, index);
            }
            for host in &route.hosts {
                let paths = match host {
                    Host::Exact(name) => router.exact_hosts.entry(name.clone()).or_default(),
                    Host::Below(name) => {
                        let dots = name.matches('.').count() + 1;
                        router.deepest_host = router.deepest_host.max(dots);
                        router.wildcard_hosts.entry(name.clone()).or_default()
                    }
                };
                paths.add(route, index);
            }
        }
        router
    }

    /// `host` in lower case without its port, `path` normalised. Parameters of its segments are left out.
    pub fn find(&self, host: &str, path: &str, method: &Method) -> Found {
        if has_parameters(path) {
            return self.find(host, &without_parameters(path), method);
        }
        let candidates = self.hosts(host).flat_map(|paths| paths.candidates(path));
        let mut allowed: Vec<&Method> = Vec::new();
        for methods in candidates {
            if let Some(route) = methods.find(method) {
                return Found::Route(route);
            }
            for (method, _) in &methods.named {
                if !allowed.contains(&method) {
                    allowed.push(method);
                }
            }
        }
        if allowed.is_empty() {
            Found::Nothing
        } else {
            Found::MethodNotAllowed(allow(&mut allowed))
        }
    }

    fn hosts<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Paths> {
        let exact = self.exact_hosts.get(host);
        // `a.b.c` is below `b.c` and `c`; longer names than any wildcard's are not looked at.
        let dots = host.rmatch_indices('.').take(self.deepest_host);
        let mut below: SmallVec<[&Paths; 4]> =
            dots.filter_map(|(dot, _)| self.wildcard_hosts.get(&host[dot + 1..])).collect();
        below.reverse();
        exact.into_iter().chain(below).chain([&self.any_host])
    }
}

impl Paths {
    fn add(&mut self, route: &Route, index: usize) {
        let methods = match &route.path {
            PathPattern::Exact(path) => self.exact.entry(path.clone()).or_default(),
            PathPattern::Prefix(path) => {
                self.deepest = self.deepest.max(slashes(path));
                self.prefixes.entry(path.clone()).or_default()
            }
        };
        methods.add(route, index);
    }

    /// What answers to the path, the most specific first.
    fn candidates<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Methods> {
        let exact = self.exact.get(path);
        // `/a/b` is covered by the prefixes `/a/b`, `/a` and the empty one.
        let longest = nth_slash(path, self.deepest + 1).map_or(path, |end| &path[..end]);
        let prefixes = std::iter::successors(Some(longest), |prefix| {
            prefix.rfind('/').map(|slash| &prefix[..slash])
        });
        exact.into_iter().chain(prefixes.filter_map(|prefix| self.prefixes.get(prefix)))
    }
}

impl Methods {
    fn add(&mut self, route: &Route, index: usize) {
        if route.methods.is_empty() {
            self.any = Some(index);
        }
        self.named.extend(route.methods.iter().map(|method| (method.clone(), index)));
    }

    fn find(&self, method: &Method) -> Option<usize> {
        let named = |wanted: &Method| {
            self.named.iter().find(|(known, _)| known == wanted).map(|&(_, route)| route)
        };
        // What answers to GET answers to HEAD.
        let head = || (*method == Method::HEAD).then(|| named(&Method::GET)).flatten();
        named(method).or_else(head).or(self.any)
    }
}

fn slashes(path: &str) -> usize {
    path.bytes().filter(|byte| *byte == b'/').count()
}

/// Where the n-th slash stands, counted from one.
fn nth_slash(path: &str, n: usize) -> Option<usize> {
    path.match_indices('/').nth(n - 1).map(|(at, _)| at)
}

fn allow(methods: &mut Vec<&Method>) -> HeaderValue {
    if methods.contains(&&Method::GET) && !methods.contains(&&Method::HEAD) {
        methods.push(&Method::HEAD);
    }
    methods.sort_by_key(|method| method.as_str());
    let list = methods.iter().map(|method| method.as_str()).collect::<Vec<_>>().join(", ");
    HeaderValue::from_str(&list).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::Require;

    fn route(hosts: &[&str], path: &str, methods: &[Method]) -> Route {
        let host = |host: &&str| match host.strip_prefix("*.") {
            Some(name) => Host::Below(name.to_owned()),
            None => Host::Exact((*host).to_owned()),
        };
        let path = match path.strip_suffix("/*") {
            Some(prefix) => PathPattern::Prefix(prefix.to_owned()),
            None if path == "/" => PathPattern::Prefix(String::new()),
            None => PathPattern::Exact(path.to_owned()),
        };
        Route {
            name: String::new(),
            hosts: hosts.iter().map(host).collect(),
            path,
            methods: methods.to_vec(),
            upstream: 0,
            priority: None,
            require: Require::default(),
            limits: Vec::new(),
            strip_prefix: None,
            set_headers: Vec::new(),
            remove_headers: Vec::new(),
            max_body_bytes: None,
        }
    }

    fn allowed(text: &'static str) -> Found {
        Found::MethodNotAllowed(HeaderValue::from_static(text))
    }

    #[test]
    fn the_most_specific_route_wins_in_any_order() {
        let mut routes = [
            ("anything", route(&[], "/", &[])),
            ("api", route(&[], "/api/*", &[])),
            ("search", route(&[], "/api/v1/search/*", &[])),
            ("login", route(&[], "/api/v1/login", &[Method::POST])),
            ("login any", route(&[], "/api/v1/login", &[])),
            ("wild", route(&["*.example.com"], "/", &[])),
            ("wilder", route(&["*.eu.example.com"], "/", &[])),
            ("host", route(&["api.example.com"], "/v2/*", &[])),
        ];
        let cases = [
            ("other", "/", Method::GET, "anything"),
            ("other", "/ap", Method::GET, "anything"),
            ("other", "/api", Method::GET, "api"),
            ("other", "/api/", Method::GET, "api"),
            ("other", "/apis", Method::GET, "anything"),
            ("other", "/api/v1/search", Method::GET, "search"),
            ("other", "/api/v1/search/x/y/z", Method::GET, "search"),
            ("other", "/api/v1/searches", Method::GET, "api"),
            ("other", "/api/v1/login", Method::POST, "login"),
            ("other", "/api/v1/login", Method::GET, "login any"),
            ("other", "/api/v1/login/", Method::POST, "api"),
            ("x.example.com", "/api", Method::GET, "wild"),
            ("x.eu.example.com", "/api", Method::GET, "wilder"),
            ("example.com", "/api", Method::GET, "api"),
            ("api.example.com", "/v2/x", Method::GET, "host"),
            ("api.example.com", "/api", Method::GET, "wild"),
        ];
        for _ in 0..routes.len() {
            routes.rotate_left(1);
            let list: Vec<_> = routes.iter().map(|(_, route)| route.clone()).collect();
            let router = Router::new(&list);
            for (host, path, method, expected) in &cases {
                let Found::Route(found) = router.find(host, path, method) else {
                    panic!("{host}{path} found nothing")
                };
                assert_eq!(&routes[found].0, expected, "{method} {host}{path}");
            }
        }
    }

    #[test]
    fn who_is_found_answers_and_who_is_not_says_why() {
        let hosts: [&[&str]; 4] = [&[], &["a.b"], &["*.b"], &["*.a.b", "b"]];
        let paths = ["/", "/x", "/x/*", "/x/y/*", "/x/y"];
        let methods: [&[Method]; 3] = [&[], &[Method::GET], &[Method::POST]];
        let routes: Vec<Route> =
            (0..60).map(|n| route(hosts[n % 4], paths[n / 4 % 5], methods[n / 20])).collect();
        for some in routes.chunks(7).chain(routes.chunks(13)) {
            let router = Router::new(some);
            for host in ["b", "a.b", "c.a.b", "xb", "other"] {
                for path in ["/", "/x", "/x/", "/x/y", "/x/y/z", "/xy"] {
                    for method in [Method::GET, Method::HEAD, Method::POST, Method::PUT] {
                        let why = |route: &Route| why_not(route, host, path, &method);
                        match router.find(host, path, &method) {
                            Found::Route(found) => assert_eq!(why(&some[found]), None),
                            Found::MethodNotAllowed(_) => {
                                assert!(some.iter().all(|route| why(route).is_some()));
                                let others = |route| why(route) == Some(Mismatch::Method);
                                assert!(some.iter().any(others));
                            }
                            Found::Nothing => assert!(some.iter().all(|route| {
                                matches!(why(route), Some(Mismatch::Host | Mismatch::Path))
                            })),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_known_path_with_another_method_says_what_is_allowed() {
        let router = Router::new(&[
            route(&[], "/login", &[Method::POST]),
            route(&[], "/login/*", &[Method::GET, Method::DELETE]),
        ]);
        assert_eq!(router.find("h", "/login", &Method::PUT), allowed("DELETE, GET, HEAD, POST"));
        assert_eq!(router.find("h", "/login/x", &Method::POST), allowed("DELETE, GET, HEAD"));
        assert_eq!(router.find("h", "/login", &Method::HEAD), Found::Route(1));
        assert_eq!(router.find("h", "/logout", &Method::GET), Found::Nothing);
    }

    #[test]
    fn a_path_of_many_segments_costs_no_more_than_the_deepest_route() {
        let router = Router::new(&[route(&[], "/a/b/*", &[])]);
        let path = format!("/a/b{}", "/x".repeat(30_000));
        assert_eq!(router.find("h", &path, &Method::GET), Found::Route(0));
        assert_eq!(router.any_host.candidates(&path).count(), 1);
        let tried = nth_slash(&path, router.any_host.deepest + 1);
        assert_eq!(tried, Some(4), "looking begins at /a/b");
    }
}
