//! Micro-batch dedup against a plain model.

use proptest::prelude::*;
use ringcast_core::dedup::{Change, Dedup, Push};
use ringcast_core::{ErrorCode, MAX_DEDUP_ROWS};

fn change(partition: u32, row_id: &str, version: u64, deleted: bool) -> Change {
    Change { partition, row_id: row_id.into(), version, deleted }
}

#[test]
fn keeps_the_newest_version_in_order_of_first_arrival() {
    let mut batch = Dedup::new(8).unwrap();
    assert_eq!(batch.push(1, "b", 4, false).unwrap(), Push::Added);
    assert_eq!(batch.push(1, "a", 5, false).unwrap(), Push::Added);
    assert_eq!(batch.push(1, "b", 7, true).unwrap(), Push::Replaced);
    assert_eq!(batch.push(1, "b", 6, false).unwrap(), Push::Stale);
    assert_eq!(batch.push(1, "b", 7, false).unwrap(), Push::Stale);
    assert_eq!(batch.push(2, "b", 1, false).unwrap(), Push::Added);
    assert_eq!(batch.drain(), [change(1, "b", 7, true), change(1, "a", 5, false), change(2, "b", 1, false)]);
    assert!(batch.is_empty());
    assert_eq!(batch.push(1, "b", 1, false).unwrap(), Push::Added);
}

#[test]
fn a_full_batch_takes_newer_versions_but_no_new_rows() {
    let mut batch = Dedup::new(2).unwrap();
    let rows = [(0, "a", 1, false), (0, "b", 1, false), (0, "a", 2, false), (0, "c", 1, false), (0, "b", 9, false)];
    assert_eq!(batch.push_many(&rows).unwrap(), 3);
    assert_eq!(batch.push(0, "c", 1, false).unwrap(), Push::Full);
    assert_eq!(batch.push(0, "b", 2, true).unwrap(), Push::Replaced);
    assert_eq!(batch.push(0, "b", 2, true).unwrap(), Push::Stale);
    assert_eq!(batch.drain(), [change(0, "a", 2, false), change(0, "b", 2, true)]);
}

#[test]
fn bad_arguments_are_refused_and_leave_nothing() {
    for max_rows in [0, MAX_DEDUP_ROWS + 1] {
        assert_eq!(Dedup::new(max_rows).unwrap_err().code(), ErrorCode::OutOfRange);
    }
    let mut batch = Dedup::new(8).unwrap();
    let long = "x".repeat(513);
    for bad in [(4096, "a", 1, false), (0, long.as_str(), 1, false)] {
        let error = batch.push_many(&[(0, "good", 1, false), bad]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::OutOfRange);
        assert_eq!(batch.push(bad.0, bad.1, bad.2, bad.3).unwrap_err().code(), ErrorCode::OutOfRange);
    }
    assert!(batch.is_empty());
}

proptest! {
    #[test]
    fn equals_a_list_searched_from_the_front(
        pushes in prop::collection::vec((0..3_u32, "[a-d]", 0..6_u64, any::<bool>()), 0..60),
        max_rows in 1..8_usize,
    ) {
        let mut batch = Dedup::new(max_rows).unwrap();
        let mut model: Vec<Change> = Vec::new();
        for (partition, row_id, version, deleted) in pushes {
            let got = batch.push(partition, &row_id, version, deleted).unwrap();
            let full = model.len() == max_rows;
            let known = model.iter_mut().find(|row| row.partition == partition && *row.row_id == *row_id);
            let want = match known {
                Some(row) if row.version >= version => Push::Stale,
                Some(row) => {
                    *row = change(partition, &row_id, version, deleted);
                    Push::Replaced
                }
                None if full => Push::Full,
                None => {
                    model.push(change(partition, &row_id, version, deleted));
                    Push::Added
                }
            };
            prop_assert_eq!(got, want);
            prop_assert_eq!(batch.len(), model.len());
        }
        prop_assert_eq!(batch.drain(), model);
    }
}
