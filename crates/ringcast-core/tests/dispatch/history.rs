//! What was said to a dispatcher and what it answered, and a generator of random schedules.

use ringcast_core::dispatch::{Action, ConsumerId, Dispatcher, PoisonPolicy, Settings};

/// Keys and names are few, so that everything meets everything.
pub const KEYS: [&str; 6] = ["a1", "a2", "b1", "b2", "c1", "日1"];
pub const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
const FILTERS: [&[&str]; 7] = [&[], &["*"], &["a*"], &["?1"], &["b1", "c*"], &["*2"], &["nothing"]];

/// One thing that was said to the dispatcher, or an action of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Join {
        id: ConsumerId,
        name: &'static str,
        filters: &'static [&'static str],
        capacity: u32,
    },
    Drain(ConsumerId),
    Evict(ConsumerId),
    Heartbeat(ConsumerId),
    Offer {
        offset: u64,
        key: &'static str,
    },
    Answer {
        consumer: ConsumerId,
        offset: u64,
        attempt: u32,
        accept: bool,
        counted: bool,
    },
    Lettered(u64),
    Unblock(u64),
    Discard(u64),
    Tick,
    Did(Action),
    /// The call is over; the cursor as the dispatcher states it.
    Done {
        cursor: u64,
        room: usize,
        deadline_ms: Option<u64>,
    },
}

/// What happened, each with its time.
#[derive(Debug, Clone)]
pub struct History {
    pub settings: Settings,
    pub start: u64,
    pub events: Vec<(u64, Event)>,
}

/// `SplitMix64` (Steele, Lea and Flood, 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).unwrap()
    }

    fn ms(&mut self, bound: u32) -> u64 {
        self.below(bound).into()
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { Some(&items[self.below(u32::try_from(items.len()).unwrap()) as usize]) }
    }
}

/// Ways to run a dispatcher wrongly, by telling it something that did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// What an evicted consumer had in flight counts as acknowledged.
    EvictionAcknowledges,
    /// A key whose owner changes is not held: what is in flight is forgotten when somebody joins.
    JoinForgets,
    /// A timed-out delivery counts as acknowledged.
    TimeOutAcknowledges,
    /// A reject counts as an acknowledgement.
    RejectAcknowledges,
}

/// A dispatcher, its consumers and what they do.
pub struct World {
    pub dispatcher: Dispatcher,
    pub history: History,
    pub fault: Option<Fault>,
    /// Whether the fault has come about.
    pub faulty: bool,
    pub in_flight: Vec<(ConsumerId, u64, u32)>,
    letters: Vec<u64>,
    blocked: Vec<u64>,
    live: Vec<(ConsumerId, &'static str)>,
    next_offset: u64,
    now_ms: u64,
}

impl World {
    pub fn new(random: &mut Random, fault: Option<Fault>) -> Self {
        let policies = [PoisonPolicy::Drop, PoisonPolicy::DeadLetter, PoisonPolicy::Block];
        let max_tries = 1 + random.below(3);
        let settings = Settings {
            window: 1 + random.below(12),
            consumer_capacity: 1 + random.below(3),
            ack_timeout_ms: 1 + random.ms(2000),
            max_tries,
            max_deliveries: max_tries + random.below(4),
            backoff_first_ms: 100,
            backoff_most_ms: 100 + random.ms(300),
            poison: *random.pick(&policies).unwrap(),
            evict_after_ms: 3000,
            orphan_hold_ms: 1 + random.ms(4000),
        };
        let start = random.ms(3) * 1000;
        Self {
            dispatcher: Dispatcher::new(settings.clone(), start).unwrap(),
            history: History { settings, start, events: Vec::new() },
            fault,
            faulty: false,
            in_flight: Vec::new(),
            letters: Vec::new(),
            blocked: Vec::new(),
            live: Vec::new(),
            next_offset: start + 1,
            now_ms: 0,
        }
    }

    /// One random thing.
    pub fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..=5 => self.join(random),
            6..=7 => self.drain(random),
            8..=10 => self.evict(random),
            11..=39 => self.offer(random),
            40..=62 => self.answer(random, true),
            63..=72 => self.answer(random, false),
            73..=75 => self.answer_wrongly(random),
            76..=84 => self.heartbeat(random),
            85..=95 => self.tick(random),
            _ => self.decide(random),
        }
    }

    /// Makes all well, so that everything can be settled, and waits for it.
    pub fn finish(&mut self) {
        for (id, _) in self.live.clone() {
            self.evict_one(id);
        }
        self.join_as(NAMES[0], FILTERS[0], Some(4));
        for _ in 0..200 {
            for (id, _) in self.live.clone() {
                self.record(Event::Heartbeat(id), |dispatcher, now_ms, _| {
                    dispatcher.heartbeat(id, now_ms);
                });
            }
            for offset in self.letters.clone() {
                self.letter(offset);
            }
            for offset in self.blocked.clone() {
                self.unblock(offset);
            }
            for delivery in self.in_flight.clone() {
                self.answer_as(delivery, true);
            }
            self.now_ms += 100;
            self.record(Event::Tick, Dispatcher::tick);
            if self.dispatcher.unsettled() == 0 {
                break;
            }
        }
    }

    fn record<T>(&mut self, event: Event, call: impl FnOnce(&mut Dispatcher, u64, &mut Vec<Action>) -> T) -> T {
        self.history.events.push((self.now_ms, event));
        let mut out = Vec::new();
        let result = call(&mut self.dispatcher, self.now_ms, &mut out);
        self.take(out);
        result
    }

    /// Notes the actions of a call, and its end.
    fn take(&mut self, out: Vec<Action>) {
        for action in out {
            self.history.events.push((self.now_ms, Event::Did(action)));
            match action {
                Action::Deliver { consumer, offset, attempt } => self.in_flight.push((consumer, offset, attempt)),
                Action::TimedOut { offset, .. } => self.in_flight.retain(|delivery| delivery.1 != offset),
                Action::DeadLetter { offset, .. } => self.letters.push(offset),
                Action::Block { offset, .. } => self.blocked.push(offset),
                Action::Evicted { consumer } => {
                    self.in_flight.retain(|delivery| delivery.0 != consumer);
                    self.live.retain(|one| one.0 != consumer);
                }
                Action::Left { consumer } => self.live.retain(|one| one.0 != consumer),
                Action::Drop { .. } | Action::Skip { .. } | Action::Advance { .. } => {}
            }
        }
        let (cursor, room) = (self.dispatcher.cursor(), self.dispatcher.room());
        let deadline_ms = self.dispatcher.next_deadline_ms();
        self.history.events.push((self.now_ms, Event::Done { cursor, room, deadline_ms }));
    }

    /// Tells the dispatcher of acknowledgements that nobody gave, and keeps what it does.
    fn lie(&mut self, deliveries: &[(ConsumerId, u64, u32)]) {
        let mut out = Vec::new();
        for &(consumer, offset, attempt) in deliveries {
            self.faulty |= self.dispatcher.acknowledge(consumer, &[(offset, attempt)], self.now_ms, &mut out)[0];
        }
        if !out.is_empty() {
            self.take(out);
        }
    }

    fn join(&mut self, random: &mut Random) {
        let names: Vec<_> = NAMES.into_iter().filter(|name| self.live.iter().all(|one| one.1 != *name)).collect();
        let Some(&name) = random.pick(&names) else { return };
        let filters = random.pick(&FILTERS).unwrap();
        let capacity = if random.below(2) == 0 { None } else { Some(1 + random.below(4)) };
        self.join_as(name, filters, capacity);
    }

    fn join_as(&mut self, name: &'static str, filters: &'static [&'static str], capacity: Option<u32>) {
        if self.fault == Some(Fault::JoinForgets) {
            self.lie(&self.in_flight.clone());
        }
        let mut out = Vec::new();
        let id = self.dispatcher.join(name, filters, capacity, self.now_ms, &mut out).unwrap();
        let capacity = capacity.unwrap_or(self.history.settings.consumer_capacity);
        self.history.events.push((self.now_ms, Event::Join { id, name, filters, capacity }));
        self.live.push((id, name));
        self.take(out);
    }

    fn drain(&mut self, random: &mut Random) {
        if let Some(&(id, _)) = random.pick(&self.live) {
            self.record(Event::Drain(id), |dispatcher, now_ms, out| {
                dispatcher.drain(id, now_ms, out);
            });
        }
    }

    fn evict(&mut self, random: &mut Random) {
        if let Some(&(id, _)) = random.pick(&self.live) {
            self.evict_one(id);
        }
    }

    fn evict_one(&mut self, id: ConsumerId) {
        if self.fault == Some(Fault::EvictionAcknowledges) {
            self.lie(&self.in_flight.iter().filter(|one| one.0 == id).copied().collect::<Vec<_>>());
        }
        let known = self.record(Event::Evict(id), |dispatcher, now_ms, out| dispatcher.evict(id, now_ms, out));
        assert!(known || self.fault.is_some(), "a live consumer was not known");
    }

    fn offer(&mut self, random: &mut Random) {
        let mut batch = Vec::new();
        for _ in 0..=random.below(4) {
            batch.push((self.next_offset, *random.pick(&KEYS).unwrap()));
            self.next_offset += 1 + random.ms(3) / 2; // now and then there is a gap
        }
        let mut out = Vec::new();
        let taken = self.dispatcher.offer(&batch, self.now_ms, &mut out).unwrap();
        for &(offset, key) in &batch[..taken] {
            self.history.events.push((self.now_ms, Event::Offer { offset, key }));
        }
        if let Some(&(offset, _)) = batch.get(taken) {
            self.next_offset = offset;
        }
        self.take(out);
    }

    fn answer(&mut self, random: &mut Random, accept: bool) {
        if let Some(&delivery) = random.pick(&self.in_flight) {
            self.answer_as(delivery, accept);
        }
    }

    fn answer_as(&mut self, (consumer, offset, attempt): (ConsumerId, u64, u32), accept: bool) {
        let mut out = Vec::new();
        let told = accept || self.fault == Some(Fault::RejectAcknowledges);
        let call = if told { Dispatcher::acknowledge } else { Dispatcher::reject };
        let counted = call(&mut self.dispatcher, consumer, &[(offset, attempt)], self.now_ms, &mut out)[0];
        self.faulty |= counted && told != accept;
        self.in_flight.retain(|&delivery| delivery != (consumer, offset, attempt));
        self.history.events.push((self.now_ms, Event::Answer { consumer, offset, attempt, accept, counted }));
        self.take(out);
    }

    /// An answer from somebody else, or to another delivery.
    fn answer_wrongly(&mut self, random: &mut Random) {
        let Some(&(consumer, offset, attempt)) = random.pick(&self.in_flight) else { return };
        let wrong = match random.below(3) {
            0 => (ConsumerId(consumer.0 + 1), offset, attempt),
            1 => (consumer, offset, attempt - 1),
            _ => (consumer, offset + 1000, attempt),
        };
        self.answer_as(wrong, random.below(2) == 0);
    }

    fn heartbeat(&mut self, random: &mut Random) {
        if let Some(&(id, _)) = random.pick(&self.live) {
            let known = self.record(Event::Heartbeat(id), |dispatcher, now_ms, _| dispatcher.heartbeat(id, now_ms));
            assert!(known);
        }
    }

    fn tick(&mut self, random: &mut Random) {
        self.now_ms = match self.dispatcher.next_deadline_ms() {
            // Often at the very moment at which something is due.
            Some(due_ms) if random.below(2) == 0 => self.now_ms.max(due_ms),
            _ => self.now_ms + random.ms(600),
        };
        if self.fault == Some(Fault::TimeOutAcknowledges) {
            self.lie(&self.late());
        }
        self.record(Event::Tick, Dispatcher::tick);
    }

    /// The deliveries in flight that have had their time.
    fn late(&self) -> Vec<(ConsumerId, u64, u32)> {
        let sent = |delivery: &(ConsumerId, u64, u32)| {
            let deliver = Event::Did(Action::Deliver { consumer: delivery.0, offset: delivery.1, attempt: delivery.2 });
            self.history.events.iter().rev().find(|(_, event)| *event == deliver).map_or(u64::MAX, |(at, _)| *at)
        };
        let due = |delivery: &&(ConsumerId, u64, u32)| {
            sent(delivery).saturating_add(self.history.settings.ack_timeout_ms) <= self.now_ms
        };
        self.in_flight.iter().filter(due).copied().collect()
    }

    fn decide(&mut self, random: &mut Random) {
        if let Some(&offset) = random.pick(&self.letters) {
            self.letter(offset);
        }
        if let Some(&offset) = random.pick(&self.blocked) {
            if random.below(2) == 0 {
                self.unblock(offset);
            } else {
                self.blocked.retain(|&one| one != offset);
                let call = |dispatcher: &mut Dispatcher, now_ms, out: &mut Vec<Action>| {
                    dispatcher.discard(offset, now_ms, out)
                };
                assert!(self.record(Event::Discard(offset), call));
            }
        }
    }

    fn letter(&mut self, offset: u64) {
        self.letters.retain(|&one| one != offset);
        let call =
            |dispatcher: &mut Dispatcher, now_ms, out: &mut Vec<Action>| dispatcher.dead_lettered(offset, now_ms, out);
        assert!(self.record(Event::Lettered(offset), call));
    }

    fn unblock(&mut self, offset: u64) {
        self.blocked.retain(|&one| one != offset);
        let call = |dispatcher: &mut Dispatcher, now_ms, out: &mut Vec<Action>| dispatcher.unblock(offset, now_ms, out);
        assert!(self.record(Event::Unblock(offset), call));
    }
}

/// A random schedule of `steps` steps that ends with everything settled.
pub fn schedule(seed: u64, steps: u32, fault: Option<Fault>) -> World {
    let mut random = Random(seed);
    let mut world = World::new(&mut random, fault);
    for _ in 0..steps {
        world.step(&mut random);
    }
    world.finish();
    world
}
