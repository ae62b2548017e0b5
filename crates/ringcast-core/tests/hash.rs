//! Row partitioning against the arithmetic that it stands for.

use proptest::prelude::*;
use ringcast_core::column::{View, partition_offsets, partition_views};
use ringcast_core::hash::{Partitioner, row_partition, xxh64};
use ringcast_core::{Error, ErrorCode, MAX_PARTITIONS};

/// The definition, with the processor's own division.
fn expected(row_id: &[u8], partitions: u32) -> u32 {
    let signed = i64::from_le_bytes(xxh64(row_id).to_le_bytes());
    u32::try_from(signed.rem_euclid(i64::from(partitions))).unwrap()
}

#[test]
fn fast_modulo_is_exact_for_every_partition_count() {
    for partitions in 1..=MAX_PARTITIONS {
        let partitioner = Partitioner::new(partitions).unwrap();
        for row in 0..64_u32 {
            let row_id = (row * 7919 + partitions).to_le_bytes();
            assert_eq!(partitioner.partition(&row_id), expected(&row_id, partitions), "{row_id:?} mod {partitions}");
        }
    }
}

#[test]
fn partition_counts_outside_the_limits_are_refused_with_the_limits() {
    for partitions in [0, MAX_PARTITIONS + 1, u32::MAX] {
        let error = row_partition(b"row", partitions).unwrap_err();
        assert_eq!(error.code(), ErrorCode::OutOfRange);
        assert_eq!(error.to_string(), format!("partitions must be between 1 and 4096, got {partitions}"));
    }
}

#[test]
fn rows_are_spread_evenly() {
    let partitioner = Partitioner::new(256).unwrap();
    let mut load = [0_u32; 256];
    for row in 0..256_000 {
        load[partitioner.partition(format!("tenant-{row}").as_bytes()) as usize] += 1;
    }
    // 1000 rows a partition with a standard deviation of 32: five of those.
    assert!(load.iter().all(|&rows| (840..1160).contains(&rows)), "{load:?}");
}

#[test]
fn a_column_that_contradicts_itself_is_refused_with_its_row() {
    let partitioner = Partitioner::new(16).unwrap();
    let malformed = |index| Err(Error::Malformed { field: "row_ids", index });
    let mut out = [0; 2];
    assert_eq!(partition_offsets(&partitioner, &[0, 3, 9], b"abcdef", &mut out), malformed(1));
    assert_eq!(partition_offsets(&partitioner, &[0, 3, 2], b"abcdef", &mut out), malformed(1));
    assert_eq!(partition_offsets(&partitioner, &[-1, 3, 6], b"abcdef", &mut out), malformed(0));
    assert_eq!(partition_offsets(&partitioner, &[0_i64, i64::MAX, 6], b"abcdef", &mut out), malformed(0));
    assert_eq!(partition_offsets(&partitioner, &[0, 3], b"abc", &mut out), malformed(2));
    let far = view(20, 0, 0);
    assert_eq!(partition_views(&partitioner, &[view(0, 0, 0), far], &[b"abc"], &mut out), malformed(1));
    assert_eq!(partition_views(&partitioner, &[view(13, 1, 0), far], &[&[0; 64]], &mut out), malformed(0));
    assert_eq!(partition_views(&partitioner, &[view(-1, 0, 0), far], &[&[0; 64]], &mut out), malformed(0));
    assert_eq!(partition_views(&partitioner, &[far], &[&[0; 64]], &mut out), malformed(1));
}

fn view(length: i32, buffer: i32, offset: i32) -> View {
    let mut view = [0; 16];
    for (field, value) in view.as_chunks_mut::<4>().0.iter_mut().zip([length, 0, buffer, offset]) {
        *field = value.to_le_bytes();
    }
    view
}

fn view_of(row_id: &[u8], data: &[u8]) -> View {
    let length = i32::try_from(row_id.len()).unwrap();
    if row_id.len() > 12 {
        return view(length, 0, i32::try_from(data.len()).unwrap());
    }
    let mut short = view(length, 0, 0);
    short[4..4 + row_id.len()].copy_from_slice(row_id);
    short
}

proptest! {
    #[test]
    fn one_row_a_list_and_a_column_agree(
        rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..70), 0..40),
        partitions in 1..=MAX_PARTITIONS,
    ) {
        let want: Vec<u32> = rows.iter().map(|row| expected(row, partitions)).collect();
        let partitioner = Partitioner::new(partitions).unwrap();
        let views: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(&partitioner.partition_all(&views), &want);

        let (mut data, mut small, mut large, mut heads) = (Vec::new(), vec![0_i32], vec![0_i64], Vec::new());
        for row in &rows {
            heads.push(view_of(row, &data));
            data.extend_from_slice(row);
            small.push(i32::try_from(data.len()).unwrap());
            large.push(i64::try_from(data.len()).unwrap());
        }
        let mut out = vec![0; rows.len()];
        partition_offsets(&partitioner, &small, &data, &mut out).unwrap();
        prop_assert_eq!(&out, &want);
        out.fill(0);
        partition_offsets(&partitioner, &large, &data, &mut out).unwrap();
        prop_assert_eq!(&out, &want);
        out.fill(0);
        partition_views(&partitioner, &heads, &[&data], &mut out).unwrap();
        prop_assert_eq!(&out, &want);
    }
}
