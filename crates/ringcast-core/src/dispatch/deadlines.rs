//! By when deliveries must be answered.

use std::collections::VecDeque;

/// The deliveries in flight, by the time at which they have had theirs. That is the order of delivery, since each is
/// given the same time. One that is answered stays until it is first or there are too many of them.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    queue: VecDeque<Deadline>,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    due_ms: u64,
    offset: u64,
    attempt: u32,
}

/// So many answered deliveries may stand among those in flight before they are cleared away.
const MOST_ANSWERED: usize = 64;

impl Deadlines {
    /// Adds a delivery that is due no earlier than all before it.
    pub fn push(&mut self, due_ms: u64, offset: u64, attempt: u32) {
        self.queue.push_back(Deadline { due_ms, offset, attempt });
    }

    /// Takes out the first delivery if it is due; its offset and attempt. It may have been answered.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<(u64, u32)> {
        let first = self.queue.front().filter(|first| first.due_ms <= now_ms).copied()?;
        self.queue.pop_front();
        Some((first.offset, first.attempt))
    }

    /// When the first delivery is due; right after [`Deadlines::clear_away`].
    pub fn first_ms(&self) -> Option<u64> {
        self.queue.front().map(|first| first.due_ms)
    }

    /// Keeps the first delivery one in flight, and the answered ones among the others few.
    pub fn clear_away(&mut self, in_flight: usize, is_in_flight: impl Fn(u64, u32) -> bool) {
        while self.queue.front().is_some_and(|first| !is_in_flight(first.offset, first.attempt)) {
            self.queue.pop_front();
        }
        if self.queue.len() > MOST_ANSWERED + 2 * in_flight {
            self.queue.retain(|one| is_in_flight(one.offset, one.attempt));
        }
    }
}
