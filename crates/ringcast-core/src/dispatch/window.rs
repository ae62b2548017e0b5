//! The unsettled messages: by offset, and in order behind one another for each key.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::ConsumerId;
use crate::ring::ring_hash;

/// What a message waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The message before it of its key.
    Queued,
    /// Room at the key's owner.
    Ready,
    /// The consumer's answer.
    InFlight { consumer: ConsumerId },
    /// The next try.
    Backoff { due_ms: u64 },
    /// Any consumer.
    Unowned,
    /// A consumer that accepts its key, after one that did was lost.
    Orphaned { due_ms: u64 },
    /// The caller's word that it is published as a dead letter.
    Lettered,
    /// An operator's decision.
    Blocked,
}

/// One unsettled message.
#[derive(Debug)]
pub(super) struct Message {
    key: Key,
    /// The offset that arrived before this one: the cursor while this is the first unsettled message.
    before: u64,
    /// Offset of the next message of the key.
    next: Option<u64>,
    pub phase: Phase,
    pub deliveries: u32,
    /// Deliveries that count no more for [`super::Settings::max_deliveries`].
    pub forgiven: u32,
    pub failures: u32,
}

/// A row key behind its hash, which makes nearly every comparison one of integers. The order withstands keys that were
/// chosen to collide, which a hash table without a random seed would not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    hash: u32,
    text: Arc<str>,
}

/// The unsettled messages.
#[derive(Debug)]
pub(super) struct Window {
    messages: Vec<Option<Message>>,
    /// Free places in `messages`.
    free: Vec<u32>,
    /// Offsets as they arrived, each with its place in `messages`, or [`GONE`]. Ascending, and the first is not gone.
    arrivals: VecDeque<(u64, u32)>,
    /// How many of `arrivals` are gone.
    gone: usize,
    /// Offset of the last message of each key that has one.
    last_of: BTreeMap<Key, u64>,
    /// Highest offset that ever arrived.
    last: u64,
}

/// The place of a message that is settled.
const GONE: u32 = u32::MAX;
/// So many settled messages may stand among the unsettled before they are cleared away.
const MOST_GONE: usize = 64;

impl Window {
    pub const fn new(cursor: u64) -> Self {
        Self {
            messages: Vec::new(),
            free: Vec::new(),
            arrivals: VecDeque::new(),
            gone: 0,
            last_of: BTreeMap::new(),
            last: cursor,
        }
    }

    pub fn len(&self) -> usize {
        self.arrivals.len() - self.gone
    }

    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The highest offset at which everything that arrived is settled.
    pub fn cursor(&self) -> u64 {
        let first = self.arrivals.front().and_then(|&(_, place)| self.messages[place as usize].as_ref());
        first.map_or(self.last, |first| first.before)
    }

    /// Takes in a message with an offset above all before it; whether it is the first of its key.
    pub fn push(&mut self, offset: u64, key: &str) -> bool {
        let mut key = Key { hash: ring_hash(key.as_bytes()), text: key.into() };
        let previous = match self.last_of.entry(key.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(offset);
                None
            }
            Entry::Occupied(mut entry) => {
                key = entry.key().clone();
                Some(entry.insert(offset))
            }
        };
        if let Some(previous) = previous {
            self.get_mut(previous).next = Some(offset);
        }
        let (before, phase) = (self.last, Phase::Queued);
        let place = self.settle_in(Message { key, before, next: None, phase, deliveries: 0, forgiven: 0, failures: 0 });
        self.arrivals.push_back((offset, place));
        self.last = offset;
        previous.is_none()
    }

    /// Takes out a message that is the first of its key; the offset of the one that is first now.
    pub fn remove(&mut self, offset: u64) -> Option<u64> {
        let index = self.find(offset)?;
        let place = std::mem::replace(&mut self.arrivals[index].1, GONE);
        let message = self.messages[place as usize].take()?;
        self.free.push(place);
        self.gone += 1;
        self.clear_away();
        if message.next.is_none() {
            self.last_of.remove(&message.key);
        }
        message.next
    }

    pub fn get(&self, offset: u64) -> Option<&Message> {
        let (_, place) = self.arrivals[self.find(offset)?];
        self.messages[place as usize].as_ref()
    }

    /// A message that is known to be here.
    pub fn get_mut(&mut self, offset: u64) -> &mut Message {
        let place = self.find(offset).map(|index| self.arrivals[index].1 as usize);
        let message = place.and_then(|place| self.messages[place].as_mut());
        message.expect("an offset taken from a list of unsettled messages is unsettled")
    }

    /// Every message, by offset.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Message)> {
        let here = self.arrivals.iter().filter(|(_, place)| *place != GONE);
        here.filter_map(|&(offset, place)| Some((offset, self.messages[place as usize].as_ref()?)))
    }

    /// Index in `arrivals` of an unsettled message. Where offsets have no gaps it is known at once, since they bound it
    /// from both sides.
    fn find(&self, offset: u64) -> Option<usize> {
        let (first, last) = (self.arrivals.front()?.0, self.arrivals.back()?.0);
        if offset < first || offset > last {
            return None;
        }
        let end = self.arrivals.len() - 1;
        let within = |distance: u64| usize::try_from(distance).unwrap_or(end).min(end);
        let (mut low, mut high) = (end - within(last - offset), within(offset - first));
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.arrivals[middle].0 < offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let (found, place) = self.arrivals[low];
        (found == offset && place != GONE).then_some(low)
    }

    fn settle_in(&mut self, message: Message) -> u32 {
        if let Some(place) = self.free.pop() {
            self.messages[place as usize] = Some(message);
            return place;
        }
        self.messages.push(Some(message));
        // There are at most MAX_WINDOW messages.
        u32::try_from(self.messages.len() - 1).unwrap_or(GONE)
    }

    /// Keeps the first arrival an unsettled one, and the settled ones among the others few.
    fn clear_away(&mut self) {
        while self.arrivals.front().is_some_and(|&(_, place)| place == GONE) {
            self.arrivals.pop_front();
            self.gone -= 1;
        }
        if self.gone > MOST_GONE + self.len() {
            self.arrivals.retain(|&(_, place)| place != GONE);
            self.gone = 0;
        }
    }
}

impl Message {
    pub fn key(&self) -> &str {
        &self.key.text
    }

    /// Whether this delivery of it is in flight.
    pub const fn is_in_flight(&self, attempt: u32) -> bool {
        matches!(self.phase, Phase::InFlight { .. }) && self.deliveries == attempt
    }

    /// [`ring_hash`] of the key.
    pub const fn key_hash(&self) -> u32 {
        self.key.hash
    }
}
