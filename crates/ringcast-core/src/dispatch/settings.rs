//! The numbers that a dispatcher goes by.

use super::{MAX_DELIVERIES, MAX_SETTING_MS, MAX_WINDOW};
use crate::Error;

/// What becomes of a message that has failed as often as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoisonPolicy {
    /// It is given up, and the cursor passes it.
    Drop,
    /// It is settled once the caller has published it elsewhere.
    DeadLetter,
    /// It holds its key, and so the cursor, until someone decides. Other keys go on while the window has room.
    Block,
}

/// The numbers that a dispatcher goes by. Times are in milliseconds, from 1 to one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Most unsettled messages, in flight or waiting: 1 to [`MAX_WINDOW`].
    pub window: u32,
    /// Most messages in flight at a consumer that names no capacity of its own: 1 to [`MAX_WINDOW`].
    pub consumer_capacity: u32,
    /// How long a consumer may take to answer a delivery.
    pub ack_timeout_ms: u64,
    /// Rejected and timed-out deliveries after which a message is poison: 1 to `max_deliveries`.
    pub max_tries: u32,
    /// Deliveries of any outcome after which a message is poison: 1 to [`MAX_DELIVERIES`].
    pub max_deliveries: u32,
    /// Wait after the first failure; it doubles with each.
    pub backoff_first_ms: u64,
    /// Longest wait between two tries: at least `backoff_first_ms`.
    pub backoff_most_ms: u64,
    /// What becomes of poison.
    pub poison: PoisonPolicy,
    /// A consumer that has given no sign of life for so long is evicted.
    pub evict_after_ms: u64,
    /// How long a message that was delivered before waits for a consumer that accepts its key.
    pub orphan_hold_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            window: 10_000,
            consumer_capacity: 1_000,
            ack_timeout_ms: 30_000,
            max_tries: 5,
            max_deliveries: 20,
            backoff_first_ms: 1_000,
            backoff_most_ms: 30_000,
            poison: PoisonPolicy::Drop,
            evict_after_ms: 3_000,
            orphan_hold_ms: 30_000,
        }
    }
}

impl Settings {
    /// Refuses what is outside the limits given with each field.
    pub(super) fn check(&self) -> Result<(), Error> {
        Error::check_range("window", self.window.into(), 1, MAX_WINDOW.into())?;
        check_capacity("consumer_capacity", self.consumer_capacity)?;
        Error::check_range("max_deliveries", self.max_deliveries.into(), 1, MAX_DELIVERIES.into())?;
        Error::check_range("max_tries", self.max_tries.into(), 1, self.max_deliveries.into())?;
        check_ms("ack_timeout_ms", self.ack_timeout_ms)?;
        check_ms("backoff_first_ms", self.backoff_first_ms)?;
        Error::check_range("backoff_most_ms", self.backoff_most_ms, self.backoff_first_ms, MAX_SETTING_MS)?;
        check_ms("evict_after_ms", self.evict_after_ms)?;
        check_ms("orphan_hold_ms", self.orphan_hold_ms)
    }

    /// The wait after the `failures`-th failure, which is 1 or more.
    pub(super) fn backoff_ms(&self, failures: u32) -> u64 {
        // A day is less than 2^27 ms, so 2^27 times any wait is above the longest.
        let doubled = self.backoff_first_ms << (failures - 1).min(27);
        doubled.min(self.backoff_most_ms)
    }
}

pub(super) fn check_capacity(field: &'static str, capacity: u32) -> Result<(), Error> {
    Error::check_range(field, capacity.into(), 1, MAX_WINDOW.into())
}

pub(super) fn check_ms(field: &'static str, ms: u64) -> Result<(), Error> {
    Error::check_range(field, ms, 1, MAX_SETTING_MS)
}
