//! Fire and forget: the same ring and filters, and nothing else.

use super::members::{Members, Owner};
use super::settings::check_ms;
use super::{ConsumerId, MAX_KEY_BYTES};
use crate::Error;
use crate::ring::ring_hash;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// It goes into the queue of this consumer.
    To(ConsumerId),
    /// It is lost: the queue of its owner is full.
    Saturated(ConsumerId),
    /// It is lost: no consumer accepts its key.
    Unmatched,
}

/// What became of messages so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Routed {
    /// Messages that went into a queue.
    pub queued: u64,
    /// Messages lost to a full queue.
    pub saturated: u64,
    /// Messages lost because no consumer accepts their key.
    pub unmatched: u64,
}

/// Routes messages by key without remembering any: no answers, no further tries, no cursor. What does not fit into the
/// queue of its owner is lost.
#[derive(Debug)]
pub struct Router {
    members: Members,
    now_ms: u64,
    counts: Routed,
}

impl Router {
    /// A router without consumers, which evicts those that are silent for `evict_after_ms`.
    ///
    /// # Errors
    /// When that is not in 1 to [`super::MAX_SETTING_MS`].
    pub fn new(evict_after_ms: u64) -> Result<Self, Error> {
        check_ms("evict_after_ms", evict_after_ms)?;
        Ok(Self { members: Members::new(evict_after_ms), now_ms: 0, counts: Routed::default() })
    }

    /// Adds a consumer whose queue takes `capacity` messages. Without filters it accepts every key.
    ///
    /// # Errors
    /// As [`super::Dispatcher::join`].
    pub fn join(&mut self, name: &str, filters: &[&str], capacity: u32, now_ms: u64) -> Result<ConsumerId, Error> {
        self.clock(now_ms);
        self.members.join(name, filters, capacity, self.now_ms)
    }

    /// Forgets a consumer and its queue; whether it was here.
    pub fn leave(&mut self, consumer: ConsumerId) -> bool {
        !self.members.remove(&[consumer]).is_empty()
    }

    /// Notes a sign of life. `false` when the consumer is not here (any more).
    pub fn heartbeat(&mut self, consumer: ConsumerId, now_ms: u64) -> bool {
        self.clock(now_ms);
        self.members.seen(consumer, self.now_ms)
    }

    /// Says where each message goes, and counts those that go anywhere as queued there.
    ///
    /// # Errors
    /// When a key is longer than [`MAX_KEY_BYTES`]. Then nothing was routed.
    pub fn route(&mut self, keys: &[&str]) -> Result<Vec<Route>, Error> {
        for key in keys {
            Error::check_range("key length in bytes", key.len() as u64, 0, MAX_KEY_BYTES as u64)?;
        }
        Ok(keys.iter().map(|key| self.route_one(key)).collect())
    }

    /// Notes that a consumer has taken `messages` out of its queue. `false` when it is not here (any more).
    pub fn taken(&mut self, consumer: ConsumerId, messages: u32, now_ms: u64) -> bool {
        if !self.heartbeat(consumer, now_ms) {
            return false;
        }
        if let Some(owner) = self.members.get_mut(consumer) {
            owner.in_flight = owner.in_flight.saturating_sub(messages);
        }
        true
    }

    /// Evicts the consumers that have been silent for too long, and says which.
    pub fn tick(&mut self, now_ms: u64) -> Vec<ConsumerId> {
        self.clock(now_ms);
        let late = self.members.overdue(self.now_ms);
        if late.is_empty() { late } else { self.members.remove(&late) }
    }

    /// When [`Router::tick`] may have something to do next; `None` while there is no consumer.
    #[must_use]
    pub const fn next_deadline_ms(&self) -> Option<u64> {
        self.members.check_ms()
    }

    /// What became of messages so far.
    #[must_use]
    pub const fn counts(&self) -> Routed {
        self.counts
    }

    fn clock(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    fn route_one(&mut self, key: &str) -> Route {
        let Owner::At(place) = self.members.owner(key, ring_hash(key.as_bytes())) else {
            self.counts.unmatched += 1;
            return Route::Unmatched;
        };
        let owner = self.members.at(place);
        if !owner.has_room() {
            self.counts.saturated += 1;
            return Route::Saturated(owner.id);
        }
        self.counts.queued += 1;
        owner.in_flight += 1;
        Route::To(owner.id)
    }
}
