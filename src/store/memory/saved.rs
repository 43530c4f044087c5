//! The counters as bytes, so that a restart forgives nothing.
//!
//! ```text
//! seed · shards: entries… · overflow: (limit, held)… · names of the limits, by their numbers
//! entry = key · limit · state, and of a log its admissions
//! ```
//!
//! Callers are known by the hash of who they are, so the hash's secret and the limits' numbers have
//! to come back as well. What was in flight is not saved: nothing is after a restart.

use super::shard::Shard;
use super::table::Entry;
use super::{Memory, Seed, shard_of};
use crate::limit::{Held, Kind, Log, State};
use crate::saved::{Damaged, Reader, Times, put_text};
use crate::store::LimitId;
use crate::sync::Ordering;
use std::io::{self, Write};

impl Memory {
    /// Writes every counter. Each shard is locked only while it is copied.
    pub(crate) fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut bytes = Vec::new();
        bytes.extend(self.seed.0.to_le_bytes());
        bytes.extend(self.seed.1.to_le_bytes());
        for shard in &self.shards {
            save_shard(&shard.lock(), &mut bytes);
            out.write_all(&bytes)?;
            bytes.clear();
        }
        let overflow = self.overflow.lock().clone();
        let kept = overflow.iter().filter(|(_, held)| !is_in_flight(held));
        bytes.extend((kept.clone().count() as u32).to_le_bytes());
        for (limit, held) in kept {
            bytes.extend(limit.0.to_le_bytes());
            match held {
                Held::State(state) => put(&mut bytes, *state, None),
                Held::Log(log) => put(&mut bytes, log.summary(), Some(log)),
            }
        }
        // After the counters, so that none belongs to a limit without a name.
        let mut names: Vec<_> = self.names.lock().clone().into_iter().collect();
        names.sort_by_key(|(_, id)| *id);
        bytes.extend((names.len() as u32).to_le_bytes());
        for (name, _) in &names {
            put_text(&mut bytes, name);
        }
        out.write_all(&bytes)
    }

    /// Reads what was saved; `times` turns moments of then into moments of now.
    pub(crate) fn load(
        max_keys: usize,
        times: Times,
        from: &mut Reader<'_>,
    ) -> Result<Self, Damaged> {
        let seed = Seed(from.u64()?, from.u64()?);
        let memory = Self { seed, ..Self::new(max_keys) };
        for _ in 0..memory.shards.len() {
            for _ in 0..from.u32()? {
                let (key, limit) = (from.u64()?, LimitId(from.u32()?));
                let held = take(from, times)?;
                let mut shard = memory.shards[shard_of(key)].lock();
                let slot = shard.find(key);
                if key == 0 || !shard.put(slot, key, limit, held) {
                    return Err(Damaged("a caller is in it twice"));
                }
                memory.keys.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut overflow = memory.overflow.lock();
        for _ in 0..from.u32()? {
            let limit = LimitId(from.u32()?);
            overflow.insert(limit, take(from, times)?);
        }
        memory.overflowing.store(overflow.len(), Ordering::Release);
        drop(overflow);
        for id in 0..from.u32()? {
            if memory.names.lock().insert(from.text()?.to_owned(), LimitId(id)).is_some() {
                return Err(Damaged("a limit is in it twice"));
            }
        }
        Ok(memory)
    }
}

fn is_in_flight(held: &Held) -> bool {
    matches!(held, Held::State(State { kind: Kind::Concurrency, .. }))
}

fn save_shard(shard: &Shard, bytes: &mut Vec<u8>) {
    let at = bytes.len();
    bytes.extend(0_u32.to_le_bytes());
    let mut count = 0_u32;
    let kept = shard.entries().filter(|(entry, _)| entry.state.kind != Kind::Concurrency);
    for (Entry { key, limit, state }, log) in kept {
        bytes.extend(key.to_le_bytes());
        bytes.extend(limit.0.to_le_bytes());
        put(bytes, state, log);
        count += 1;
    }
    bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
}

fn put(bytes: &mut Vec<u8>, state: State, log: Option<&Log>) {
    bytes.push(state.kind as u8);
    bytes.extend(state.stamp.to_le_bytes());
    bytes.extend(state.used.to_le_bytes());
    bytes.extend(state.carry.to_le_bytes());
    if state.kind == Kind::Log {
        let entries: Vec<_> = log.into_iter().flat_map(Log::entries).collect();
        bytes.extend((entries.len() as u32).to_le_bytes());
        for (at, cost) in entries {
            bytes.extend(at.to_le_bytes());
            bytes.extend(cost.to_le_bytes());
        }
    }
}

fn take(from: &mut Reader<'_>, times: Times) -> Result<Held, Damaged> {
    let kind = from.u8()?;
    let kind = Kind::numbered(kind).ok_or(Damaged("it has an algorithm that nobody knows"))?;
    let (stamp, used, carry) = (times.now(from.u64()?), from.u32()?, from.u32()?);
    if kind != Kind::Log {
        return Ok(Held::State(State { stamp, used, carry, kind }));
    }
    let count = from.u32()?;
    let entries = (0..count).map(|_| Ok((times.now(from.u64()?), from.u32()?)));
    let entries = entries.collect::<Result<Vec<_>, Damaged>>()?;
    let total: u64 = entries.iter().map(|(_, cost)| u64::from(*cost)).sum();
    if !entries.is_sorted_by_key(|(at, _)| *at) || total > u32::MAX.into() {
        return Err(Damaged("a log in it is in no order"));
    }
    Ok(Held::Log(Box::new(entries.into_iter().collect::<Log>())))
}
