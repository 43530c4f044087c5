//! Saved counters: damaged files are refused, whole ones come back as they were.
//!
//! Input: a byte that says what the rest is: a file as it is (`F`), a file's content, whose beginning
//! and checksum are put right (`C`), or numbers that a file is made of.

#![no_main]

use cap::Cap;
use libfuzzer_sys::fuzz_target;
use sluice::clock::SECOND;
use sluice::digest::sha256;
use sluice::limit::{Quota, Rate};
use sluice::overrides::{Bans, Who};
use sluice::saved::{self, Moment, ReadError};
use sluice::store::{Charge, Memory, Part, Registry, Store, Subject};
use sluice_fuzz::Numbers;
use std::alloc::System;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// As files are written now, and as they were before rejects were saved.
const MAGIC: &[u8] = b"sluice counters 2\n";
const BEFORE: &[u8] = b"sluice counters 1\n";
const SHARDS: usize = 256;
const LOG: u8 = 3;
const IN_FLIGHT: u8 = 4;
const NOW: u64 = 1_700_000_000 * SECOND;

/// Two files in memory, where there is such a place.
static FILES: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    ["in", "out"].map(|name| folder.join(format!("sluice-fuzz-{}.{name}", std::process::id())))
});

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    let (file, expected) = match kind {
        b'F' => (rest.to_vec(), None),
        b'C' => (summed(rest), None),
        _ => {
            let model = Model::made(&mut Numbers(rest));
            (summed(&model.written()), Some(model.loaded()))
        }
    };
    let read = read(&file);
    match (&expected, &read) {
        (None, _) => {}
        (Some(None), read) => assert!(read.is_none(), "this does not fit together"),
        (Some(Some(_)), None) => panic!("a good file is refused"),
        (Some(Some(model)), Some((store, bans))) => {
            let kept = model.entries.len();
            assert_eq!(store.keys(), kept);
            let mut model = model.clone();
            model.forget_in_flight();
            assert_eq!(rewritten(store, bans), model);
        }
    }
    let Some((store, bans)) = read else { return };
    // What came back is written and comes back again.
    let once = rewritten(&store, &bans);
    let again = self::read(&fs::read(&FILES[1]).expect("what was written"));
    let (again, bans) = again.expect("what was written");
    assert_eq!(rewritten(&again, &bans), once);
    // And it can be worked with.
    let store = Store::Memory(store);
    work(&store);
    drop(rewritten(store.local(), &bans));
});

/// A file's beginning and checksum around its content.
fn summed(content: &[u8]) -> Vec<u8> {
    let mut file = [BEFORE, content].concat();
    let sum = sha256(&file);
    file.extend(sum);
    file
}

/// Reads a file, with little more memory than it is long.
fn read(file: &[u8]) -> Option<(Memory, Bans)> {
    let path = &FILES[0];
    fs::write(path, file).expect("a file in memory");
    let most = (128 << 10) + 48 * file.len();
    let _ = ALLOCATOR.set_limit(ALLOCATOR.allocated() + most);
    let read = saved::read(path, 1000, NOW);
    let _ = ALLOCATOR.set_limit(usize::MAX);
    match read {
        Ok(read) => Some(read.expect("the file is there")),
        Err(ReadError::Damaged(why)) => {
            assert!(!why.to_string().is_empty());
            None
        }
        Err(ReadError::Io(error)) => panic!("{error}"),
    }
}

fn rewritten(store: &Memory, bans: &Bans) -> Model {
    let path = &FILES[1];
    saved::write(path, store, bans, Moment { now: NOW, wall: NOW }).expect("a file in memory");
    let file = fs::read(path).expect("what was written");
    let (content, sum) = file.split_at(file.len() - 32);
    assert_eq!(sha256(content), sum);
    Model::read(content.strip_prefix(MAGIC).expect("its beginning"))
}

/// Limits that know the counters by number.
fn work(store: &Store) {
    let rate = Rate { count: 3, window: 3600 * SECOND };
    let quotas = [
        Quota::token_bucket(rate, Some(7)),
        Quota::fixed_window(rate),
        Quota::sliding_window(rate),
        Quota::sliding_log(rate),
        Quota::leaky_bucket(rate, 5, 60 * SECOND),
        Quota::concurrency(3),
    ]
    .map(|quota| quota.expect("a quota"));
    let ids = ["a", "b", "c", "d", "e", "f"].map(|name| store.limit_id(name));
    let registry: Registry =
        ids.iter().zip(&quotas).map(|(id, quota)| (*id, Box::from([quota.clone()]))).collect();
    store.adopt(registry);
    for now in [NOW, NOW + 1, NOW + 1800 * SECOND, NOW + 8000 * SECOND] {
        for ip in 0..2 {
            let parts = [Part::Ip(std::net::Ipv4Addr::from(ip).into())];
            for (id, quota) in ids.iter().zip(&quotas) {
                let mut charges = [
                    Charge::new(*id, quota, Subject(&parts)),
                    Charge { cost: 2, ..Charge::new(*id, quota, Subject::EVERYONE) },
                ];
                let decision = store.local().charge_all(&mut charges, now);
                for charge in &charges {
                    assert!(charge.verdict.unused <= charge.verdict.capacity);
                    let _ = (quota.next(&charge.verdict), quota.reset(&charge.verdict));
                }
                for hold in &decision.holds {
                    store.release(hold, now);
                }
            }
        }
        store.local().sweep(SHARDS, now);
    }
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Counter {
    kind: u8,
    stamp: u64,
    used: u32,
    carry: u32,
    log: Vec<(u64, u32)>,
}

/// What a file holds, by its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model {
    now: u64,
    wall: u64,
    seed: [u64; 2],
    /// In the order of the file, or else of their keys.
    entries: Vec<(u64, u32, Counter)>,
    overflow: Vec<(u32, Counter)>,
    names: Vec<String>,
    bans: Vec<(String, String, u64)>,
}

impl Counter {
    fn made(from: &mut Numbers<'_>) -> Self {
        let kind = from.u8() % 6;
        let stamp = moment(from);
        let (used, carry) = (from.u32(), from.u32());
        let count = if kind == LOG { from.u8() % 5 } else { 0 };
        let mut log: Vec<(u64, u32)> =
            (0..count).map(|_| (moment(from), from.u32() >> (from.u8() % 32))).collect();
        if !from.u8().is_multiple_of(8) {
            log.sort_unstable_by_key(|(at, _)| *at);
        }
        Self { kind, stamp, used, carry, log }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.push(self.kind);
        to.extend(self.stamp.to_le_bytes());
        to.extend(self.used.to_le_bytes());
        to.extend(self.carry.to_le_bytes());
        if self.kind == LOG {
            to.extend((self.log.len() as u32).to_le_bytes());
            for (at, cost) in &self.log {
                to.extend(at.to_le_bytes());
                to.extend(cost.to_le_bytes());
            }
        }
    }

    fn read(from: &mut Numbers<'_>) -> Self {
        let (kind, stamp, used, carry) = (from.u8(), from.u64(), from.u32(), from.u32());
        let count = if kind == LOG { from.u32() } else { 0 };
        let log = (0..count).map(|_| (from.u64(), from.u32())).collect();
        Self { kind, stamp, used, carry, log }
    }

    /// As it comes back; `None` if it cannot be.
    fn loaded(&self, times: &Times) -> Option<Self> {
        let mut counter = self.clone();
        counter.stamp = times.past(self.stamp);
        if self.kind == LOG {
            counter.log.iter_mut().for_each(|(at, _)| *at = times.past(*at));
            let total: u64 = counter.log.iter().map(|(_, cost)| u64::from(*cost)).sum();
            counter.used = u32::try_from(total).ok()?;
            counter.carry = 0;
            counter.stamp = counter.log.last().map_or(0, |(at, _)| *at);
        }
        (self.kind <= IN_FLIGHT && counter.log.is_sorted_by_key(|(at, _)| *at)).then_some(counter)
    }
}

/// Moments of then as moments of now.
struct Times {
    then: u64,
    since: u64,
}

impl Times {
    fn later(&self, moment: u64) -> u64 {
        let moved = i128::from(self.since) + i128::from(moment) - i128::from(self.then);
        u64::try_from(moved.max(0)).unwrap_or(u64::MAX)
    }

    fn past(&self, moment: u64) -> u64 {
        self.later(moment).min(NOW)
    }
}

impl Model {
    fn made(from: &mut Numbers<'_>) -> Self {
        let (now, wall) = (moment(from), moment(from));
        let seed = [from.u64(), from.u64()];
        let key = |from: &mut Numbers<'_>| match from.u8() {
            small @ 0..8 => u64::from(small), // some of them twice
            high => u64::from(from.u32()) | u64::from(high) << 56,
        };
        let entries = (0..from.u8() % 32).map(|_| (key(from), from.u32(), Counter::made(from)));
        let entries = entries.collect();
        let overflow = (0..from.u8() % 8).map(|_| (from.u32() % 8, Counter::made(from))).collect();
        let names = (0..from.u8() % 8).map(|_| text(from)).collect();
        let bans = (0..from.u8() % 8).map(|_| (text(from), text(from), moment(from))).collect();
        Self { now, wall, seed, entries, overflow, names, bans }
    }

    /// As it is written. It does not matter which shard an entry stands in.
    fn written(&self) -> Vec<u8> {
        let mut to = Vec::new();
        for number in [self.now, self.wall, self.seed[0], self.seed[1]] {
            to.extend(number.to_le_bytes());
        }
        to.extend((self.entries.len() as u32).to_le_bytes());
        for (key, limit, counter) in &self.entries {
            to.extend(key.to_le_bytes());
            to.extend(limit.to_le_bytes());
            counter.write(&mut to);
        }
        to.extend([0; 4 * (SHARDS - 1)]);
        to.extend((self.overflow.len() as u32).to_le_bytes());
        for (limit, counter) in &self.overflow {
            to.extend(limit.to_le_bytes());
            counter.write(&mut to);
        }
        let put = |to: &mut Vec<u8>, text: &str| {
            to.extend((text.len() as u32).to_le_bytes());
            to.extend(text.as_bytes());
        };
        to.extend((self.names.len() as u32).to_le_bytes());
        self.names.iter().for_each(|name| put(&mut to, name));
        to.extend((self.bans.len() as u32).to_le_bytes());
        for (caller, limit, until) in &self.bans {
            put(&mut to, caller);
            put(&mut to, limit);
            to.extend(until.to_le_bytes());
        }
        to
    }

    fn read(content: &[u8]) -> Self {
        let from = &mut Numbers(content);
        let (now, wall, seed) = (from.u64(), from.u64(), [from.u64(), from.u64()]);
        let mut entries = Vec::new();
        for _ in 0..SHARDS {
            let count = from.u32();
            entries.extend((0..count).map(|_| (from.u64(), from.u32(), Counter::read(from))));
        }
        entries.sort();
        let mut overflow: Vec<_> =
            (0..from.u32()).map(|_| (from.u32(), Counter::read(from))).collect();
        overflow.sort();
        let text = |from: &mut Numbers<'_>| {
            let length = from.u32() as usize;
            str::from_utf8(from.bytes(length)).expect("text").to_owned()
        };
        let names = (0..from.u32()).map(|_| text(from)).collect();
        // Rejects are counters as well.
        let _seed = (from.u64(), from.u64());
        for _ in 0..SHARDS {
            (0..from.u32()).for_each(|_| drop((from.u64(), from.u32(), Counter::read(from))));
        }
        (0..from.u32()).for_each(|_| drop((from.u32(), Counter::read(from))));
        (0..from.u32()).for_each(|_| drop(text(from)));
        let bans = (0..from.u32()).map(|_| (text(from), text(from), from.u64())).collect();
        assert!(from.is_empty(), "it goes on");
        Self { now, wall, seed, entries, overflow, names, bans }
    }

    /// As it comes back at `NOW`; `None` if it cannot be.
    fn loaded(&self) -> Option<Self> {
        let times = Times { then: self.now, since: self.wall.min(NOW) };
        let mut entries = Vec::new();
        for (key, limit, counter) in &self.entries {
            let twice = entries.iter().any(|(known, _, _)| known == key);
            if twice || *key == 0 {
                return None;
            }
            entries.push((*key, *limit, counter.loaded(&times)?));
        }
        entries.sort();
        let mut overflow = BTreeMap::new();
        for (limit, counter) in &self.overflow {
            overflow.insert(*limit, counter.loaded(&times)?);
        }
        let mut names = self.names.clone();
        names.sort();
        names.dedup();
        if names.len() < self.names.len() {
            return None;
        }
        let mut bans = BTreeMap::new();
        for (caller, limit, until) in &self.bans {
            let caller: Who = caller.parse().ok()?;
            bans.insert(caller.to_string(), (limit.clone(), times.later(*until)));
        }
        let mut bans: Vec<_> =
            bans.into_iter().map(|(caller, (limit, until))| (caller, limit, until)).collect();
        bans.retain(|(_, _, until)| *until > NOW);
        bans.sort_by(|one, other| other.2.cmp(&one.2).then_with(|| one.0.cmp(&other.0)));
        let (now, wall, names) = (NOW, NOW, self.names.clone());
        let overflow = overflow.into_iter().collect();
        Some(Self { now, wall, seed: self.seed, entries, overflow, names, bans })
    }

    /// What is in flight is not written.
    fn forget_in_flight(&mut self) {
        self.entries.retain(|(_, _, counter)| counter.kind != IN_FLIGHT);
        self.overflow.retain(|(_, counter)| counter.kind != IN_FLIGHT);
    }
}

/// Near to now, or anywhere.
fn moment(from: &mut Numbers<'_>) -> u64 {
    match from.u8() % 4 {
        0 => from.u64(),
        1 => NOW + u64::from(from.u32()),
        _ => NOW - u64::from(from.u32()),
    }
}

fn text(from: &mut Numbers<'_>) -> String {
    let length = usize::from(from.u8() % 8);
    String::from_utf8_lossy(from.bytes(length)).into_owned()
}
