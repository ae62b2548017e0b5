//! Who takes part, and who owns a key.

use super::settings::check_capacity;
use super::{KeyFilter, MAX_CONSUMER_NAME_BYTES, MAX_CONSUMERS, MAX_FILTERS};
use crate::Error;
use crate::ring::Ring;

/// A consumer from its joining to its leaving. One that joins again gets another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u64);

/// One consumer.
#[derive(Debug)]
pub(super) struct Consumer {
    pub id: ConsumerId,
    pub name: Box<str>,
    /// Index into [`Members::classes`].
    class: usize,
    filters: Vec<KeyFilter>,
    pub capacity: u32,
    pub in_flight: u32,
    seen_ms: u64,
    pub draining: bool,
}

/// Who owns a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The consumer at this place of [`Members::consumers`].
    At(usize),
    /// There are consumers, and none accepts the key.
    Unmatched,
    /// There is no consumer.
    Nobody,
}

/// The consumers, their ring and their signs of life.
#[derive(Debug)]
pub(super) struct Members {
    /// By id, ascending.
    consumers: Vec<Consumer>,
    last_id: u64,
    evict_after_ms: u64,
    /// No consumer can be overdue before this.
    check_ms: u64,
    ring: Option<Ring>,
    /// Place in `consumers` of each member of the ring.
    seats: Vec<usize>,
    /// The distinct filter lists: replicas of one application share theirs, and it is matched once.
    classes: Vec<Vec<KeyFilter>>,
    /// Whether each class accepts the key in question; kept for its memory only.
    accepted: Vec<bool>,
}

impl Members {
    pub fn new(evict_after_ms: u64) -> Self {
        Self {
            consumers: Vec::new(),
            last_id: 0,
            evict_after_ms,
            check_ms: u64::MAX,
            ring: None,
            seats: Vec::new(),
            classes: Vec::new(),
            accepted: Vec::new(),
        }
    }

    pub fn join(&mut self, name: &str, filters: &[&str], capacity: u32, now_ms: u64) -> Result<ConsumerId, Error> {
        let count = self.consumers.len() as u64 + 1;
        Error::check_range("number of consumers", count, 1, MAX_CONSUMERS.into())?;
        Error::check_range("consumer name length in bytes", name.len() as u64, 1, MAX_CONSUMER_NAME_BYTES as u64)?;
        Error::check_range("number of filters", filters.len() as u64, 0, MAX_FILTERS as u64)?;
        check_capacity("capacity", capacity)?;
        // One that drains is off the ring, so its successor may have the same name.
        if self.consumers.iter().any(|consumer| !consumer.draining && *consumer.name == *name) {
            return Err(Error::Duplicate { field: "consumers", value: format!("{name:?}") });
        }
        let filters = filters.iter().map(|filter| KeyFilter::new(filter)).collect::<Result<_, _>>()?;
        self.last_id += 1;
        let id = ConsumerId(self.last_id);
        self.consumers.push(Consumer {
            id,
            name: name.into(),
            class: 0,
            filters,
            capacity,
            in_flight: 0,
            seen_ms: now_ms,
            draining: false,
        });
        self.check_ms = self.check_ms.min(self.due_ms(now_ms));
        self.rebuild();
        Ok(id)
    }

    /// Takes a consumer off the ring; it stays for what it has in flight. Whether it was on the ring.
    pub fn drain(&mut self, id: ConsumerId) -> bool {
        match self.get_mut(id) {
            Some(consumer) if !consumer.draining => consumer.draining = true,
            _ => return false,
        }
        self.rebuild();
        true
    }

    /// Forgets consumers; those that were not known are left out of the result.
    pub fn remove(&mut self, ids: &[ConsumerId]) -> Vec<ConsumerId> {
        let (gone, kept) = std::mem::take(&mut self.consumers).into_iter().partition(|one| ids.contains(&one.id));
        self.consumers = kept;
        self.rebuild();
        let gone: Vec<Consumer> = gone;
        gone.into_iter().map(|consumer| consumer.id).collect()
    }

    /// Notes a sign of life; whether the consumer is known.
    pub fn seen(&mut self, id: ConsumerId, now_ms: u64) -> bool {
        let Some(consumer) = self.get_mut(id) else { return false };
        consumer.seen_ms = now_ms;
        true
    }

    /// The consumers that have been silent for too long.
    pub fn overdue(&mut self, now_ms: u64) -> Vec<ConsumerId> {
        if now_ms < self.check_ms {
            return Vec::new();
        }
        let due = |one: &Consumer| one.seen_ms.saturating_add(self.evict_after_ms);
        let (late, fine): (Vec<_>, Vec<_>) = self.consumers.iter().partition(|one| due(one) <= now_ms);
        self.check_ms = fine.into_iter().map(due).min().unwrap_or(u64::MAX);
        late.into_iter().map(|consumer| consumer.id).collect()
    }

    /// No consumer can be overdue before this; `None` while there is none.
    pub const fn check_ms(&self) -> Option<u64> {
        if self.consumers.is_empty() { None } else { Some(self.check_ms) }
    }

    /// The owner of a key with this [`crate::ring::ring_hash`].
    pub fn owner(&mut self, key: &str, hash: u32) -> Owner {
        let Some(ring) = &self.ring else { return Owner::Nobody };
        let accepts = |class: &Vec<KeyFilter>| class.is_empty() || class.iter().any(|filter| filter.accepts(key));
        self.accepted.clear();
        self.accepted.extend(self.classes.iter().map(accepts));
        if !self.accepted.contains(&true) {
            return Owner::Unmatched;
        }
        let seat = if self.accepted.contains(&false) {
            ring.owner_among(key.as_bytes(), |seat| self.accepted[self.consumers[self.seats[seat as usize]].class])
        } else {
            Some(ring.owner_of_hash(hash))
        };
        seat.map_or(Owner::Unmatched, |seat| Owner::At(self.seats[seat as usize]))
    }

    pub fn at(&mut self, place: usize) -> &mut Consumer {
        &mut self.consumers[place]
    }

    pub fn get_mut(&mut self, id: ConsumerId) -> Option<&mut Consumer> {
        let place = self.consumers.binary_search_by_key(&id, |consumer| consumer.id).ok()?;
        Some(&mut self.consumers[place])
    }

    pub fn iter(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers.iter()
    }

    const fn due_ms(&self, seen_ms: u64) -> u64 {
        seen_ms.saturating_add(self.evict_after_ms)
    }

    fn rebuild(&mut self) {
        self.classes.clear();
        self.seats.clear();
        let mut names = Vec::new();
        for (place, consumer) in self.consumers.iter_mut().enumerate().filter(|(_, one)| !one.draining) {
            let known = self.classes.iter().position(|class| *class == consumer.filters);
            consumer.class = known.unwrap_or(self.classes.len());
            if known.is_none() {
                self.classes.push(consumer.filters.clone());
            }
            self.seats.push(place);
            names.push(&*consumer.name);
        }
        // The only reasons for which a ring is refused, beside an empty list, are checked on joining.
        self.ring = Ring::new(&names).ok();
    }
}

impl Consumer {
    pub const fn has_room(&self) -> bool {
        self.in_flight < self.capacity
    }
}
