//! What a dispatcher asks of its caller.

use super::ConsumerId;

/// Why a message is poison: what became of its last delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The consumer refused it.
    Rejected,
    /// The consumer gave no answer in time.
    TimedOut,
    /// The consumer was lost with it.
    Evicted,
}

impl Reason {
    /// The reason as text. It never changes once released.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::TimedOut => "timed_out",
            Self::Evicted => "evicted",
        }
    }
}

/// One thing to do or to know, in the order in which they came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Hand the message to the consumer. The consumer answers with the same three values.
    Deliver {
        /// Who gets it.
        consumer: ConsumerId,
        /// Which message.
        offset: u64,
        /// Number of this delivery of the message: 1, then 2 and so on when it is delivered again.
        attempt: u32,
    },
    /// No answer came in time: an answer to this delivery counts no more. The message is tried again, or is poison.
    TimedOut {
        /// Who had it.
        consumer: ConsumerId,
        /// Which message.
        offset: u64,
        /// Which delivery of it.
        attempt: u32,
    },
    /// Publish the message as a dead letter, then call [`super::Dispatcher::dead_lettered`]. Until then it is unsettled.
    DeadLetter {
        /// Which message.
        offset: u64,
        /// How often it was delivered.
        deliveries: u32,
        /// What became of the last delivery.
        reason: Reason,
    },
    /// The message is given up and settled.
    Drop {
        /// Which message.
        offset: u64,
        /// How often it was delivered.
        deliveries: u32,
        /// What became of the last delivery.
        reason: Reason,
    },
    /// The message and its key stand still until [`super::Dispatcher::unblock`] or [`super::Dispatcher::discard`].
    Block {
        /// Which message.
        offset: u64,
        /// How often it was delivered.
        deliveries: u32,
        /// What became of the last delivery.
        reason: Reason,
    },
    /// No consumer accepts the message's key: it is settled.
    Skip {
        /// Which message.
        offset: u64,
        /// How often it was delivered, to consumers that are gone now.
        deliveries: u32,
    },
    /// The consumer is lost. What it had in flight is being delivered to others.
    Evicted {
        /// Which consumer.
        consumer: ConsumerId,
    },
    /// A draining consumer has answered everything and is gone.
    Left {
        /// Which consumer.
        consumer: ConsumerId,
    },
    /// Every message up to here is settled. At most one in a list, and the last.
    Advance {
        /// The new cursor.
        cursor: u64,
    },
}
