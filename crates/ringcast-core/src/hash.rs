//! The partition of a row: XXH64 with seed 42, taken as a signed integer, floor-modulo the partition count.
//!
//! That is exactly Spark SQL's `pmod(xxhash64(row_id), n)` for a string column, so a cluster can partition a
//! billion rows in the JVM and agree with every worker. Source of the hash: the XXH64 specification
//! (github.com/Cyan4973/xxHash).

use crate::{Error, MAX_PARTITIONS};

/// Seed of the row hash. Spark's `xxhash64` uses the same.
pub const SEED: u64 = 42;

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

/// XXH64 of `data` with seed 42.
#[must_use]
#[inline(always)]
#[allow(clippy::inline_always)] // measured: a call for each short key halves the speed of a batch
pub fn xxh64(data: &[u8]) -> u64 {
    let (mut hash, tail) =
        if data.len() >= 32 { stripes(data) } else { (SEED.wrapping_add(P5).wrapping_add(data.len() as u64), data) };

    let (words, rest) = tail.as_chunks::<8>();
    for word in words {
        hash = (hash ^ round(0, u64::from_le_bytes(*word))).rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
    }
    let (halves, rest) = rest.as_chunks::<4>();
    if let Some(half) = halves.first() {
        let half = u64::from(u32::from_le_bytes(*half));
        hash = (hash ^ half.wrapping_mul(P1)).rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
    }
    for &byte in rest {
        hash = (hash ^ u64::from(byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
    }

    hash = (hash ^ (hash >> 33)).wrapping_mul(P2);
    hash = (hash ^ (hash >> 29)).wrapping_mul(P3);
    hash ^ (hash >> 32)
}

/// The whole 32-byte stripes of an input of 32 bytes or more, in four lanes; returns the merged state and the tail.
#[inline]
fn stripes(data: &[u8]) -> (u64, &[u8]) {
    let mut lanes = [SEED.wrapping_add(P1).wrapping_add(P2), SEED.wrapping_add(P2), SEED, SEED.wrapping_sub(P1)];
    let (blocks, tail) = data.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = round(*lane, u64::from_le_bytes(*word));
        }
    }
    let mut hash = lanes[0]
        .rotate_left(1)
        .wrapping_add(lanes[1].rotate_left(7))
        .wrapping_add(lanes[2].rotate_left(12))
        .wrapping_add(lanes[3].rotate_left(18));
    for lane in lanes {
        hash = (hash ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4);
    }
    (hash.wrapping_add(data.len() as u64), tail)
}

#[inline]
const fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

/// The partition of one row id in a store of `partitions` partitions.
///
/// # Errors
/// When `partitions` is 0 or above [`MAX_PARTITIONS`].
pub fn row_partition(row_id: &[u8], partitions: u32) -> Result<u32, Error> {
    Ok(Partitioner::new(partitions)?.partition(row_id))
}

/// Partitions row ids of one store; the division by the partition count is prepared once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitioner {
    partitions: u64,
    /// `(2^64 - 1) / partitions`: a high multiplication by it is a quotient that is at most 1 too small.
    reciprocal: u64,
    /// `-2^63` floor-modulo `partitions`, which undoes the shift from signed to unsigned.
    offset: u64,
}

impl Partitioner {
    /// A partitioner for `partitions` partitions.
    ///
    /// # Errors
    /// When `partitions` is 0 or above [`MAX_PARTITIONS`].
    pub fn new(partitions: u32) -> Result<Self, Error> {
        let n = u64::from(partitions);
        Error::check_range("partitions", n, 1, u64::from(MAX_PARTITIONS))?;
        Ok(Self { partitions: n, reciprocal: u64::MAX / n, offset: (n - (1_u64 << 63) % n) % n })
    }

    /// How many partitions there are.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // at most MAX_PARTITIONS
    pub const fn partitions(&self) -> u32 {
        self.partitions as u32
    }

    /// The partition of one row id.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::inline_always)] // as xxh64
    pub fn partition(&self, row_id: &[u8]) -> u32 {
        self.floor_mod(xxh64(row_id))
    }

    /// The partition of each row id.
    #[must_use]
    pub fn partition_all(&self, row_ids: &[&[u8]]) -> Vec<u32> {
        row_ids.iter().map(|row_id| self.partition(row_id)).collect()
    }

    /// `hash`, as a signed integer, floor-modulo the partition count.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the result is below MAX_PARTITIONS, the high half fits 64 bits
    fn floor_mod(&self, hash: u64) -> u32 {
        let n = self.partitions;
        let shifted = hash ^ (1 << 63);
        let quotient = ((u128::from(shifted) * u128::from(self.reciprocal)) >> 64) as u64;
        // remainder < 2n and offset < n, so two conditional subtractions are enough.
        let mut rest = shifted - quotient * n + self.offset;
        rest = if rest >= n { rest - n } else { rest };
        rest = if rest >= n { rest - n } else { rest };
        rest as u32
    }
}
