//! What an operator asks for: what a caller has used, that it be forgotten, and that what was said of
//! callers on one gateway holds on all.

use super::background::{Amendment, Change};
use super::script::trouble;
use super::{RedisServers, Shared, Trouble, take_nothing, wire};
use crate::clock::Micros;
use crate::overrides::{Act, Acts, What};
use crate::store::Charge;
use redis::Value;
use smallvec::SmallVec;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// For so long after its end an act may still be there: clocks differ.
const OVER: Micros = 60_000_000;

/// How long the store has; nobody's request waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Acts of all gateways, a field each. Beside them: how often they have changed, in the field `#`; a
/// number that is drawn when there are none yet, in `@`, and one that is drawn with every change, in
/// `!`. If `@` is another one, or `#` has gone back, the store has forgotten something that it was told.
/// The key lives as long as its longest act.
const TELL: &str = "
local name, act, life = ARGV[1], ARGV[2], tonumber(ARGV[3])
redis.call('HSETNX', KEYS[1], '@', ARGV[4])
if act == '' then redis.call('HDEL', KEYS[1], name) else redis.call('HSET', KEYS[1], name, act) end
redis.call('HINCRBY', KEYS[1], '#', 1)
redis.call('HSET', KEYS[1], '!', ARGV[4])
redis.call('PEXPIRE', KEYS[1], math.max(life, redis.call('PTTL', KEYS[1]), 1))
return 1";

/// What is known of the acts in the store: how often they have changed, since when they are
/// remembered, and which change was the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    changes: u64,
    memory: u64,
    last: u64,
}

impl Heard {
    /// Whether what is there now lacks something of this.
    fn is_lost_in(&self, there: Option<&Self>) -> bool {
        there.is_none_or(|there| there.memory != self.memory || there.changes < self.changes)
    }
}

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
        self.queue.put(Amendment { key, layer, change, done: Some(done), returns: None });
        let told = timeout(PATIENCE, told).await;
        self.denials.clear();
        told.map_or(Err(Trouble::Late), |told| told.map_err(|_| Trouble::Refused))
    }

    fn acts_key(&self) -> String {
        // No limit's name begins so but for a hash, which is longer.
        format!("{}:1:#acts", self.options.prefix)
    }

    /// Tells the store what was said here, and hears what was said elsewhere, if anything has changed
    /// since it was heard last. What the store has forgotten it is told again by whoever remembers.
    pub(super) async fn share_acts(&self, heard: Option<Heard>) -> Result<Option<Heard>, Trouble> {
        let mut there = self.hear().await?;
        if heard.is_some_and(|heard| heard.is_lost_in(there.as_ref())) {
            self.overrides.tell_again(&self.acts().await?);
        }
        if self.tell_acts().await? {
            there = self.hear().await?;
        }
        if there != heard {
            let all = self.acts().await?;
            self.forget_acts(&all).await?;
            self.heed(&all);
        }
        Ok(there)
    }

    async fn hear(&self) -> Result<Option<Heard>, Trouble> {
        let reply = self.command(&["HMGET", &self.acts_key(), "#", "@", "!"]).await?;
        let Value::Array(all) = reply else { return Err(Trouble::Refused) };
        let [changes, memory, last] = &all[..] else { return Err(Trouble::Refused) };
        let heard = || {
            let (changes, memory) = (number(changes)?, number(memory)?);
            Some(Heard { changes, memory, last: number(last)? })
        };
        Ok(heard())
    }

    async fn acts(&self) -> Result<Acts, Trouble> {
        Ok(acts(&self.command(&["HGETALL", &self.acts_key()]).await?))
    }

    /// One command over one of this thread's links; a link that leads nowhere is cut.
    async fn command(&self, words: &[&str]) -> Result<Value, Trouble> {
        let link = self.link();
        let mut wire = link.wire(&self.options, self.clock.now()).await?;
        wire.tell(words).await.map_err(|error| {
            let trouble = trouble(&error);
            if matches!(trouble, Trouble::Broken | Trouble::ReadOnly) {
                link.cut();
            }
            trouble
        })
    }

    /// Says whether there was anything to tell.
    async fn tell_acts(&self) -> Result<bool, Trouble> {
        let (key, untold) = (self.acts_key(), self.overrides.untold());
        let now = self.clock.wall(self.clock.now());
        for (name, act) in &untold {
            let text = act.as_ref().and_then(|act| serde_json::to_string(act).ok());
            let life = act.as_ref().map_or(0, |act| act.until.saturating_sub(now) / 1000);
            let words = [
                "EVAL",
                TELL,
                "1",
                &key,
                name,
                text.as_deref().unwrap_or_default(),
                &life.to_string(),
                &fastrand::u64(..).to_string(),
            ];
            self.command(&words).await?;
            self.overrides.were_told(1);
        }
        Ok(!untold.is_empty())
    }

    /// Acts that have long been over are nobody's business any more.
    async fn forget_acts(&self, all: &Acts) -> Result<(), Trouble> {
        let now = self.clock.wall(self.clock.now());
        let over = all.iter().filter(|(_, act)| act.until.saturating_add(OVER) < now);
        for (name, _) in over {
            self.command(&["HDEL", &self.acts_key(), name]).await?;
        }
        Ok(())
    }

    /// Does as all gateways have said. What is forgiven is remembered nowhere.
    fn heed(&self, all: &Acts) {
        for act in self.overrides.adopt(all) {
            if matches!(act.act, What::Lift | What::Reset) {
                self.overrides.bans.forget_rejects(act.caller.part());
                self.denials.clear();
            }
        }
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok()?.parse().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Fields and values; what is no act is one of the two numbers, or nobody's business.
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
