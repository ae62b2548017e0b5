//! The rules; see the module page.

use super::members::Owner;
use super::window::Phase;
use super::{Action, ConsumerId, Dispatcher, PoisonPolicy, Reason};

impl Dispatcher {
    pub(super) fn acknowledge_one(
        &mut self,
        consumer: ConsumerId,
        offset: u64,
        attempt: u32,
        out: &mut Vec<Action>,
    ) -> bool {
        if !self.take_back(consumer, offset, attempt, out) {
            return false;
        }
        self.counts.acked += 1;
        if let Some(next) = self.window.remove(offset) {
            self.send(next, out);
        }
        self.fill(consumer, out);
        true
    }

    pub(super) fn reject_one(
        &mut self,
        consumer: ConsumerId,
        offset: u64,
        attempt: u32,
        out: &mut Vec<Action>,
    ) -> bool {
        if !self.take_back(consumer, offset, attempt, out) {
            return false;
        }
        self.counts.rejected += 1;
        self.fail(offset, Reason::Rejected, out);
        self.fill_all(out);
        true
    }

    /// Ends a delivery that was answered; `false` when it is not in flight.
    pub(super) fn take_back(&mut self, consumer: ConsumerId, offset: u64, attempt: u32, out: &mut Vec<Action>) -> bool {
        if self.holder(offset, attempt) == Some(consumer) {
            self.release(consumer, out);
            return true;
        }
        self.counts.stale += 1;
        false
    }

    /// Who has this delivery of a message in flight.
    fn holder(&self, offset: u64, attempt: u32) -> Option<ConsumerId> {
        let message = self.window.get(offset).filter(|message| message.deliveries == attempt)?;
        if let Phase::InFlight { consumer } = message.phase { Some(consumer) } else { None }
    }

    /// One message less in flight at a consumer.
    pub(super) fn release(&mut self, consumer: ConsumerId, out: &mut Vec<Action>) {
        self.in_flight -= 1;
        if let Some(holder) = self.members.get_mut(consumer) {
            holder.in_flight -= 1;
            if holder.draining {
                self.leave_if_done(consumer, out);
            }
        }
    }

    pub(super) fn leave_if_done(&mut self, consumer: ConsumerId, out: &mut Vec<Action>) {
        if self.members.get_mut(consumer).is_some_and(|one| one.draining && one.in_flight == 0) {
            self.members.remove(&[consumer]);
            out.push(Action::Left { consumer });
        }
    }

    /// A delivery has had its time. If it was not answered, it has failed.
    pub(super) fn time_out(&mut self, offset: u64, attempt: u32, out: &mut Vec<Action>) {
        let Some(consumer) = self.holder(offset, attempt) else { return };
        out.push(Action::TimedOut { consumer, offset, attempt });
        self.counts.timed_out += 1;
        self.release(consumer, out);
        self.fail(offset, Reason::TimedOut, out);
    }

    /// A timer has gone off.
    pub(super) fn expire(&mut self, offset: u64, out: &mut Vec<Action>) {
        if let Phase::Orphaned { .. } = self.window.get_mut(offset).phase {
            self.ownerless.remove(&offset);
            let next = self.skip(offset, out);
            self.enqueue_next(next, out);
        } else {
            self.enqueue(offset, out);
        }
    }

    /// Evicts consumers and gives what they had in flight to others; whether any was here.
    pub(super) fn lose(&mut self, consumers: &[ConsumerId], out: &mut Vec<Action>) -> bool {
        let gone = self.members.remove(consumers);
        if gone.is_empty() {
            return false;
        }
        out.extend(gone.iter().map(|&consumer| Action::Evicted { consumer }));
        self.reroute(out);
        let lost = |phase| matches!(phase, Phase::InFlight { consumer } if gone.contains(&consumer));
        let orphans = self.window.iter().filter(|(_, message)| lost(message.phase)).map(|(offset, _)| offset);
        for offset in orphans.collect::<Vec<_>>() {
            self.in_flight -= 1;
            self.counts.evicted += 1;
            self.fail(offset, Reason::Evicted, out);
        }
        true
    }

    /// A delivery has come to nothing: again, or poison.
    pub(super) fn fail(&mut self, offset: u64, reason: Reason, out: &mut Vec<Action>) {
        let message = self.window.get_mut(offset);
        message.failures += u32::from(reason != Reason::Evicted);
        let spent = message.deliveries - message.forgiven;
        if message.failures >= self.settings.max_tries || spent >= self.settings.max_deliveries {
            return self.poison(offset, reason, out);
        }
        if reason == Reason::Evicted {
            return self.enqueue(offset, out);
        }
        let due_ms = self.now_ms.saturating_add(self.settings.backoff_ms(message.failures));
        message.phase = Phase::Backoff { due_ms };
        self.timers.insert((due_ms, offset));
    }

    pub(super) fn poison(&mut self, offset: u64, reason: Reason, out: &mut Vec<Action>) {
        let message = self.window.get_mut(offset);
        let deliveries = message.deliveries;
        match self.settings.poison {
            PoisonPolicy::Drop => {
                self.counts.dropped += 1;
                out.push(Action::Drop { offset, deliveries, reason });
                self.settle(offset, out);
            }
            PoisonPolicy::DeadLetter => {
                message.phase = Phase::Lettered;
                out.push(Action::DeadLetter { offset, deliveries, reason });
            }
            PoisonPolicy::Block => {
                message.phase = Phase::Blocked;
                out.push(Action::Block { offset, deliveries, reason });
            }
        }
    }

    pub(super) fn skip(&mut self, offset: u64, out: &mut Vec<Action>) -> Option<u64> {
        self.counts.skipped += 1;
        out.push(Action::Skip { offset, deliveries: self.window.get_mut(offset).deliveries });
        self.window.remove(offset)
    }

    /// Takes a message out of the window, and enqueues the next of its key.
    pub(super) fn settle(&mut self, offset: u64, out: &mut Vec<Action>) {
        let next = self.window.remove(offset);
        self.enqueue_next(next, out);
    }

    pub(super) fn enqueue_next(&mut self, next: Option<u64>, out: &mut Vec<Action>) {
        if let Some(next) = next {
            self.enqueue(next, out);
        }
    }

    /// Delivers the first message of a key, or lets it wait for its owner to have room.
    pub(super) fn send(&mut self, offset: u64, out: &mut Vec<Action>) {
        let Some((offset, place)) = self.route(offset, out) else { return };
        let owner = self.members.at(place);
        let (id, first) = (owner.id, (owner.id, 0));
        let others_wait = !self.ready.is_empty() && self.ready.range(first..=(id, u64::MAX)).next().is_some();
        if owner.has_room() && !others_wait {
            self.deliver(id, offset, out);
        } else {
            self.await_room(id, offset);
        }
    }

    /// Lets the first message of a key wait for its owner to have room, even if it has: for when many are routed, and
    /// the oldest of them all is to go first.
    pub(super) fn enqueue(&mut self, offset: u64, out: &mut Vec<Action>) {
        if let Some((offset, place)) = self.route(offset, out) {
            let owner = self.members.at(place).id;
            self.await_room(owner, offset);
        }
    }

    pub(super) fn await_room(&mut self, owner: ConsumerId, offset: u64) {
        self.window.get_mut(offset).phase = Phase::Ready;
        self.ready.insert((owner, offset));
    }

    /// Finds the owner of the first message of a key. Skips it when nobody accepts the key, and then goes on to the
    /// next; `None` when none is left or it has to wait for a consumer.
    pub(super) fn route(&mut self, mut offset: u64, out: &mut Vec<Action>) -> Option<(u64, usize)> {
        loop {
            let message = self.window.get_mut(offset);
            match self.members.owner(message.key(), message.key_hash()) {
                Owner::At(place) => {
                    self.disown(offset, false);
                    return Some((offset, place));
                }
                Owner::Unmatched if message.deliveries == 0 => offset = self.skip(offset, out)?,
                Owner::Unmatched => {
                    self.disown(offset, true);
                    return None;
                }
                Owner::Nobody => {
                    self.disown(offset, false);
                    self.window.get_mut(offset).phase = Phase::Unowned;
                    self.ownerless.insert(offset);
                    return None;
                }
            }
        }
    }

    /// Makes a message an orphan, or makes sure that it is none.
    pub(super) fn disown(&mut self, offset: u64, orphan: bool) {
        let message = self.window.get_mut(offset);
        match message.phase {
            Phase::Orphaned { due_ms } if !orphan => {
                self.timers.remove(&(due_ms, offset));
            }
            // One that is an orphan already stays it until its time is up.
            Phase::Orphaned { .. } => {
                self.ownerless.insert(offset);
            }
            _ if orphan => {
                let due_ms = self.now_ms.saturating_add(self.settings.orphan_hold_ms);
                message.phase = Phase::Orphaned { due_ms };
                self.timers.insert((due_ms, offset));
                self.ownerless.insert(offset);
            }
            _ => {}
        }
    }

    pub(super) fn deliver(&mut self, consumer: ConsumerId, offset: u64, out: &mut Vec<Action>) {
        let Some(owner) = self.members.get_mut(consumer) else { return };
        owner.in_flight += 1;
        let message = self.window.get_mut(offset);
        message.deliveries += 1;
        let due_ms = self.now_ms.saturating_add(self.settings.ack_timeout_ms);
        message.phase = Phase::InFlight { consumer };
        self.deadlines.push(due_ms, offset, message.deliveries);
        self.in_flight += 1;
        self.counts.deliveries += 1;
        out.push(Action::Deliver { consumer, offset, attempt: message.deliveries });
    }

    /// Delivers what waits for a consumer while it has room, the oldest first.
    pub(super) fn fill(&mut self, consumer: ConsumerId, out: &mut Vec<Action>) {
        while let Some(&entry) = self.ready.range((consumer, 0)..=(consumer, u64::MAX)).next() {
            if !self.members.get_mut(consumer).is_some_and(|one| one.has_room()) {
                break;
            }
            self.ready.remove(&entry);
            self.deliver(consumer, entry.1, out);
        }
    }

    pub(super) fn fill_all(&mut self, out: &mut Vec<Action>) {
        let mut from = ConsumerId(0);
        while let Some(&(consumer, _)) = self.ready.range((from, 0)..).next() {
            self.fill(consumer, out);
            from = ConsumerId(consumer.0 + 1);
        }
    }

    /// The ring has changed: messages that wait for an owner may have another now.
    pub(super) fn reroute(&mut self, out: &mut Vec<Action>) {
        let mut waiting = std::mem::take(&mut self.ownerless);
        waiting.extend(std::mem::take(&mut self.ready).into_iter().map(|(_, offset)| offset));
        for offset in waiting {
            self.enqueue(offset, out);
        }
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Action>) {
        self.fill_all(out);
        self.announce(out);
    }

    /// The end of every call.
    pub(super) fn announce(&mut self, out: &mut Vec<Action>) {
        let Self { deadlines, window, .. } = self;
        deadlines.clear_away(self.in_flight, |offset, attempt| {
            window.get(offset).is_some_and(|message| message.is_in_flight(attempt))
        });
        let cursor = self.window.cursor();
        if cursor > self.cursor {
            self.cursor = cursor;
            out.push(Action::Advance { cursor });
        }
    }
}
