//! The counters as bytes, so that a restart forgives nothing.
//!
//! ```text
//! now · seed · names: (id, name)… · shards: entries… · overflow: (limit, held)…
//! entry = key · limit · state, and of a log its admissions
//! ```
//!
//! Callers are known by the hash of who they are, so the hash's secret and the limits' numbers have
//! to come back as well. What was in flight is not saved: nothing is after a restart.

use super::shard::Shard;
use super::table::Entry;
use super::{Memory, Seed, shard_of};
use crate::clock::Micros;
use crate::limit::{Held, Kind, Log, State};
use crate::saved::{Damaged, Reader, put_text};
use crate::store::LimitId;
use crate::sync::Ordering;
use std::io::{self, Write};

const KINDS: [Kind; 5] = [Kind::Bucket, Kind::Fixed, Kind::Sliding, Kind::Log, Kind::Concurrency];

impl Memory {
    /// Writes every counter. Each shard is locked only while it is copied.
    pub(crate) fn save(&self, now: Micros, out: &mut dyn Write) -> io::Result<()> {
        let mut bytes = Vec::new();
        for number in [now, self.seed.0, self.seed.1] {
            bytes.extend(number.to_le_bytes());
        }
        let names = self.names.lock().clone();
        bytes.extend((names.len() as u32).to_le_bytes());
        for (name, id) in names {
            bytes.extend(id.0.to_le_bytes());
            put_text(&mut bytes, &name);
        }
        for shard in &self.shards {
            save_shard(&shard.lock(), &mut bytes);
            out.write_all(&bytes)?;
            bytes.clear();
        }
        let overflow = self.overflow.lock();
        bytes.extend((overflow.len() as u32).to_le_bytes());
        for (limit, held) in &*overflow {
            bytes.extend(limit.0.to_le_bytes());
            match held {
                Held::State(state) => put(&mut bytes, *state, None),
                Held::Log(log) => put(&mut bytes, log.summary(), Some(log)),
            }
        }
        drop(overflow);
        out.write_all(&bytes)
    }

    /// Reads what was saved. A clock that has gone back since does not hold anybody longer.
    pub(crate) fn load(
        max_keys: usize,
        now: Micros,
        from: &mut Reader<'_>,
    ) -> Result<Self, Damaged> {
        from.u64()?;
        let seed = Seed(from.u64()?, from.u64()?);
        let memory = Self { seed, ..Self::new(max_keys) };
        for _ in 0..from.u32()? {
            let id = LimitId(from.u32()?);
            memory.names.lock().insert(from.text()?.to_owned(), id);
        }
        for _ in 0..memory.shards.len() {
            for _ in 0..from.u32()? {
                let (key, limit) = (from.u64()?, LimitId(from.u32()?));
                let held = take(from, now)?;
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
            overflow.insert(limit, take(from, now)?);
        }
        memory.overflowing.store(overflow.len(), Ordering::Release);
        drop(overflow);
        Ok(memory)
    }
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

fn take(from: &mut Reader<'_>, now: Micros) -> Result<Held, Damaged> {
    let kind = from.u8()? as usize;
    let kind = *KINDS.get(kind).ok_or(Damaged("it has an algorithm that nobody knows"))?;
    let (stamp, used, carry) = (from.u64()?.min(now), from.u32()?, from.u32()?);
    if kind != Kind::Log {
        return Ok(Held::State(State { stamp, used, carry, kind }));
    }
    let count = from.u32()?;
    let entries = (0..count).map(|_| Ok((from.u64()?.min(now), from.u32()?)));
    Ok(Held::Log(Box::new(entries.collect::<Result<Log, Damaged>>()?)))
}
