//! What a caller may say to a dispatcher, and ask of it. What follows from it is in `steps`.

use std::collections::BTreeSet;

use super::deadlines::Deadlines;
use super::members::{Consumer, Members};
use super::window::{Phase, Window};
use super::{Action, ConsumerId, ConsumerState, Counts, MAX_KEY_BYTES, Settings};
use crate::Error;

/// The state machine of one key-shared subscription.
#[derive(Debug)]
pub struct Dispatcher {
    pub(super) settings: Settings,
    pub(super) members: Members,
    pub(super) window: Window,
    pub(super) deadlines: Deadlines,
    /// How many messages are in flight.
    pub(super) in_flight: usize,
    /// When a further try or the end of waiting for a lost consumer is due, and of which message.
    pub(super) timers: BTreeSet<(u64, u64)>,
    /// Messages in phase `Ready`, under the owner whose room they wait for.
    pub(super) ready: BTreeSet<(ConsumerId, u64)>,
    /// Messages in the phases `Unowned` and `Orphaned`.
    pub(super) ownerless: BTreeSet<u64>,
    pub(super) now_ms: u64,
    /// The cursor as the caller knows it.
    pub(super) cursor: u64,
    pub(super) counts: Counts,
}

impl Dispatcher {
    /// A dispatcher without consumers. Messages up to `cursor` count as settled.
    ///
    /// # Errors
    /// When a setting is outside its limits.
    pub fn new(settings: Settings, cursor: u64) -> Result<Self, Error> {
        settings.check()?;
        Ok(Self {
            members: Members::new(settings.evict_after_ms),
            settings,
            window: Window::new(cursor),
            deadlines: Deadlines::default(),
            in_flight: 0,
            timers: BTreeSet::new(),
            ready: BTreeSet::new(),
            ownerless: BTreeSet::new(),
            now_ms: 0,
            cursor,
            counts: Counts::default(),
        })
    }

    /// Adds a consumer. Without filters it accepts every key; without a capacity it has that of the settings.
    ///
    /// # Errors
    /// When there are [`super::MAX_CONSUMERS`] already, the name is taken or empty or too long, there are more than
    /// [`super::MAX_FILTERS`] filters or one is empty or too long, or the capacity is outside its limits. Then nothing
    /// has changed.
    pub fn join(
        &mut self,
        name: &str,
        filters: &[&str],
        capacity: Option<u32>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<ConsumerId, Error> {
        self.clock(now_ms);
        let capacity = capacity.unwrap_or(self.settings.consumer_capacity);
        let id = self.members.join(name, filters, capacity, self.now_ms)?;
        self.reroute(out);
        self.finish(out);
        Ok(id)
    }

    /// Lets a consumer leave in peace: it gets nothing new, and is gone once it has answered what it has
    /// ([`Action::Left`]). It must go on giving signs of life. Whether it was here and not leaving yet.
    pub fn drain(&mut self, consumer: ConsumerId, now_ms: u64, out: &mut Vec<Action>) -> bool {
        self.clock(now_ms);
        if !self.members.drain(consumer) {
            return false;
        }
        self.leave_if_done(consumer, out);
        self.reroute(out);
        self.finish(out);
        true
    }

    /// Counts a consumer as lost at once, as when its connection closes. Whether it was here.
    pub fn evict(&mut self, consumer: ConsumerId, now_ms: u64, out: &mut Vec<Action>) -> bool {
        self.clock(now_ms);
        let known = self.lose(&[consumer], out);
        self.finish(out);
        known
    }

    /// Notes a sign of life; an answer is one too. `false` when the consumer is not here (any more).
    pub fn heartbeat(&mut self, consumer: ConsumerId, now_ms: u64) -> bool {
        self.clock(now_ms);
        self.members.seen(consumer, self.now_ms)
    }

    /// Takes in messages (offset, row key) in ascending order of their offsets until the window is full; returns how
    /// many were taken. One whose offset is not above all before it has been here, so it is taken and ignored.
    ///
    /// # Errors
    /// When a key is longer than [`MAX_KEY_BYTES`]. Then nothing was taken.
    pub fn offer(&mut self, messages: &[(u64, &str)], now_ms: u64, out: &mut Vec<Action>) -> Result<usize, Error> {
        for (_, key) in messages {
            Error::check_range("key length in bytes", key.len() as u64, 0, MAX_KEY_BYTES as u64)?;
        }
        self.clock(now_ms);
        let mut taken = 0;
        for &(offset, key) in messages {
            if offset <= self.window.last() {
                self.counts.repeated += 1;
            } else if self.room() == 0 {
                break;
            } else {
                self.counts.offered += 1;
                if self.window.push(offset, key) {
                    self.send(offset, out);
                }
            }
            taken += 1;
        }
        self.announce(out);
        Ok(taken)
    }

    /// A consumer's answers (offset, attempt): these messages are done with. Says of each whether it counted: an answer
    /// to a delivery that is not in flight at this consumer does not.
    pub fn acknowledge(
        &mut self,
        consumer: ConsumerId,
        answers: &[(u64, u32)],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Vec<bool> {
        self.clock(now_ms);
        self.members.seen(consumer, self.now_ms);
        let counted = answers.iter().map(|&(offset, attempt)| self.acknowledge_one(consumer, offset, attempt, out));
        let counted = counted.collect();
        self.announce(out);
        counted
    }

    /// A consumer's answers (offset, attempt): these deliveries failed. Says of each whether it counted.
    pub fn reject(
        &mut self,
        consumer: ConsumerId,
        answers: &[(u64, u32)],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Vec<bool> {
        self.clock(now_ms);
        self.members.seen(consumer, self.now_ms);
        let counted = answers.iter().map(|&(offset, attempt)| self.reject_one(consumer, offset, attempt, out));
        let counted = counted.collect();
        self.finish(out);
        counted
    }

    /// Settles a message that was published as asked for by [`Action::DeadLetter`]. Whether it was waiting for that.
    pub fn dead_lettered(&mut self, offset: u64, now_ms: u64, out: &mut Vec<Action>) -> bool {
        self.clock(now_ms);
        if !self.is_in(offset, Phase::Lettered) {
            return false;
        }
        self.counts.dead_lettered += 1;
        self.settle(offset, out);
        self.finish(out);
        true
    }

    /// Tries a blocked message again, as if it had never failed. Whether it was blocked.
    pub fn unblock(&mut self, offset: u64, now_ms: u64, out: &mut Vec<Action>) -> bool {
        self.clock(now_ms);
        if !self.is_in(offset, Phase::Blocked) {
            return false;
        }
        let message = self.window.get_mut(offset);
        message.failures = 0;
        message.forgiven = message.deliveries;
        self.enqueue(offset, out);
        self.finish(out);
        true
    }

    /// Gives up a blocked message. Whether it was blocked.
    pub fn discard(&mut self, offset: u64, now_ms: u64, out: &mut Vec<Action>) -> bool {
        self.clock(now_ms);
        if !self.is_in(offset, Phase::Blocked) {
            return false;
        }
        self.counts.dropped += 1;
        self.settle(offset, out);
        self.finish(out);
        true
    }

    /// Does what is due by `now_ms`: evictions, time-outs, further tries, the end of waiting for a lost consumer.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.clock(now_ms);
        // First, so that nothing is delivered to a consumer that is lost.
        let lost = self.members.overdue(self.now_ms);
        if !lost.is_empty() {
            self.lose(&lost, out);
        }
        while let Some((offset, attempt)) = self.deadlines.pop_due(self.now_ms) {
            self.time_out(offset, attempt, out);
        }
        while let Some(&(due_ms, offset)) = self.timers.first() {
            if due_ms > self.now_ms {
                break;
            }
            self.timers.pop_first();
            self.expire(offset, out);
        }
        self.finish(out);
    }

    /// When [`Dispatcher::tick`] may have something to do next; `None` when time alone changes nothing.
    #[must_use]
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let timer = self.timers.first().map(|&(due_ms, _)| due_ms);
        timer.into_iter().chain(self.deadlines.first_ms()).chain(self.members.check_ms()).min()
    }

    /// The acknowledgement frontier: every message up to here is settled.
    #[must_use]
    pub const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The highest offset that arrived.
    #[must_use]
    pub const fn last_offset(&self) -> u64 {
        self.window.last()
    }

    /// How many messages may be offered now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.settings.window as usize - self.window.len()
    }

    /// Messages in flight.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Messages that are not settled.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.window.len()
    }

    /// What happened so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The offsets of blocked messages, ascending.
    #[must_use]
    pub fn blocked(&self) -> Vec<u64> {
        self.window.iter().filter(|(_, message)| message.phase == Phase::Blocked).map(|(offset, _)| offset).collect()
    }

    /// The consumers, in the order in which they joined.
    #[must_use]
    pub fn consumers(&self) -> Vec<ConsumerState> {
        let waiting = |id| self.ready.range((id, 0)..=(id, u64::MAX)).count();
        let state = |one: &Consumer| ConsumerState {
            id: one.id,
            name: one.name.to_string(),
            capacity: one.capacity,
            in_flight: one.in_flight,
            waiting: u32::try_from(waiting(one.id)).unwrap_or(u32::MAX),
            draining: one.draining,
        };
        self.members.iter().map(state).collect()
    }

    fn clock(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    fn is_in(&self, offset: u64, phase: Phase) -> bool {
        self.window.get(offset).is_some_and(|message| message.phase == phase)
    }
}
