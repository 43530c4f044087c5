//! What an operator asks for: what a caller has used, that it be forgotten, and that what was said of
//! callers on one gateway holds on all.

use super::background::{Amendment, Change};
use super::{RedisServers, Shared, Trouble, take_nothing, wire};
use crate::clock::Micros;
use crate::overrides::{Act, Acts};
use crate::store::Charge;
use redis::Value;
use smallvec::SmallVec;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// How long the store has; nobody's request waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Acts of all gateways, a field each, and how often they have changed, in the field `#`. The key
/// lives as long as its longest act.
const TELL: &str = "
local name, act, life = ARGV[1], ARGV[2], tonumber(ARGV[3])
if act == '' then redis.call('HDEL', KEYS[1], name) else redis.call('HSET', KEYS[1], name, act) end
redis.call('HINCRBY', KEYS[1], '#', 1)
redis.call('PEXPIRE', KEYS[1], math.max(life, redis.call('PTTL', KEYS[1]), 1))
return 1";

impl Shared {
    /// What the limits say to a caller, without charging anything: the store is asked for more than
    /// they could ever allow, and says what it holds.
    pub(super) async fn peek(
        &self,
        charges: &mut [Charge<'_>],
        now: Micros,
    ) -> Result<(), Trouble> {
        let deadline = Instant::now() + PATIENCE;
        // Keys of a cluster live in different places: one after the other, nobody is in a hurry.
        let together = match self.options.servers {
            RedisServers::Cluster(_) => 1,
            _ => charges.len().max(1),
        };
        for some in charges.chunks_mut(together) {
            let mut asking: SmallVec<[Charge<'_>; 4]> = some.iter().copied().collect();
            for charge in &mut asking {
                charge.cost = charge.quota.capacity().saturating_add(1);
                charge.shadow = false;
            }
            let answer = self.ask(&asking, now, deadline).await?.answer;
            for (charge, before) in some.iter_mut().zip(&answer.before) {
                charge.verdict = charge.quota.check(before, answer.now, charge.cost);
                take_nothing(charge, before.seen());
            }
        }
        Ok(())
    }

    /// Forgets what a caller has used of a limit.
    pub(super) async fn forget(&self, charge: &Charge<'_>, now: Micros) -> Result<(), Trouble> {
        let (done, told) = oneshot::channel();
        let layer = wire::layer(charge.quota, 0, 1, self.store_now(now));
        let (key, change) = (self.name_of(charge), Change::Forget);
        self.queue.put(Amendment { key, layer, change, done: Some(done) });
        let told = timeout(PATIENCE, told).await;
        self.denials.clear();
        told.map_or(Err(Trouble::Late), |told| told.map_err(|_| Trouble::Refused))
    }

    fn acts_key(&self) -> String {
        // No limit's name begins so but for a hash, which is longer.
        format!("{}:1:#acts", self.options.prefix)
    }

    /// Tells the store what was said here, and hears what was said elsewhere, if anything has changed.
    /// Says how often it has.
    pub(super) async fn share_acts(&self, heard: Option<u64>) -> Result<Option<u64>, Trouble> {
        let (key, now) = (self.acts_key(), self.clock.now());
        let mut wire = self.link().wire(&self.options, now).await?;
        let failed = |_| Trouble::Refused;
        for (name, act) in self.overrides.untold() {
            let text = act.as_ref().and_then(|act| serde_json::to_string(act).ok());
            let life = act.map_or(0, |act| act.until.saturating_sub(self.clock.wall(now)) / 1000);
            let words = [
                "EVAL",
                TELL,
                "1",
                &key,
                &name,
                text.as_deref().unwrap_or_default(),
                &life.to_string(),
            ];
            wire.tell(&words).await.map_err(failed)?;
            self.overrides.were_told(1);
        }
        let changes = number(wire.tell(&["HGET", &key, "#"]).await.map_err(failed)?);
        if changes == heard {
            return Ok(changes);
        }
        if changes.is_none() && self.overrides.has_acts() {
            // It has lost them: the key lives longer than any of them.
            self.overrides.tell_all_again();
            return Ok(None);
        }
        let all = acts(&wire.tell(&["HGETALL", &key]).await.map_err(failed)?);
        if self.overrides.adopt(&all) {
            self.denials.clear();
        }
        Ok(changes)
    }
}

fn number(value: Value) -> Option<u64> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(&bytes).ok()?.parse().ok(),
        Value::Int(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

/// Fields and values; what is no act is the number of changes, or nobody's business.
fn acts(reply: &Value) -> Acts {
    let pairs: Vec<(&Value, &Value)> = match reply {
        Value::Map(pairs) => pairs.iter().map(|(field, value)| (field, value)).collect(),
        Value::Array(all) => all.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
        _ => Vec::new(),
    };
    let act = |(_, value): (&Value, &Value)| match value {
        Value::BulkString(bytes) => serde_json::from_slice::<Act>(bytes).ok(),
        _ => None,
    };
    pairs.into_iter().filter_map(act).map(|act| (act.name(), act)).collect()
}
