//! One address of a backend, and how it is doing.
//!
//! Two judge it, and neither knows of the other: checks ask it whether it is well
//! ([`health`](super::health)), and requests that fail eject it for a while. Whoever is back from
//! either gets its share little by little. What is known of an endpoint lives as long as the endpoint
//! does, over reloads; requests look at one byte of it as long as all is well.

use crate::clock::{Micros, micros};
use crate::config::model;
use crate::tls::client::Tls;
use rustls::pki_types::ServerName;
use smallvec::SmallVec;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The least share that an endpoint which is back begins with.
const FIRST_SHARE: f64 = 0.1;

/// Addresses that are one endpoint: one, or two of which the second stands in for the first.
pub type Addresses = SmallVec<[SocketAddr; 2]>;

/// One address of a backend.
#[derive(Debug)]
pub struct Endpoint {
    /// Never the same for two endpoints of this process.
    pub id: u64,
    /// Host name or address, as configured.
    pub host: String,
    /// Port.
    pub port: u16,
    /// What logs and metrics call it: host and port, or a name and one of its addresses.
    pub name: String,
    /// Where it is.
    pub addresses: Addresses,
    /// The name that it must prove to have, where it is spoken to through TLS.
    pub server_name: Option<ServerName<'static>>,
    in_flight: AtomicU32,
    standing: Standing,
}

/// How it is doing.
#[derive(Debug, Default)]
struct Standing {
    /// Anything below is not as it should be, or was not until a moment ago.
    troubled: AtomicBool,
    /// It has been checked at least once.
    checked: AtomicBool,
    /// Its checks failed.
    unhealthy: AtomicBool,
    /// Requests failed: it is left alone until then.
    ejected_until: AtomicU64,
    /// When its checks passed again.
    well_since: AtomicU64,
    /// Failures in a row, and when the last one was.
    failures: AtomicU32,
    failed_at: AtomicU64,
    /// Whose request was the first of them, and from which address, and whether another caller's has
    /// failed since: one caller alone takes no endpoint away from the others.
    failed_first: AtomicU64,
    failed_from: AtomicU64,
    failed_others: AtomicBool,
}

/// Whose request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The endpoint could not be reached, whoever asks.
    Any,
    /// A caller: a number for who it is, and one for its address. Another caller differs in both.
    Caller {
        /// By API key, user or address.
        identity: u64,
        /// By address alone.
        address: u64,
    },
}

/// Whether an endpoint can be asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Condition {
    /// For this share of what it would get in full health.
    InService(f64),
    /// Only if there is nobody else.
    Ejected,
    /// Not at all.
    Unhealthy,
}

impl Endpoint {
    /// An endpoint that nothing is known of yet.
    pub fn new(config: &model::Endpoint, addresses: Addresses, tls: Option<&Tls>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let tls = tls.filter(|_| config.https);
        let server_name = tls.and_then(|tls| {
            let own = || ServerName::try_from(bare(&config.host).to_owned()).ok();
            tls.server_name.clone().or_else(own)
        });
        let name = match addresses.first() {
            Some(address) if literal(&config.host).is_none() => {
                format!("{} ({address})", config.host)
            }
            _ => format!("{}:{}", config.host, config.port),
        };
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            host: config.host.clone(),
            port: config.port,
            name,
            addresses,
            server_name,
            in_flight: AtomicU32::new(0),
            standing: Standing::default(),
        }
    }

    /// Whether it is the one that is configured like this, at these addresses.
    pub fn is(&self, config: &model::Endpoint, addresses: &Addresses) -> bool {
        (&self.host, self.port, self.server_name.is_some())
            == (&config.host, config.port, config.https)
            && self.addresses == *addresses
    }

    /// Counts a request under way for as long as the guard lives.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight { endpoint: Arc::clone(self), wrong: Cell::new(false) }
    }

    /// Requests under way.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// All is well, and has been for long. What most requests look at.
    #[inline]
    pub fn is_well(&self) -> bool {
        !self.standing.troubled.load(Ordering::Relaxed)
    }

    /// Whether it can be asked at all.
    pub fn is_in_service(&self, now: Micros) -> bool {
        let standing = &self.standing;
        !standing.unhealthy.load(Ordering::Relaxed)
            && now >= standing.ejected_until.load(Ordering::Relaxed)
    }

    /// Whether it can be asked, and for which share.
    pub fn condition(&self, now: Micros, slow_start: Duration) -> Condition {
        let standing = &self.standing;
        if self.is_well() {
            return Condition::InService(1.0);
        }
        if standing.unhealthy.load(Ordering::Relaxed) {
            return Condition::Unhealthy;
        }
        let ejected_until = standing.ejected_until.load(Ordering::Relaxed);
        if now < ejected_until {
            return Condition::Ejected;
        }
        let back = ejected_until.max(standing.well_since.load(Ordering::Relaxed));
        let (elapsed, slow_start) = (now.saturating_sub(back), micros(slow_start));
        if elapsed < slow_start {
            let share = elapsed as f64 / slow_start as f64;
            return Condition::InService(share.max(FIRST_SHARE));
        }
        // Whoever finds something new meanwhile says so after having written it.
        standing.troubled.store(false, Ordering::SeqCst);
        if standing.unhealthy.load(Ordering::SeqCst)
            || standing.ejected_until.load(Ordering::SeqCst) != ejected_until
        {
            standing.troubled.store(true, Ordering::SeqCst);
        }
        Condition::InService(1.0)
    }

    /// Whether it has been checked before now.
    pub fn was_checked(&self) -> bool {
        self.standing.checked.swap(true, Ordering::Relaxed)
    }

    /// Whether its checks say that it is not to be asked.
    pub fn is_unhealthy(&self) -> bool {
        self.standing.unhealthy.load(Ordering::Relaxed)
    }

    /// Its checks failed. Says whether that is news.
    pub fn fell_ill(&self) -> bool {
        let news = !self.standing.unhealthy.swap(true, Ordering::SeqCst);
        self.standing.troubled.store(true, Ordering::SeqCst);
        news
    }

    /// Its checks passed. Says whether that is news.
    pub fn recovered(&self, now: Micros) -> bool {
        if !self.standing.unhealthy.load(Ordering::SeqCst) {
            return false;
        }
        self.standing.well_since.store(now, Ordering::SeqCst);
        self.standing.unhealthy.store(false, Ordering::SeqCst);
        true
    }

    /// A request went well.
    #[inline]
    fn succeeded(&self) {
        if self.standing.failures.load(Ordering::Relaxed) != 0 {
            self.standing.failures.store(0, Ordering::Relaxed);
        }
    }

    /// A request failed. Says whether it is one too many in a row; failures of long ago do not count,
    /// nor does one while the endpoint is ejected. Failures of a single caller's requests are never too
    /// many: that caller may have asked for what fails.
    pub fn failed(&self, now: Micros, witness: Witness, eject: &model::Eject) -> bool {
        let standing = &self.standing;
        if now < standing.ejected_until.load(Ordering::Relaxed) {
            return false;
        }
        let before = standing.failed_at.swap(now, Ordering::Relaxed);
        if now.saturating_sub(before) > micros(eject.lasts).saturating_mul(2) {
            standing.failures.store(0, Ordering::Relaxed);
        }
        let count = standing.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let several = match witness {
            Witness::Any => true,
            Witness::Caller { identity, address } if count == 1 => {
                standing.failed_first.store(identity, Ordering::Relaxed);
                standing.failed_from.store(address, Ordering::Relaxed);
                false
            }
            Witness::Caller { identity, address } => {
                identity != standing.failed_first.load(Ordering::Relaxed)
                    && address != standing.failed_from.load(Ordering::Relaxed)
            }
        };
        let several = several || count > 1 && standing.failed_others.load(Ordering::Relaxed);
        standing.failed_others.store(several, Ordering::Relaxed);
        several && count >= eject.after
    }

    /// Is not left alone any more.
    pub fn pardon(&self) {
        self.standing.ejected_until.store(0, Ordering::SeqCst);
    }

    /// Leaves it alone for a while. If it fails again right after, once is enough.
    pub fn eject(&self, now: Micros, eject: &model::Eject) {
        self.standing.failed_at.store(now, Ordering::Relaxed);
        self.standing.failures.store(eject.after.saturating_sub(1), Ordering::Relaxed);
        self.standing.failed_others.store(true, Ordering::Relaxed);
        self.standing.ejected_until.store(now + micros(eject.lasts), Ordering::SeqCst);
        self.standing.troubled.store(true, Ordering::SeqCst);
    }
}

/// An address without the brackets it has in a URL.
pub fn bare(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

/// The address, where the host is one.
pub fn literal(host: &str) -> Option<IpAddr> {
    bare(host).parse().ok()
}

/// A request under way at an endpoint.
#[derive(Debug)]
pub struct InFlight {
    endpoint: Arc<Endpoint>,
    wrong: Cell<bool>,
}

impl InFlight {
    /// Where it is under way.
    pub fn endpoint(&self) -> Arc<Endpoint> {
        Arc::clone(&self.endpoint)
    }

    /// The answer is not as it should be, whatever becomes of its body.
    pub fn went_wrong(&self) {
        self.wrong.set(true);
    }

    /// The answer has come to its end.
    #[inline]
    pub fn went_well(&self) {
        if !self.wrong.get() {
            self.endpoint.succeeded();
        }
    }
}

impl std::ops::Deref for InFlight {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;
    const SLOW_START: Duration = Duration::from_secs(10);

    fn endpoint() -> Endpoint {
        let config = model::Endpoint { https: false, host: "127.0.0.1".into(), port: 1, weight: 1 };
        Endpoint::new(&config, Addresses::new(), None)
    }

    fn eject() -> model::Eject {
        model::Eject { after: 3, lasts: Duration::from_secs(30), keep: 0.5 }
    }

    #[test]
    fn failures_count_only_in_a_row() {
        let endpoint = endpoint();
        let now = 1000 * SECOND;
        assert!(!endpoint.failed(now, Witness::Any, &eject()));
        assert!(!endpoint.failed(now, Witness::Any, &eject()));
        endpoint.succeeded();
        assert!(!endpoint.failed(now, Witness::Any, &eject()));
        assert!(
            !endpoint.failed(now + 61 * SECOND, Witness::Any, &eject()),
            "the first is too long ago"
        );
        assert!(!endpoint.failed(now + 62 * SECOND, Witness::Any, &eject()));
        assert!(endpoint.failed(now + 63 * SECOND, Witness::Any, &eject()));
    }

    #[test]
    fn one_caller_alone_ejects_nothing() {
        let (endpoint, now) = (endpoint(), 1000 * SECOND);
        let failed = |identity, address| {
            endpoint.failed(now, Witness::Caller { identity, address }, &eject())
        };
        assert!((0..100).all(|_| !failed(7, 1)));
        assert!((0..100).all(|key| !failed(key, 1)), "one address with many keys");
        assert!((0..100).all(|from| !failed(7, from)), "one key from many addresses");
        assert!(failed(8, 2), "the others see it, too");
        assert!(failed(7, 1));
        endpoint.succeeded();
        assert!((0..100).all(|_| !failed(8, 2)), "that was before");
        assert!(endpoint.failed(now, Witness::Any, &eject()), "nor does it take a second caller");
    }

    #[test]
    fn an_ejected_endpoint_comes_back_little_by_little() {
        let endpoint = endpoint();
        let now = 1000 * SECOND;
        let at = |seconds: u64| endpoint.condition(now + seconds * SECOND, SLOW_START);
        assert_eq!(at(0), Condition::InService(1.0));
        endpoint.eject(now, &eject());
        assert_eq!([at(0), at(29)], [Condition::Ejected; 2]);
        assert_eq!(at(30), Condition::InService(0.1));
        assert_eq!(at(35), Condition::InService(0.5));
        assert!(!endpoint.is_well());
        assert_eq!(at(40), Condition::InService(1.0));
        assert!(endpoint.is_well());
    }

    #[test]
    fn who_fails_right_after_it_is_back_is_out_at_once() {
        let endpoint = endpoint();
        let now = 1000 * SECOND;
        endpoint.eject(now, &eject());
        assert!(
            !endpoint.failed(now + SECOND, Witness::Any, &eject()),
            "what was under way already"
        );
        assert!(endpoint.failed(now + 31 * SECOND, Witness::Any, &eject()));
        endpoint.eject(now + 31 * SECOND, &eject());
        endpoint.succeeded();
        assert!(!endpoint.failed(now + 62 * SECOND, Witness::Any, &eject()));
    }

    #[test]
    fn a_failed_check_weighs_more_than_anything_else() {
        let endpoint = endpoint();
        let now = 1000 * SECOND;
        assert!(endpoint.fell_ill());
        assert!(!endpoint.fell_ill());
        assert_eq!(endpoint.condition(now, SLOW_START), Condition::Unhealthy);
        assert!(endpoint.recovered(now));
        assert!(!endpoint.recovered(now));
        assert_eq!(endpoint.condition(now + 2 * SECOND, SLOW_START), Condition::InService(0.2));
        assert_eq!(endpoint.condition(now + 2 * SECOND, Duration::ZERO), Condition::InService(1.0));
    }
}
