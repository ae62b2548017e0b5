//! Judges a history by the rules alone: it knows nothing of the dispatcher but what was said and answered.

use std::collections::BTreeMap;

use ringcast_core::dispatch::{Action, ConsumerId, PoisonPolicy, Reason, Settings};
use ringcast_core::ring::{VIRTUAL_NODES, ring_hash};

use crate::history::{Event, History, KEYS, NAMES};

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Waiting,
    InFlight { consumer: ConsumerId, since_ms: u64 },
    Backoff { until_ms: u64 },
    Orphan { since_ms: u64 },
    Lettered,
    Blocked,
    Settled,
}

#[derive(Debug)]
struct Message {
    key: &'static str,
    state: State,
    deliveries: u32,
    forgiven: u32,
    failures: u32,
    /// A delivery failed, and what follows from it is still to come in the same call.
    failed: Option<Reason>,
}

#[derive(Debug)]
struct Consumer {
    name: &'static str,
    filters: &'static [&'static str],
    capacity: u32,
    seen_ms: u64,
    draining: bool,
}

/// How every message ended.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub offered: u64,
    pub deliveries: u64,
    pub acked: u64,
    pub dropped: u64,
    pub dead_lettered: u64,
    pub skipped: u64,
    pub unsettled: u64,
    pub full_window: u64,
    pub full_consumer: u64,
    pub moved_keys: u64,
}

struct Checker<'a> {
    settings: &'a Settings,
    owners: &'a Owners,
    now_ms: u64,
    ticked_ms: u64,
    consumers: BTreeMap<ConsumerId, Consumer>,
    messages: BTreeMap<u64, Message>,
    last_owner: BTreeMap<&'static str, ConsumerId>,
    /// Asked for in this call.
    evicting: Option<ConsumerId>,
    cursor: u64,
    tally: Tally,
}

/// How far clockwise of each key the nearest point of each name is.
pub struct Owners(BTreeMap<(&'static str, &'static str), u32>);

impl Owners {
    pub fn new() -> Self {
        let distance = |name: &str, key: &str| {
            let hash = ring_hash(key.as_bytes());
            let point = |vnode: u32| ring_hash(format!("{name}-{vnode}").as_bytes()).wrapping_sub(hash);
            (0..VIRTUAL_NODES).map(point).min().unwrap()
        };
        let pairs = NAMES.into_iter().flat_map(|name| KEYS.into_iter().map(move |key| (name, key)));
        Self(pairs.map(|(name, key)| ((name, key), distance(name, key))).collect())
    }
}

/// Whether a pattern of `*` and `?` stands for a text: the definition.
pub fn stands_for(pattern: &[char], text: &[char]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((&'*', rest)), None) => stands_for(rest, text),
        (Some((&'*', rest)), Some((_, shorter))) => stands_for(rest, text) || stands_for(pattern, shorter),
        (Some((&one, rest)), Some((&first, shorter))) => (one == '?' || one == first) && stands_for(rest, shorter),
        _ => false,
    }
}

/// What the rules say of a history: how all messages ended, or the first thing that is wrong.
pub fn judge(history: &History, owners: &Owners) -> Result<Tally, String> {
    let mut checker = Checker {
        settings: &history.settings,
        owners,
        now_ms: 0,
        ticked_ms: 0,
        consumers: BTreeMap::new(),
        messages: BTreeMap::new(),
        last_owner: BTreeMap::new(),
        evicting: None,
        cursor: history.start,
        tally: Tally::default(),
    };
    for (index, (now_ms, event)) in history.events.iter().enumerate() {
        checker.now_ms = *now_ms;
        checker.take(event).map_err(|wrong| format!("event {index} at {now_ms} ms, {event:?}: {wrong}"))?;
    }
    checker.tally.unsettled = checker.unsettled().count() as u64;
    Ok(checker.tally)
}

fn ensure(right: bool, wrong: &str) -> Result<(), String> {
    if right { Ok(()) } else { Err(wrong.to_owned()) }
}

impl Checker<'_> {
    fn take(&mut self, event: &Event) -> Result<(), String> {
        let now_ms = self.now_ms;
        match *event {
            Event::Join { id, name, filters, capacity } => {
                let consumer = Consumer { name, filters, capacity, seen_ms: now_ms, draining: false };
                ensure(self.consumers.insert(id, consumer).is_none(), "an id is used twice")?;
            }
            Event::Drain(id) => {
                if let Some(consumer) = self.consumers.get_mut(&id) {
                    consumer.draining = true;
                }
            }
            Event::Evict(id) => self.evicting = Some(id),
            Event::Heartbeat(id) => self.seen(id),
            Event::Offer { offset, key } => {
                let message =
                    Message { key, state: State::Waiting, deliveries: 0, forgiven: 0, failures: 0, failed: None };
                self.messages.insert(offset, message);
                self.tally.offered += 1;
            }
            Event::Answer { consumer, offset, attempt, accept, counted } => {
                self.answer(consumer, offset, attempt, accept, counted)?;
            }
            Event::Lettered(offset) => {
                self.settle(offset, State::Lettered)?;
                self.tally.dead_lettered += 1;
            }
            Event::Unblock(offset) => {
                let message = self.message(offset)?;
                ensure(message.state == State::Blocked, "unblocked what was not blocked")?;
                (message.state, message.failures, message.forgiven) = (State::Waiting, 0, message.deliveries);
            }
            Event::Discard(offset) => {
                self.settle(offset, State::Blocked)?;
                self.tally.dropped += 1;
            }
            Event::Tick => self.ticked_ms = now_ms,
            Event::Did(action) => self.did(action)?,
            Event::Done { cursor, room, deadline_ms } => self.done(cursor, room, deadline_ms)?,
        }
        Ok(())
    }

    fn answer(&mut self, id: ConsumerId, offset: u64, attempt: u32, accept: bool, told: bool) -> Result<(), String> {
        self.seen(id);
        let current = self.messages.get_mut(&offset).filter(|message| {
            matches!(message.state, State::InFlight { consumer, .. } if consumer == id && message.deliveries == attempt)
        });
        ensure(current.is_some() == told, "an answer counts for the delivery in flight, and for no other")?;
        let Some(message) = current else { return Ok(()) };
        if accept {
            message.state = State::Settled;
            self.tally.acked += 1;
        } else {
            message.failed = Some(Reason::Rejected);
        }
        self.follow(offset);
        Ok(())
    }

    fn did(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Deliver { consumer, offset, attempt } => self.deliver(consumer, offset, attempt),
            Action::TimedOut { consumer, offset, attempt } => {
                let (now_ms, limit_ms) = (self.now_ms, self.settings.ack_timeout_ms);
                let message = self.message(offset)?;
                let State::InFlight { consumer: holder, since_ms } = message.state else {
                    return Err("timed out what is not in flight".to_owned());
                };
                ensure(holder == consumer && message.deliveries == attempt, "timed out another delivery")?;
                ensure(now_ms >= since_ms + limit_ms, "timed out too early")?;
                message.failed = Some(Reason::TimedOut);
                self.follow(offset);
                Ok(())
            }
            Action::Drop { offset, deliveries, reason } => {
                self.poisoned(offset, deliveries, reason, PoisonPolicy::Drop)?;
                self.message(offset)?.state = State::Settled;
                self.tally.dropped += 1;
                Ok(())
            }
            Action::DeadLetter { offset, deliveries, reason } => {
                self.poisoned(offset, deliveries, reason, PoisonPolicy::DeadLetter)?;
                self.message(offset)?.state = State::Lettered;
                Ok(())
            }
            Action::Block { offset, deliveries, reason } => {
                self.poisoned(offset, deliveries, reason, PoisonPolicy::Block)?;
                self.message(offset)?.state = State::Blocked;
                Ok(())
            }
            Action::Skip { offset, deliveries } => self.skip(offset, deliveries),
            Action::Evicted { consumer } => self.evict(consumer),
            Action::Left { consumer } => {
                ensure(self.held(consumer) == 0, "left with messages in flight")?;
                let known = self.consumers.remove(&consumer);
                ensure(known.is_some_and(|one| one.draining), "left without having been asked to")
            }
            Action::Advance { cursor } => {
                ensure(cursor > self.cursor, "the cursor does not rise")?;
                ensure(self.unsettled().all(|offset| offset > cursor), "the cursor passes an unsettled message")?;
                self.cursor = cursor;
                Ok(())
            }
        }
    }

    fn deliver(&mut self, id: ConsumerId, offset: u64, attempt: u32) -> Result<(), String> {
        let now_ms = self.now_ms;
        let key = self.message(offset)?.key;
        let consumer = self.consumers.get(&id).ok_or("delivered to a consumer that is not here")?;
        ensure(!consumer.draining, "delivered to a consumer that is leaving")?;
        ensure(self.held(id) < consumer.capacity, "delivered above the consumer's capacity")?;
        ensure(self.owner(key) == Some(id), "delivered to another than the owner of the key")?;
        let before = self.messages.range(..offset).all(|(_, one)| one.key != key || one.state == State::Settled);
        ensure(before, "delivered before an earlier message of the key is settled")?;
        ensure(!self.older_waits(id, offset), "delivered though an older message waits for the consumer")?;
        let ticked_ms = self.ticked_ms;
        let message = self.message(offset)?;
        match message.state {
            State::Waiting | State::Orphan { .. } => {}
            State::Backoff { until_ms } => ensure(ticked_ms >= until_ms, "delivered again too early")?,
            State::InFlight { .. } => return Err("delivered while it is in flight".to_owned()),
            State::Lettered | State::Blocked => return Err("delivered while it is poison".to_owned()),
            State::Settled => return Err("delivered after it was settled".to_owned()),
        }
        ensure(attempt == message.deliveries + 1, "deliveries are not numbered in turn")?;
        message.deliveries = attempt;
        message.state = State::InFlight { consumer: id, since_ms: now_ms };
        self.tally.deliveries += 1;
        if self.last_owner.insert(key, id).is_some_and(|last| last != id) {
            self.tally.moved_keys += 1;
        }
        Ok(())
    }

    /// Whether the first message of another key, and older than `offset`, could go to this consumer.
    fn older_waits(&self, id: ConsumerId, offset: u64) -> bool {
        let mut keys = Vec::new();
        for (_, message) in self.messages.range(..offset).filter(|(_, one)| one.state != State::Settled) {
            let free = match message.state {
                State::Waiting | State::Orphan { .. } => true,
                State::Backoff { until_ms } => until_ms <= self.ticked_ms,
                _ => false,
            };
            if free && !keys.contains(&message.key) && self.owner(message.key) == Some(id) {
                return true;
            }
            keys.push(message.key);
        }
        false
    }

    /// A delivery failed: the message waits for its next try unless the next action says that it is poison.
    fn follow(&mut self, offset: u64) {
        let (settings, now_ms) = (self.settings, self.now_ms);
        let Some(message) = self.messages.get_mut(&offset) else { return };
        match message.failed {
            None => {}
            Some(Reason::Evicted) => message.state = State::Waiting,
            Some(Reason::Rejected | Reason::TimedOut) => {
                message.failures += 1;
                let wait_ms = settings.backoff_first_ms * 2_u64.pow(message.failures - 1);
                message.state = State::Backoff { until_ms: now_ms + wait_ms.min(settings.backoff_most_ms) };
            }
        }
        if !exhausted(settings, message) {
            message.failed = None;
        }
    }

    fn poisoned(&mut self, offset: u64, deliveries: u32, why: Reason, policy: PoisonPolicy) -> Result<(), String> {
        let settings = self.settings;
        ensure(settings.poison == policy, "another poison policy")?;
        let message = self.message(offset)?;
        ensure(message.deliveries == deliveries, "another number of deliveries")?;
        ensure(message.failed.take() == Some(why), "poison for another reason, or too early")
    }

    fn skip(&mut self, offset: u64, deliveries: u32) -> Result<(), String> {
        let (now_ms, hold_ms) = (self.now_ms, self.settings.orphan_hold_ms);
        let key = self.message(offset)?.key;
        ensure(self.owner(key).is_none(), "skipped though somebody accepts the key")?;
        ensure(self.consumers.values().any(|one| !one.draining), "skipped while there is no consumer")?;
        let message = self.message(offset)?;
        ensure(message.deliveries == deliveries, "another number of deliveries")?;
        match message.state {
            State::Waiting if deliveries == message.forgiven && deliveries == 0 => {}
            State::Orphan { since_ms } => ensure(now_ms >= since_ms + hold_ms, "skipped too early")?,
            _ => return Err("skipped a message that is not waiting for its first owner".to_owned()),
        }
        message.state = State::Settled;
        self.tally.skipped += 1;
        Ok(())
    }

    fn evict(&mut self, id: ConsumerId) -> Result<(), String> {
        let gone = self.consumers.remove(&id).ok_or("evicted a consumer that is not here")?;
        let silent = self.now_ms >= gone.seen_ms + self.settings.evict_after_ms;
        ensure(silent || self.evicting == Some(id), "evicted a consumer that gives signs of life")?;
        let held = |one: &Message| matches!(one.state, State::InFlight { consumer, .. } if consumer == id);
        let held: Vec<u64> = self.messages.iter().filter(|(_, one)| held(one)).map(|(&offset, _)| offset).collect();
        for offset in held {
            self.message(offset)?.failed = Some(Reason::Evicted);
            self.follow(offset);
        }
        Ok(())
    }

    /// What must be true after every call.
    fn done(&mut self, cursor: u64, room: usize, deadline_ms: Option<u64>) -> Result<(), String> {
        self.evicting = None;
        let frontier = self.unsettled().next();
        let arrived = self.messages.keys().copied();
        let settled = arrived.take_while(|&offset| frontier.is_none_or(|first| offset < first)).last();
        let settled = settled.unwrap_or(self.cursor).max(self.cursor);
        ensure(cursor == self.cursor, "the cursor was not announced as it is")?;
        ensure(cursor == settled, "the cursor lags behind what is settled")?;
        let unsettled = self.unsettled().count();
        ensure(unsettled + room == self.settings.window as usize, "unsettled messages and room are not the window")?;
        self.tally.full_window += u64::from(room == 0);
        ensure(self.messages.values().all(|one| one.failed.is_none()), "poison was not dealt with")?;
        self.nothing_lies_about(deadline_ms)
    }

    /// Every key that may be delivered is, and whatever waits for time has a deadline.
    fn nothing_lies_about(&mut self, deadline_ms: Option<u64>) -> Result<(), String> {
        let mut heads: BTreeMap<&str, u64> = BTreeMap::new();
        for (&offset, message) in self.messages.iter().filter(|(_, one)| one.state != State::Settled) {
            heads.entry(message.key).or_insert(offset);
        }
        let anybody = self.consumers.values().any(|one| !one.draining);
        let mut due_ms = self.consumers.values().map(|one| one.seen_ms + self.settings.evict_after_ms).min();
        ensure(due_ms.is_none_or(|due| due > self.ticked_ms), "a silent consumer was not evicted")?;
        for (key, offset) in heads {
            let owner = self.owner(key);
            let (now_ms, ticked_ms, settings) = (self.now_ms, self.ticked_ms, self.settings);
            let message = self.message(offset)?;
            let wait = match message.state {
                State::Backoff { until_ms } if until_ms > ticked_ms => Some(until_ms),
                State::InFlight { since_ms, .. } => Some(since_ms + settings.ack_timeout_ms),
                State::Lettered | State::Blocked => None,
                _ => match owner {
                    Some(id) => {
                        message.state = State::Waiting;
                        let capacity = self.consumers[&id].capacity;
                        ensure(self.held(id) >= capacity, "a key lies about though its owner has room")?;
                        self.tally.full_consumer += 1;
                        None
                    }
                    None if !anybody => {
                        message.state = State::Waiting;
                        None
                    }
                    None => {
                        ensure(message.deliveries > 0, "a key that nobody accepts was not skipped")?;
                        if !matches!(message.state, State::Orphan { .. }) {
                            message.state = State::Orphan { since_ms: now_ms };
                        }
                        let State::Orphan { since_ms } = message.state else { unreachable!() };
                        Some(since_ms + settings.orphan_hold_ms)
                    }
                },
            };
            if let Some(wait) = wait {
                ensure(wait > self.ticked_ms, "what was due was not done")?;
                due_ms = Some(due_ms.map_or(wait, |due| due.min(wait)));
            }
        }
        let in_time = due_ms.is_none_or(|due| deadline_ms.is_some_and(|deadline| deadline <= due));
        ensure(in_time, "the next deadline is too late")
    }

    fn seen(&mut self, id: ConsumerId) {
        if let Some(consumer) = self.consumers.get_mut(&id) {
            consumer.seen_ms = self.now_ms;
        }
    }

    fn settle(&mut self, offset: u64, from: State) -> Result<(), String> {
        let message = self.message(offset)?;
        ensure(message.state == from, "settled from another state")?;
        message.state = State::Settled;
        Ok(())
    }

    fn message(&mut self, offset: u64) -> Result<&mut Message, String> {
        self.messages.get_mut(&offset).ok_or_else(|| "a message that was never offered".to_owned())
    }

    fn unsettled(&self) -> impl Iterator<Item = u64> {
        self.messages.iter().filter(|(_, one)| one.state != State::Settled).map(|(&offset, _)| offset)
    }

    fn held(&self, id: ConsumerId) -> u32 {
        let held = |one: &&Message| matches!(one.state, State::InFlight { consumer, .. } if consumer == id);
        u32::try_from(self.messages.values().filter(held).count()).unwrap()
    }

    /// The nearest clockwise of those that accept the key.
    fn owner(&self, key: &'static str) -> Option<ConsumerId> {
        let text: Vec<char> = key.chars().collect();
        let accepts = |one: &Consumer| {
            one.filters.is_empty()
                || one.filters.iter().any(|filter| stands_for(&filter.chars().collect::<Vec<_>>(), &text))
        };
        let eligible = self.consumers.iter().filter(|(_, one)| !one.draining && accepts(one));
        eligible.min_by_key(|(_, one)| (self.owners.0[&(one.name, key)], one.name)).map(|(&id, _)| id)
    }
}

fn exhausted(settings: &Settings, message: &Message) -> bool {
    let spent = message.deliveries - message.forgiven;
    message.failures >= settings.max_tries || spent >= settings.max_deliveries
}
