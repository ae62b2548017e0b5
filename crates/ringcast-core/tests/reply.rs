//! Fetch replies as columns: what is read, what is refused, and how much memory a lie may cost.
//!
//! That the same replies are accepted as by the decoder of `ringcast-wire` is tested in Python, where that one is
//! (`packages/ringcast-spark/tests/test_columns.py`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::prelude::*;
use ringcast_core::ErrorCode;
use ringcast_core::reply::{Entry, Rows, Texts, decode};

/// The system's allocator, which counts what the thread holds and remembers the most that it held.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all the work; the counters have no destructor and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get().saturating_add(layout.size());
        HELD.set(held);
        MOST.set(MOST.get().max(held));
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` held at once.
fn peak<T>(work: impl FnOnce() -> T) -> usize {
    let before = HELD.get();
    MOST.set(before);
    drop(work());
    MOST.get() - before
}

fn texts(texts: &Texts) -> Vec<&str> {
    let bounds = texts.offsets().windows(2);
    let at = |offset: i32| usize::try_from(offset).unwrap();
    bounds.map(|pair| std::str::from_utf8(&texts.data()[at(pair[0])..at(pair[1])]).unwrap()).collect()
}

fn set(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len() * 8).filter(|row| bytes[row / 8] >> (row % 8) & 1 == 1).collect()
}

/// Every column is as long as it must be, and every offset points into its data.
fn check(rows: &Rows) {
    let count = rows.len();
    assert_eq!(rows.entries.iter().map(|entry| entry.rows).sum::<usize>(), count);
    assert_eq!((texts(&rows.row_ids).len(), texts(&rows.values).len()), (count, count));
    assert_eq!((rows.partitions.len(), rows.metadata.offsets().len()), (count, count + 1));
    assert_eq!(set(&rows.deleted.bytes(count, false)).len(), rows.deleted.set_count());
    assert_eq!(set(&rows.metadata.present.bytes(count, false)).len(), rows.metadata.present.set_count());
    let pairs = texts(&rows.metadata.keys).len();
    assert_eq!(texts(&rows.metadata.values).len(), pairs);
    assert!(rows.metadata.offsets().is_sorted());
    assert_eq!(rows.metadata.offsets().last().map(|end| usize::try_from(*end).unwrap()), Some(pairs));
}

fn refusal(body: &[u8]) -> String {
    let error = decode(body).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Malformed);
    error.to_string()
}

/// Two entries: three rows (a value, a tombstone, metadata with a key given twice), and one of three fields alone.
const SAMPLE: &[u8] = b"\x92\x01\x92\
    \x94\x03\x09\xc3\x93\
    \x95\xa1a\xa1v\x01\xc2\xc0\
    \x95\xa1b\xa1w\xcd\x01\x00\xc3\x80\
    \x95\xa2\xc3\xa9\xd9\x01x\xd3\x7f\xff\xff\xff\xff\xff\xff\xff\xc2\x83\xa1k\xa11\xa1l\xa12\xa1k\xa13\
    \x94\xcd\x0f\xff\xff\xc2\x91\
    \x93\xa0\xa0\x07";

#[test]
fn columns_hold_what_the_reply_says() {
    let rows = decode(SAMPLE).unwrap();
    check(&rows);
    assert_eq!(
        rows.entries,
        [
            Entry { partition: 3, revision: 9, whole: true, rows: 3 },
            Entry { partition: 4095, revision: -1, whole: false, rows: 1 },
        ]
    );
    assert_eq!(texts(&rows.row_ids), ["a", "b", "é", ""]);
    assert_eq!(texts(&rows.values), ["v", "", "x", ""]);
    assert_eq!(rows.versions, [1, 256, i64::MAX, 7]);
    assert_eq!(rows.partitions, [3, 3, 3, 4095]);
    assert_eq!(set(&rows.deleted.bytes(4, false)), [1]);
    assert_eq!(set(&rows.metadata.present.bytes(4, false)), [2]);
    assert_eq!(rows.metadata.offsets(), [0, 0, 0, 2, 2]);
    assert_eq!((texts(&rows.metadata.keys), texts(&rows.metadata.values)), (vec!["k", "l"], vec!["3", "2"]));
    assert!(decode(b"\x92\x01\x90").unwrap().is_empty());
}

#[test]
fn appended_fields_are_skipped_whatever_they_are() {
    let values: [&[u8]; 12] = [
        b"\xc0",
        b"\xcb\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\xc4\x01\xff",
        b"\xa1\xff",
        b"\xd6\x01abcd",
        b"\xc7\x03\x01abc",
        b"\xdc\x00\x02\x01\x91\x90",
        b"\xde\x00\x01\x01\x80",
        b"\x82\xa0\x01\xa0\x81\xc0\xc2",
        b"\xd8\x01abcdefghijklmnop",
        b"\xdb\x00\x00\x00\x01x",
        b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    ];
    for value in values {
        let row = [b"\x96\xa1a\xa1v\x01\xc2\xc0".as_slice(), value].concat();
        let entry = [b"\x95\x00\x01\xc3\x91".as_slice(), &row, value].concat();
        let body = [b"\x94\x01\x91".as_slice(), &entry, b"\xa1h", value].concat();
        let rows = decode(&body).unwrap();
        check(&rows);
        assert_eq!(texts(&rows.row_ids), ["a"]);
        assert!(decode(&body[..body.len() - 1]).is_err(), "{value:?} cut short");
    }
}

#[test]
fn nesting_uses_no_stack() {
    let deep = [b"\x94\x01\x90\xa0".as_slice(), &vec![0x91; 1 << 20], b"\xc0"].concat();
    assert!(decode(&deep).unwrap().is_empty());
    assert_eq!(refusal(&deep[..deep.len() - 1]), "reply can't be read at byte 1048580: it ends too early");
}

#[test]
fn refusals_say_where_and_why() {
    let cases: [(&[u8], &str); 14] = [
        (b"", "at byte 0: it ends too early"),
        (b"\xc1", "at byte 1: no MessagePack value begins so"),
        (b"\x91\x01", "at byte 1: reply must have at least 2 fields, got 1"),
        (b"\x92\x02\x90", "at byte 2: it has wire version 2, this build speaks 1"),
        (b"\x92\xca\x00\x00\x00\x00\x90", "at byte 2: wire_version must be int, got float"),
        (b"\x92\x01\x80", "at byte 3: partitions must be array, got map"),
        (b"\x92\x01\x90\x00", "at byte 3: something follows its end"),
        (b"\x92\x01\x91\x94\xce\x80\x00\x00\x00\x01\xc3\x90", "partition must fit a signed integer of 32 bits"),
        (b"\x92\x01\x91\x94\x00\x01\x01\x90", "at byte 7: whole must be bool, got int"),
        (b"\x92\x01\x91\x94\x00\x01\xc3\x91\x93\xa1\xff\xa0\x01", "at byte 11: row_id must be UTF-8"),
        (b"\x92\x01\x91\x94\x00\x01\xc3\x91\x93\xa1a\xc4\x00\x01", "at byte 12: value must be str, got bin"),
        (b"\x92\x01\x91\x94\x00\x01\xc3\x91\x93\xa0\xa0\xc0\x00", "at byte 12: version must be int, got nil"),
        (
            b"\x92\x01\x91\x94\x00\x01\xc3\x91\x93\xa0\xa0\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
            "version must fit a signed integer of 64 bits",
        ),
        (b"\x92\x01\x91\x94\x00\x01\xc3\x91\x95\xa0\xa0\x01\xc2\x81\xa0\xd4\x00\x00", "must be str, got ext"),
    ];
    for (body, sentence) in cases {
        let found = refusal(body);
        assert!(found.starts_with("reply can't be read at byte ") && found.ends_with(sentence), "{body:?}: {found}");
    }
}

#[test]
fn a_reply_cut_short_is_refused_wherever_it_is_cut() {
    for length in 0..SAMPLE.len() {
        assert!(decode(&SAMPLE[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn false_counts_reserve_nothing() {
    const COUNTS: [&[u8]; 7] = [
        b"\xdd\xff\xff\xff\xff",
        b"\x92\x01\xdd\xff\xff\xff\xff",
        b"\x92\x01\x91\x94\x00\x01\xc3\xdd\xff\xff\xff\xff",
        b"\x92\x01\x91\x94\x00\x01\xc3\x91\x93\xdb\xff\xff\xff\xff",
        b"\x92\x01\x91\x94\x00\x01\xc3\x91\x95\xa0\xa0\x01\xc2\xdf\xff\xff\xff\xff",
        b"\x93\x01\x90\xdb\xff\xff\xff\xff",
        b"\x94\x01\x90\xa0\xdf\xff\xff\xff\xff",
    ];
    for body in COUNTS {
        assert!(peak(|| assert!(refusal(body).ends_with("it ends too early"))) < 2048, "{body:?}");
    }
    // A count that the bytes could just hold reserves for as many rows as they could hold, and no more.
    let mut body = b"\x92\x01\x91\x94\x00\x01\xc3\xdd\x00\x0f\x00\x00".to_vec();
    body.resize(1 << 20, 0xc1);
    assert!(peak(|| refusal(&body)) < 8 * body.len());
}

#[test]
fn memory_is_in_proportion_to_the_bytes_given() {
    let mut rows = b"\x92\x01\x91\x94\x00\x01\xc3\xdd\x00\x04\x00\x00".to_vec();
    rows.extend(b"\x93\xa0\xa0\x01".repeat(1 << 18));
    let mut entries = b"\x92\x01\xdd\x00\x04\x00\x00".to_vec();
    entries.extend(b"\x94\x00\x01\xc3\x90".repeat(1 << 18));
    let mut pairs = b"\x92\x01\x91\x94\x00\x01\xc3\x91\x95\xa0\xa0\x01\xc2\xdf\x00\x04\x00\x00".to_vec();
    for number in 0..1 << 18 {
        pairs.push(0xa6);
        pairs.extend(format!("{number:06}").bytes());
        pairs.push(0xa0);
    }
    for body in [rows, entries, pairs] {
        assert!(peak(|| check(&decode(&body).unwrap())) < 64 * body.len());
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(rows) = decode(&body) {
            check(&rows);
        }
    }

    #[test]
    fn damaged_replies_are_refused_or_whole(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut body = SAMPLE.to_vec();
        for (at, byte) in edits {
            let at = at.index(body.len());
            body[at] = byte;
        }
        for body in [&body[..], &body[..cut.index(body.len())]] {
            if let Ok(rows) = decode(body) {
                check(&rows);
            }
        }
    }
}
