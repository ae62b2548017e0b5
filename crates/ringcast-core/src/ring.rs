//! Consistent ring: each member has 100 points on a circle of 2^32, a key belongs to the first point at or after it.
//!
//! Points are FNV-1a of `"{member}-{index}"`, keys are FNV-1a of their bytes, both finished with the 32-bit murmur3
//! finalizer: FNV-1a alone leaves names that differ in their last digit next to each other. Sources: G. Fowler,
//! L. C. Noll and P. Vo (FNV), A. Appleby (MurmurHash3).

use std::collections::HashSet;

use crate::{Error, MAX_PARTITIONS, MAX_ROW_ID_BYTES, MAX_SLOTS};

/// Points a member has on the ring.
pub const VIRTUAL_NODES: u32 = 100;

/// FNV-1a over 32 bits of `data`, finished as murmur3 does.
#[must_use]
#[inline]
pub fn ring_hash(data: &[u8]) -> u32 {
    finish(fnv1a(FNV_OFFSET, data))
}

const FNV_OFFSET: u32 = 0x811C_9DC5;

#[inline]
fn fnv1a(start: u32, data: &[u8]) -> u32 {
    data.iter().fold(start, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[inline]
const fn finish(mut hash: u32) -> u32 {
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xC2B2_AE35);
    hash ^ (hash >> 16)
}

/// A ring over a fixed list of members, which are spoken of by their index in that list.
#[derive(Debug, Clone)]
pub struct Ring {
    /// Hash of each point, ascending.
    hashes: Vec<u32>,
    /// Member of each point, in the same order.
    owners: Vec<u32>,
    /// Where the points of each equal stretch of the circle start, so that a search is over one stretch: entry `i` is
    /// the first point at or after `i << shift`, and a last entry ends the list.
    starts: Vec<u32>,
    shift: u32,
    members: usize,
}

impl Ring {
    /// A ring over `members`. Two members whose points fall on the same spot are told apart by name, so the order in
    /// which members are listed has no influence on who owns what.
    ///
    /// # Errors
    /// When there is no member, more than 1024, one of them is empty or longer than 512 bytes, or one is listed twice.
    pub fn new<S: AsRef<str>>(members: &[S]) -> Result<Self, Error> {
        check_members(members)?;
        let mut points = Vec::with_capacity(members.len() * VIRTUAL_NODES as usize);
        for (owner, member) in (0_u32..).zip(members) {
            let name = member.as_ref();
            let prefix = fnv1a(fnv1a(FNV_OFFSET, name.as_bytes()), b"-");
            for vnode in 0..VIRTUAL_NODES {
                points.push((finish(fnv1a(prefix, vnode.to_string().as_bytes())), name, owner));
            }
        }
        points.sort_unstable();
        let hashes: Vec<u32> = points.iter().map(|point| point.0).collect();
        let owners = points.iter().map(|point| point.2).collect();
        let (starts, shift) = stretches(&hashes);
        Ok(Self { hashes, owners, starts, shift, members: members.len() })
    }

    /// How many members the ring has.
    #[must_use]
    pub const fn members(&self) -> usize {
        self.members
    }

    /// Index of the member that owns `key`.
    #[must_use]
    pub fn owner(&self, key: &[u8]) -> u32 {
        self.owner_of_hash(ring_hash(key))
    }

    /// Index of the member that owns a key with this [`ring_hash`], for callers that have it at hand.
    #[must_use]
    pub fn owner_of_hash(&self, hash: u32) -> u32 {
        self.owners[self.position(hash)]
    }

    /// Index of the owner of each key.
    #[must_use]
    pub fn owners(&self, keys: &[&[u8]]) -> Vec<u32> {
        keys.iter().map(|key| self.owner(key)).collect()
    }

    /// Index of the member that owns `key` when only those count for which `eligible` is true: the first eligible
    /// member clockwise. `None` when no member is eligible.
    pub fn owner_among(&self, key: &[u8], eligible: impl Fn(u32) -> bool) -> Option<u32> {
        let start = self.position(ring_hash(key));
        let (before, after) = self.owners.split_at(start);
        after.iter().chain(before).copied().find(|&owner| eligible(owner))
    }

    /// Index of the first point at or after `hash`, past the end the first of all.
    fn position(&self, hash: u32) -> usize {
        let stretch = (hash >> self.shift) as usize;
        let (from, to) = (self.starts[stretch] as usize, self.starts[stretch + 1] as usize);
        let at = from + self.hashes[from..to].partition_point(|&point| point < hash);
        if at == self.hashes.len() { 0 } else { at }
    }
}

/// The member (its index) of each of `partitions` partitions: the owner of the key `"{partition}"`.
///
/// # Errors
/// When `partitions` is not in `1..=4096`, or as [`Ring::new`].
pub fn ring_assign<S: AsRef<str>>(partitions: u32, members: &[S]) -> Result<Vec<u32>, Error> {
    Error::check_range("partitions", u64::from(partitions), 1, u64::from(MAX_PARTITIONS))?;
    let ring = Ring::new(members)?;
    Ok((0..partitions).map(|partition| ring.owner(partition.to_string().as_bytes())).collect())
}

/// Cuts the circle into a power of two of stretches, about two a point; see [`Ring::starts`].
#[allow(clippy::cast_possible_truncation)] // there are at most MAX_SLOTS · VIRTUAL_NODES points
fn stretches(hashes: &[u32]) -> (Vec<u32>, u32) {
    let count = (2 * hashes.len()).next_power_of_two();
    let shift = u32::BITS - count.trailing_zeros();
    let mut starts = Vec::with_capacity(count + 1);
    let mut at = 0;
    for stretch in 0..count as u64 {
        while at < hashes.len() && u64::from(hashes[at]) < stretch << shift {
            at += 1;
        }
        starts.push(at as u32);
    }
    starts.push(hashes.len() as u32);
    (starts, shift)
}

fn check_members<S: AsRef<str>>(members: &[S]) -> Result<(), Error> {
    if members.is_empty() {
        return Err(Error::Empty { field: "members" });
    }
    Error::check_range("number of members", members.len() as u64, 1, u64::from(MAX_SLOTS))?;
    let mut seen = HashSet::with_capacity(members.len());
    for member in members {
        let name = member.as_ref();
        Error::check_range("member length in bytes", name.len() as u64, 1, MAX_ROW_ID_BYTES as u64)?;
        if !seen.insert(name) {
            return Err(Error::Duplicate { field: "members", value: format!("{name:?}") });
        }
    }
    Ok(())
}
