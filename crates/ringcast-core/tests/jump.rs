//! JumpHash: the published loop, and what it promises.

use proptest::prelude::*;
use ringcast_core::ErrorCode;
use ringcast_core::jump::{MAX_BUCKETS, jump_hash, jump_hash_batch};

/// The loop as its authors print it (Lamping and Veach, figure 1), with the same types.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
fn published(mut key: u64, num_buckets: i32) -> i32 {
    let (mut b, mut j) = (-1_i64, 0_i64);
    while j < i64::from(num_buckets) {
        b = j;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        j = ((b + 1) as f64 * ((1_i64 << 31) as f64 / ((key >> 33) + 1) as f64)) as i64;
    }
    b as i32
}

#[test]
fn bucket_counts_outside_the_limits_are_refused() {
    for buckets in [0, MAX_BUCKETS + 1] {
        assert_eq!(jump_hash(1, buckets).unwrap_err().code(), ErrorCode::OutOfRange);
        assert_eq!(jump_hash_batch(&[1], buckets).unwrap_err().code(), ErrorCode::OutOfRange);
    }
}

proptest! {
    #[test]
    fn is_the_published_loop(key: u64, buckets in 1..=i32::MAX) {
        let bucket = jump_hash(key, buckets.unsigned_abs()).unwrap();
        prop_assert_eq!(i64::from(bucket), i64::from(published(key, buckets)));
    }

    #[test]
    fn a_batch_is_the_same_as_one_by_one(
        keys in prop::collection::vec(any::<u64>(), 0..600),
        buckets in prop_oneof![1..5000_u32, 1..=MAX_BUCKETS],
    ) {
        let one_by_one: Vec<u32> = keys.iter().map(|&key| jump_hash(key, buckets).unwrap()).collect();
        prop_assert_eq!(jump_hash_batch(&keys, buckets).unwrap(), one_by_one);
    }

    #[test]
    fn one_more_bucket_moves_keys_only_into_it(key: u64, buckets in 1..100_000_u32) {
        let (before, after) = (jump_hash(key, buckets).unwrap(), jump_hash(key, buckets + 1).unwrap());
        prop_assert!(after == before || after == buckets);
    }
}
