//! What a restart must not forgive, in a file: the memory store's counters, and bans.
//!
//! ```text
//! "sluice counters 2\n" · now, by both clocks · counters (store/memory/saved.rs) · rejects, likewise
//! · bans
//! · SHA-256 of all before it
//! ```
//!
//! The file is written beside the old one and then takes its place, so there is always a whole one.
//! It holds the secret that callers' keys are hashed with, so nobody else may read it.

use crate::clock::Micros;
use crate::digest::sha256;
use crate::overrides::{Ban, Bans, Why};
use crate::store::Memory;
use aws_lc_rs::digest::{Context, SHA256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: &[u8] = b"sluice counters 2\n";
/// The version before, without rejects.
const BEFORE: &[u8] = b"sluice counters 1\n";
const SUM: usize = 32;

/// Why a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damaged(pub(crate) &'static str);

/// Why nothing came of reading.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not what was written.
    #[error("it is damaged: {0}")]
    Damaged(#[from] Damaged),
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// When something was saved: by the clock that counts, and by the wall clock, which may have been
/// set since that one was anchored.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// As limits count.
    pub now: Micros,
    /// As others read it.
    pub wall: Micros,
}

/// Turns moments of then into moments of now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    then: Micros,
    /// What `then` is now.
    since: Micros,
    now: Micros,
}

impl Times {
    /// A wall clock that has gone back since holds nobody longer: no time has passed.
    fn new(saved: Moment, now: Micros) -> Self {
        Self { then: saved.now, since: saved.wall.min(now), now }
    }

    /// A moment that was past.
    pub(crate) fn now(self, moment: Micros) -> Micros {
        self.later(moment).min(self.now)
    }

    /// A moment that may have been to come.
    fn later(self, moment: Micros) -> Micros {
        let later = self.since.saturating_add(moment.saturating_sub(self.then));
        later.saturating_sub(self.then.saturating_sub(moment))
    }
}

/// Writes the counters and bans.
pub fn write(path: &Path, store: &Memory, bans: &Bans, moment: Moment) -> io::Result<()> {
    replace(path, |file| write_to(file, store, bans, moment))
}

/// Writes a file beside the one that is there, which then takes its place.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        fs::create_dir_all(folder)?;
    }
    // Nobody else's, and nothing that was there before.
    let beside = beside(path, &format!(".{}.new", std::process::id()));
    let _ = fs::remove_file(&beside);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = write(&file).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&beside, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    // The new name is to survive a power cut as well.
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn write_to(file: &File, store: &Memory, bans: &Bans, moment: Moment) -> io::Result<()> {
    let mut out = Summing { out: BufWriter::new(file), sum: Context::new(&SHA256) };
    out.write_all(MAGIC)?;
    out.write_all(&moment.now.to_le_bytes())?;
    out.write_all(&moment.wall.to_le_bytes())?;
    store.save(&mut out)?;
    bans.rejects().save(&mut out)?;
    out.write_all(&encode(&bans.list(moment.now)))?;
    let Summing { mut out, sum } = out;
    out.write_all(sum.finish().as_ref())?;
    out.flush()
}

/// A file beside another, called like it with an ending.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// Reads them back. `None`: there is no such file yet.
pub fn read(
    path: &Path,
    max_keys: usize,
    now: Micros,
) -> Result<Option<(Memory, Bans)>, ReadError> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes?,
    };
    Ok(Some(decode(&bytes, max_keys, now)?))
}

fn decode(bytes: &[u8], max_keys: usize, now: Micros) -> Result<(Memory, Bans), Damaged> {
    let has_rejects = bytes.starts_with(MAGIC);
    if !has_rejects && !bytes.starts_with(BEFORE) {
        return Err(Damaged("it does not begin as such a file does"));
    }
    let (content, sum) = bytes.split_at(bytes.len().saturating_sub(SUM).max(MAGIC.len()));
    if sha256(content) != sum {
        return Err(Damaged("its checksum is wrong"));
    }
    let mut from = Reader(&content[MAGIC.len()..]);
    let saved = Moment { now: from.u64()?, wall: from.u64()? };
    let times = Times::new(saved, now);
    let memory = Memory::load(max_keys, times, &mut from)?;
    let bans = if has_rejects {
        Bans::with(Memory::load(max_keys, times, &mut from)?)
    } else {
        Bans::default()
    };
    for _ in 0..from.u32()? {
        let (caller, limit) = (from.text()?, from.text()?.into());
        let until = times.later(from.u64()?);
        let who = caller.parse().map_err(|_| Damaged("it names nobody"))?;
        bans.add(Ban { who, why: Why::Penalty(limit), until, metrics: None }, now);
    }
    if !from.0.is_empty() {
        return Err(Damaged("it goes on where it should end"));
    }
    Ok((memory, bans))
}

/// What the operator says is remembered elsewhere.
fn encode(bans: &[Arc<Ban>]) -> Vec<u8> {
    let (mut count, mut bytes) = (0_u32, Vec::new());
    for ban in bans {
        if let Why::Penalty(limit) = &ban.why {
            count += 1;
            put_text(&mut bytes, &ban.who.to_string());
            put_text(&mut bytes, limit);
            bytes.extend(ban.until.to_le_bytes());
        }
    }
    [count.to_le_bytes().to_vec(), bytes].concat()
}

pub(crate) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Sums up what it passes on.
struct Summing<W> {
    out: W,
    sum: Context,
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Bytes that are yet to be read.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Damaged("it is cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Damaged> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Damaged> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Damaged> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Damaged> {
        let length = self.u32()? as usize;
        str::from_utf8(self.take(length)?).map_err(|_| Damaged("a name in it is no text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;
    use crate::limit::{Quota, Rate};
    use crate::overrides::Who;
    use crate::store::{Charge, LimitId, Part, Subject};

    const NOW: Micros = 1_700_000_000 * SECOND;

    fn quotas() -> [(&'static str, Quota); 5] {
        let rate = Rate { count: 3, window: 3600 * SECOND };
        [
            ("bucket", Quota::token_bucket(rate, None).unwrap()),
            ("fixed", Quota::fixed_window(rate).unwrap()),
            ("sliding", Quota::sliding_window(rate).unwrap()),
            ("log", Quota::sliding_log(rate).unwrap()),
            ("in flight", Quota::concurrency(3).unwrap()),
        ]
    }

    /// One request of every caller to every limit; how many remain to each.
    fn ask(store: &Memory, now: Micros) -> Vec<u32> {
        let limits: Vec<(LimitId, Quota)> =
            quotas().map(|(name, quota)| (store.limit_id(name), quota)).into();
        let mut remaining = Vec::new();
        for n in 0..100_u32 {
            let parts = [Part::Ip(std::net::Ipv4Addr::from(n).into())];
            for (id, quota) in &limits {
                let mut charges = [Charge::new(*id, quota, Subject(&parts))];
                store.charge_all(&mut charges, now);
                remaining.push(charges[0].verdict.remaining());
            }
        }
        remaining
    }

    fn mallory() -> Ban {
        let (who, why) = (Who::User("mallory".into()), Why::Penalty("bucket".into()));
        Ban { who, why, until: NOW + SECOND, metrics: None }
    }

    fn saved(store: &Memory, bans: &Bans, wall: Micros) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/limits.bin");
        write(&path, store, bans, Moment { now: NOW, wall }).unwrap();
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "nothing else is left"
        );
        fs::read(&path).unwrap()
    }

    #[test]
    fn what_was_used_and_who_is_banned_comes_back() {
        let (store, bans) = (Memory::new(1000), Bans::default());
        ask(&store, NOW);
        bans.add(mallory(), NOW);
        let (again, banned) = decode(&saved(&store, &bans, NOW), 1000, NOW).unwrap();
        // What was in flight is not.
        assert_eq!(again.keys(), 400);
        assert_eq!(ask(&again, NOW), [1, 1, 1, 1, 2].repeat(100));
        let told = |bans: &Bans| format!("{:?}", bans.list(NOW));
        assert_eq!(told(&banned), told(&bans));
        assert_eq!(again.limit_id("another"), Memory::limit_id(&store, "another"), "numbers go on");
    }

    #[test]
    fn rejects_go_on_being_counted_and_a_file_without_them_can_be_read() {
        let (store, bans) = (Memory::new(1000), Bans::default());
        let tolerated = Quota::fixed_window(Rate { count: 2, window: 3600 * SECOND }).unwrap();
        let reject = |bans: &Bans| {
            let limit = bans.limit_id("login");
            bans.adopt([(limit, [tolerated.clone()].into())].into());
            bans.count_reject(limit, &tolerated, Subject(&[Part::User("eve")]), NOW)
        };
        assert!(!reject(&bans) && !reject(&bans));
        let bytes = saved(&store, &bans, NOW);
        assert!(reject(&decode(&bytes, 1000, NOW).unwrap().1), "the third, restart or not");
        // The version before had bans right behind the counters.
        let (mut counters, mut old) = (Vec::new(), BEFORE.to_vec());
        store.save(&mut counters).unwrap();
        old.extend([NOW.to_le_bytes(), NOW.to_le_bytes()].concat());
        old.extend([counters, encode(&[Arc::new(mallory())])].concat());
        let sum = sha256(&old);
        let (_, banned) = decode(&[&old[..], &sum].concat(), 1000, NOW).unwrap();
        assert_eq!(banned.len(), 1);
        assert!(!reject(&banned), "none was counted");
    }

    #[test]
    fn what_strangers_had_in_flight_is_not_saved() {
        let store = Memory::new(0);
        assert_eq!(ask(&store, NOW)[4], 2, "in flight, beyond the cap");
        let (again, _) = decode(&saved(&store, &Bans::default(), NOW), 0, NOW).unwrap();
        assert_eq!(ask(&again, NOW)[..5], [0, 0, 0, 0, 2]);
    }

    #[test]
    fn a_clock_that_was_set_changes_nothing() {
        let day = 86_400 * SECOND;
        let (store, bans) = (Memory::new(1000), Bans::default());
        ask(&store, NOW);
        bans.add(mallory(), NOW);
        // The machine began with a wrong date, which was put right while the gateway ran; the next
        // one begins with the right date.
        let bytes = saved(&store, &bans, NOW + 2000 * day);
        let (again, banned) = decode(&bytes, 1000, NOW + 2000 * day).unwrap();
        assert_eq!(ask(&again, NOW + 2000 * day), [1, 1, 1, 1, 2].repeat(100));
        assert_eq!(banned.list(NOW)[0].until, NOW + 2000 * day + SECOND);
        // The date was put back between the two: nobody is held longer.
        let earlier = NOW - 10 * day;
        let (again, banned) = decode(&bytes, 1000, earlier).unwrap();
        assert_eq!(ask(&again, earlier + 2 * 3600 * SECOND), [2].repeat(500));
        assert_eq!(banned.list(0)[0].until, earlier + SECOND);
    }

    #[test]
    fn a_damaged_file_is_noticed_wherever_it_is() {
        let store = Memory::new(1000);
        ask(&store, NOW);
        let bytes = saved(&store, &Bans::default(), NOW);
        assert!(decode(&bytes, 1000, NOW).is_ok());
        for at in (0..bytes.len()).step_by(97) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(decode(&damaged, 1000, NOW).is_err(), "byte {at}");
            assert!(decode(&bytes[..at], 1000, NOW).is_err(), "cut at {at}");
        }
        // Even with a checksum that is right, what does not fit together is refused.
        for at in (MAGIC.len()..bytes.len() - SUM).step_by(89) {
            let cut = &bytes[..at];
            let whole = [cut, &sha256(cut)].concat();
            assert!(decode(&whole, 1000, NOW).is_err(), "cut at {at}");
        }
    }
}
