//! Key-shared dispatch: many consumers share one subscription, and the messages of one row key stay in order.
//!
//! A [`Dispatcher`] decides and does nothing else. The caller tells it what happened (a consumer joined, messages
//! arrived, a delivery was acknowledged, time passed) and does what the returned [`Action`]s say. Time comes in as whole
//! milliseconds of any clock that does not run backwards; one that does is taken to stand still.
//!
//! # Rules
//!
//! 1. **Owner.** Of the consumers whose [filters](KeyFilter) accept a key, the consistent ring of
//!    [`crate::ring`] chooses one, at the moment of delivery.
//! 2. **One in flight a key.** The next message of a key is delivered once the one before it is settled: acknowledged,
//!    dropped, dead-lettered or skipped. A new owner changes nothing about that, so the order of a key survives every
//!    rebalancing: a message in flight is waited for, wherever it is.
//! 3. **Nothing is settled by the loss of a consumer.** What an evicted consumer had in flight goes to the key's next
//!    owner at once. Where no other consumer accepts the key it is kept for [`Settings::orphan_hold_ms`], in case the
//!    lost one comes back.
//! 4. **Cursor.** The acknowledgement frontier: every message at or below it is settled. It is the place to resume from.
//!    Offsets may leave gaps, as those of a filtered stream do; what never arrived holds nothing up.
//! 5. **A key that nobody accepts** is skipped when its message comes up, and the cursor passes it. Where there is no
//!    consumer at all, messages wait.
//! 6. **Bounds.** At most [`Settings::window`] messages are unsettled, and [`Dispatcher::offer`] takes no more: that is
//!    the back-pressure. A consumer has at most its capacity in flight; keys wait for it, oldest message first.
//! 7. **Failures.** A rejected or timed-out delivery is tried again after a back-off that doubles, up to
//!    [`Settings::max_tries`] failures; then the [`PoisonPolicy`] decides. Evictions do not count as failures, but a
//!    message that has been delivered [`Settings::max_deliveries`] times for whatever reasons is poison too: it may be
//!    what its consumers die of. Meanwhile its key waits, and other keys go on.
//! 8. **Fencing.** Each delivery of a message has a number, and an answer counts only for the delivery in flight.
//!
//! [`Router`] is the variant without any of the bookkeeping: a message goes to the key's owner or is lost.
//!
//! Where this differs from the usual design, in which eviction counts as acknowledgement, rules 2 and 3 are the point.

mod action;
mod deadlines;
mod dispatcher;
mod filter;
mod members;
mod router;
mod settings;
mod state;
mod steps;
mod window;

pub use action::{Action, Reason};
pub use dispatcher::Dispatcher;
pub use filter::KeyFilter;
pub use members::ConsumerId;
pub use router::{Route, Routed, Router};
pub use settings::{PoisonPolicy, Settings};
pub use state::{ConsumerState, Counts};

use crate::{MAX_ROW_ID_BYTES, MAX_SLOTS};

/// Most consumers of one dispatcher.
pub const MAX_CONSUMERS: u32 = MAX_SLOTS;
/// Longest consumer name, in bytes of UTF-8.
pub const MAX_CONSUMER_NAME_BYTES: usize = MAX_ROW_ID_BYTES;
/// Most filters of one consumer.
pub const MAX_FILTERS: usize = 64;
/// Longest filter, in bytes of UTF-8: that of a row id, since a filter may be one.
pub const MAX_FILTER_BYTES: usize = MAX_ROW_ID_BYTES;
/// Longest row key, in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = MAX_ROW_ID_BYTES;
/// Most unsettled messages of one dispatcher, and most in flight at one consumer.
pub const MAX_WINDOW: u32 = 1 << 20;
/// Most deliveries of one message.
pub const MAX_DELIVERIES: u32 = 1000;
/// Longest of the times in [`Settings`]: one day.
pub const MAX_SETTING_MS: u64 = 24 * 60 * 60 * 1000;
