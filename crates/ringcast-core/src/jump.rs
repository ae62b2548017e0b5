//! JumpHash: a bucket for a key, moving only 1/(n+1) of the keys when a bucket is added at the end.
//!
//! Source: J. Lamping and E. Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm", 2014.

use crate::Error;

/// Most buckets. JumpHash draws 31 bits at each jump, so more buckets could not all be reached.
pub const MAX_BUCKETS: u32 = i32::MAX as u32;

/// The bucket of `key` among `buckets` buckets.
///
/// # Errors
/// When `buckets` is 0 or above [`MAX_BUCKETS`].
pub fn jump_hash(key: u64, buckets: u32) -> Result<u32, Error> {
    check_buckets(buckets)?;
    Ok(bucket(key, buckets))
}

/// [`jump_hash`] of each key in turn.
///
/// One key needs about ln(buckets) jumps, a number that the processor can't predict, so a loop over keys spends
/// most of its time on mispredicted exits. Here a chunk of keys takes every jump together, and those that
/// have arrived are squeezed out without a branch: four times as fast, same result.
///
/// # Errors
/// When `buckets` is 0 or above [`MAX_BUCKETS`].
pub fn jump_hash_batch(keys: &[u64], buckets: u32) -> Result<Vec<u32>, Error> {
    check_buckets(buckets)?;
    let mut result = vec![0; keys.len()];
    for (keys, result) in keys.chunks(CHUNK).zip(result.chunks_mut(CHUNK)) {
        fill_chunk(keys, f64::from(buckets), result);
    }
    Ok(result)
}

/// Keys that jump together; their index in the chunk fits a byte.
const CHUNK: usize = 256;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an index in a chunk fits a byte, a bucket 31 bits
fn fill_chunk(keys: &[u64], limit: f64, result: &mut [u32]) {
    let mut state = [0_u64; CHUNK];
    let mut bucket = [0.0; CHUNK];
    let mut last = [0.0; CHUNK];
    let mut index: [u8; CHUNK] = std::array::from_fn(|at| at as u8);
    let mut live = keys.len();
    state[..live].copy_from_slice(keys);
    while live > 0 {
        let mut kept = 0;
        for at in 0..live {
            let (key, next) = jump(state[at], bucket[at]);
            let origin = index[at];
            // Overwritten while the key still moves; the last bucket written is where it stays.
            last[usize::from(origin)] = bucket[at];
            state[kept] = key;
            bucket[kept] = floor(next);
            index[kept] = origin;
            kept += usize::from(next < limit);
        }
        live = kept;
    }
    for (result, last) in result.iter_mut().zip(last) {
        *result = last as i32 as u32;
    }
}

fn check_buckets(buckets: u32) -> Result<(), Error> {
    Error::check_range("buckets", u64::from(buckets), 1, u64::from(MAX_BUCKETS))
}

/// The published loop. `buckets` must be in `1..=MAX_BUCKETS`.
#[inline]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a bucket is below 2^31
pub(crate) fn bucket(mut key: u64, buckets: u32) -> u32 {
    let limit = f64::from(buckets);
    let mut current = 0.0;
    loop {
        let next;
        (key, next) = jump(key, current);
        if next >= limit {
            return current as u32;
        }
        current = floor(next);
    }
}

/// One step of the published loop: the next state of the key and where it would jump from `bucket`.
#[inline]
#[allow(clippy::cast_possible_truncation)] // 31 bits are left
fn jump(key: u64, bucket: f64) -> (u64, f64) {
    const TWO_31: f64 = 2_147_483_648.0;
    let key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
    let draw = f64::from((key >> 33) as i32) + 1.0;
    (key, (bucket + 1.0) * (TWO_31 / draw))
}

/// `value` rounded down, for values below 2^51 (above, where it is never used as a bucket, it may be anything).
/// `f64::floor` is a function call where the processor is not known to have an instruction for it.
#[inline]
fn floor(value: f64) -> f64 {
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    let nearest = (value + TWO_52) - TWO_52;
    nearest - if nearest > value { 1.0 } else { 0.0 }
}
