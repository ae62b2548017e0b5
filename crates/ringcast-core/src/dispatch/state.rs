//! What a dispatcher tells of itself.

use super::ConsumerId;

/// What happened to messages so far. `offered` is `acked + dropped + dead_lettered + skipped` and what is unsettled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages taken in.
    pub offered: u64,
    /// Offers of an offset that had arrived before, which were ignored.
    pub repeated: u64,
    /// Deliveries, first and further ones.
    pub deliveries: u64,
    /// Messages settled by an acknowledgement.
    pub acked: u64,
    /// Deliveries refused.
    pub rejected: u64,
    /// Deliveries that got no answer in time.
    pub timed_out: u64,
    /// Deliveries whose consumer was lost.
    pub evicted: u64,
    /// Answers to a delivery that was not in flight, which were ignored.
    pub stale: u64,
    /// Messages settled by being given up.
    pub dropped: u64,
    /// Messages settled by being published as a dead letter.
    pub dead_lettered: u64,
    /// Messages settled because no consumer accepts their key.
    pub skipped: u64,
}

/// One consumer, for people to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerState {
    /// Its id.
    pub id: ConsumerId,
    /// The name it joined with.
    pub name: String,
    /// Most messages it may have in flight.
    pub capacity: u32,
    /// Messages it has in flight.
    pub in_flight: u32,
    /// Keys that wait for it to have room.
    pub waiting: u32,
    /// Whether it gets no new messages and leaves when it has answered those it has.
    pub draining: bool,
}
