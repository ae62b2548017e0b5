//! The slot of every partition: JumpHash over slots with bounded load.
//!
//! A worker keeps its slot while it lives, so the slots in use can have gaps. Plain JumpHash over a sorted list
//! of workers renumbers everyone behind a leaver and moves about half of all partitions; here only the slot is vacant.
//!
//! Each partition has a list of preferred slots, `JumpHash(mix(partition, attempt), slot space)` for attempt 0, 1, …
//! It takes the first that is occupied and not full. Who is pushed on when a slot is full is settled by deferred
//! acceptance (D. Gale and L. Shapley, "College Admissions and the Stability of Marriage", 1962) with slots that
//! prefer lower attempts, then lower partitions. The outcome then does not depend on the order of evaluation, and
//! a change stays local, while in a first-come order an early partition that moves displaces others behind it.
//!
//! The cap is `⌈c·P/M⌉`, where M is the size of the slot space as long as that leaves at least half of the slack
//! c − 1, and never less than the number of occupied slots. So the cap is never above `⌈c·P/N⌉`, and it usually
//! stays the same when a worker in the middle leaves: otherwise partitions all over the fleet would return to
//! the slots that have just become a little larger.

use std::collections::BinaryHeap;

use crate::{Error, MAX_PARTITIONS, MAX_SLOTS, jump};

/// Load factor that stores use unless they say otherwise.
pub const DEFAULT_LOAD_FACTOR: f64 = 1.25;
/// Largest load factor; so large a value means no bound at all.
pub const MAX_LOAD_FACTOR: f64 = 1024.0;

/// Preferences tried before a partition takes any slot with room.
const ATTEMPTS: u32 = 64;

/// The slot of each of `partitions` partitions (`result[p]` is the slot of partition `p`).
///
/// The order of `occupied_slots` does not matter. Every partition gets an occupied slot, and no slot gets more than
/// `⌈load_factor · partitions / occupied⌉` partitions.
///
/// # Errors
/// When `partitions` is not in `1..=4096`, no slot is given, a slot is 1024 or above or given twice, or
/// `load_factor` is not a number in `1.0..=1024.0`.
pub fn assign(partitions: u32, occupied_slots: &[u32], load_factor: f64) -> Result<Vec<u32>, Error> {
    Error::check_range("partitions", u64::from(partitions), 1, u64::from(MAX_PARTITIONS))?;
    if !(1.0..=MAX_LOAD_FACTOR).contains(&load_factor) {
        return Err(Error::LoadFactor { value: load_factor, max: MAX_LOAD_FACTOR });
    }
    let mut slots = Slots::new(partitions, occupied_slots, load_factor)?;
    let homeless: Vec<u32> = (0..partitions).filter_map(|partition| slots.propose(partition)).collect();
    slots.finish(partitions, homeless)
}

/// A partition at a slot, ordered so that the one that a full slot gives up first is the greatest.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    attempt: u32,
    partition: u32,
}

struct Slots {
    /// Claims that each slot holds so far; `None` for a vacant slot.
    held: Vec<Option<BinaryHeap<Claim>>>,
    space: u32,
    cap: usize,
}

impl Slots {
    fn new(partitions: u32, occupied: &[u32], load_factor: f64) -> Result<Self, Error> {
        let highest = *occupied.iter().max().ok_or(Error::Empty { field: "slots" })?;
        Error::check_range("slots", u64::from(highest), 0, u64::from(MAX_SLOTS - 1))?;
        let space = highest + 1;
        let mut held: Vec<Option<BinaryHeap<Claim>>> = (0..space).map(|_| None).collect();
        for &slot in occupied {
            if held[slot as usize].replace(BinaryHeap::new()).is_some() {
                return Err(Error::Duplicate { field: "slots", value: slot.to_string() });
            }
        }
        Ok(Self { held, space, cap: cap(partitions, occupied.len(), space, load_factor) })
    }

    /// Offers `partition` to its preferences in turn. A partition that is pushed out of a full slot goes on to its own
    /// next preference; returns the partition that is left with none, if any.
    fn propose(&mut self, partition: u32) -> Option<u32> {
        let mut claim = Claim { attempt: 0, partition };
        while claim.attempt < ATTEMPTS {
            let slot = jump::bucket(mix(claim.partition, claim.attempt), self.space);
            if let Some(held) = &mut self.held[slot as usize] {
                if held.len() < self.cap {
                    held.push(claim);
                    return None;
                }
                if let Some(mut last) = held.peek_mut()
                    && claim < *last
                {
                    std::mem::swap(&mut claim, &mut last);
                }
            }
            claim.attempt += 1;
        }
        Some(claim.partition)
    }

    /// Gives each homeless partition the slot with room that it ranks highest (rendezvous hashing), in order of
    /// partition, and lists the slot of every partition.
    fn finish(self, partitions: u32, mut homeless: Vec<u32>) -> Result<Vec<u32>, Error> {
        let mut result = vec![0; partitions as usize];
        let mut room = Vec::new();
        for (slot, held) in (0_u32..).zip(&self.held) {
            let Some(held) = held else { continue };
            for claim in held {
                result[claim.partition as usize] = slot;
            }
            room.push((slot, self.cap - held.len()));
        }
        homeless.sort_unstable();
        for partition in homeless {
            let best = room
                .iter_mut()
                .filter(|(_, left)| *left > 0)
                .max_by_key(|(slot, _)| mix(partition, ATTEMPTS + slot))
                // cap · N >= P, so this can't happen; saying so beats a panic.
                .ok_or(Error::Empty { field: "slots" })?;
            best.1 -= 1;
            result[partition as usize] = best.0;
        }
        Ok(result)
    }
}

/// Most partitions a slot may hold; see the module's description.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // everything is between 1 and 4096 · 1024
fn cap(partitions: u32, occupied: usize, space: u32, load_factor: f64) -> usize {
    let occupied = occupied as u32; // below MAX_SLOTS: slots are distinct
    let widest = (f64::from(occupied) * (1.0 + load_factor) / 2.0) as u32;
    let divisor = space.min(widest).max(occupied);
    (load_factor * f64::from(partitions) / f64::from(divisor)).ceil() as usize
}

/// A well-mixed key for one preference of a partition: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
#[inline]
fn mix(partition: u32, attempt: u32) -> u64 {
    let seed = (u64::from(attempt) << 32) + u64::from(partition) + 1;
    let mut z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
