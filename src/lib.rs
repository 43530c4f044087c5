//! Sluice: a reverse-proxy API gateway with rate limiting built in.
//!
//! # Life of a request
//!
//! Each step is a file of [`proxy`]; [`proxy::handle`] calls them one after the other.
//!
//! 1. [`accept`](proxy::accept): a worker takes the connection, a PROXY header and TLS first; hyper
//!    (HTTP/1.1) or h2 (HTTP/2) reads the head within its time-out.
//! 2. [`address`](proxy::address): the caller's address, from the peer or from trusted proxies.
//! 3. [`destination`](proxy::destination): exactly one host, one spelling of the path → the route.
//! 4. `early_denial`: callers who are banned are turned away before anything else is done.
//! 5. [`identify`](proxy::identify): the user and the API key, verified.
//! 6. `in_flight`: whether there is room for it now: in this process, which is asked before
//!    credentials are looked at unless a plan has a say, and at its upstream.
//! 7. [`judge`](proxy::judge): all limits decide together, and all are charged or none is.
//! 8. `forward` and [`relay`](proxy::relay): the backend's request is made, an endpoint is picked,
//!    bodies stream both ways.
//! 9. [`respond`](proxy::respond): the answer's head, with what the limits say; or a refusal, which
//!    is a head and nothing else.
//!
//! # Layout
//!
//! | part | what it is |
//! | --- | --- |
//! | [`config`] | `gateway.yaml` → types, or everything that is wrong with it |
//! | [`snapshot`] | configuration → one immutable generation that requests run on |
//! | [`gateway`] | what lives as long as the process; a reload swaps the snapshot |
//! | [`server`], [`worker`] | threads: one control thread, one single-threaded runtime per core |
//! | [`handover`], [`file_lock`] | the next process takes over; files that one process writes |
//! | [`limit`], [`store`], [`overrides`] | the algorithms as pure functions, where their states live, and what is otherwise for single callers |
//! | [`layer`], [`told`] | the same limits in a tower stack of your own; what callers are told |
//! | [`upstream`] | endpoints, balancing, pooled connections |
//! | [`overload`] | places in flight, how many there should be, who goes first |
//! | [`listener`], [`proxy_protocol`], [`tls`], [`socket`] | what connections begin with, and their bytes |
//! | [`incoming`], [`upgrade`] | bodies of requests; switching to another protocol |
//! | [`metrics`], [`top`], [`access_log`], [`lines`], [`trace`], [`telemetry`], [`admin`] | what the operator sees |
//! | [`explain`] | what would happen to a request, and why |
//! | [`traffic`], [`simulate`] | access logs; what limits would have done to what they tell |
//! | [`clock`], [`deadline`] | the only places that know the time |
//! | [`path`], [`hop`], [`printable`], [`token`], [`digest`] | one spelling for paths; what is never passed on; which tokens and keys are believed |

pub mod access_log;
pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod connections;
pub mod deadline;
pub mod digest;
pub mod explain;
pub mod file_lock;
pub mod gateway;
pub mod handover;
pub mod hop;
pub mod incoming;
pub mod json_path;
pub mod layer;
pub mod limit;
pub mod lines;
pub mod listener;
pub mod metrics;
pub mod overload;
pub mod overrides;
pub mod path;
pub mod patience;
pub mod printable;
pub mod proxy;
pub mod proxy_protocol;
pub mod saved;
pub mod server;
pub mod shares;
pub mod simulate;
pub mod snapshot;
pub mod socket;
pub mod store;
mod sync;
pub mod telemetry;
pub mod tls;
pub mod token;
pub mod told;
pub mod top;
pub mod trace;
pub mod traffic;
pub mod upgrade;
pub mod upstream;
pub mod worker;
