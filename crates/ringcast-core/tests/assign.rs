//! Bounded-load assignment: balance, movement and determinism.

use std::collections::HashMap;

use proptest::prelude::*;
use ringcast_core::assign::{DEFAULT_LOAD_FACTOR, assign};
use ringcast_core::{ErrorCode, MAX_PARTITIONS, MAX_SLOTS};

fn loads(table: &[u32]) -> HashMap<u32, usize> {
    let mut loads = HashMap::new();
    for &slot in table {
        *loads.entry(slot).or_default() += 1;
    }
    loads
}

fn moved(before: &[u32], after: &[u32]) -> usize {
    before.iter().zip(after).filter(|(before, after)| before != after).count()
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn widest(partitions: u32, slots: usize, load_factor: f64) -> usize {
    (load_factor * f64::from(partitions) / slots as f64).ceil() as usize
}

fn all_but(slots: u32, gone: u32) -> Vec<u32> {
    (0..slots).filter(|&slot| slot != gone).collect()
}

/// Partitions that move when slot `gone` of `slots` falls vacant, above those it had, as a share of all.
#[allow(clippy::cast_precision_loss)]
fn needless(partitions: u32, slots: u32, load_factor: f64, gone: u32) -> f64 {
    let before = assign(partitions, &(0..slots).collect::<Vec<_>>(), load_factor).unwrap();
    let after = assign(partitions, &all_but(slots, gone), load_factor).unwrap();
    (moved(&before, &after) - loads(&before)[&gone]) as f64 / f64::from(partitions)
}

/// The mean of [`needless`] over every slot but the last.
fn needless_in_the_middle(partitions: u32, slots: u32, load_factor: f64) -> f64 {
    (0..slots - 1).map(|gone| needless(partitions, slots, load_factor, gone)).sum::<f64>() / f64::from(slots - 1)
}

#[test]
#[allow(clippy::cast_precision_loss)]
fn reaches_the_figures_of_the_design() {
    let all: Vec<u32> = (0..50).collect();
    let before = assign(1024, &all, DEFAULT_LOAD_FACTOR).unwrap();
    let mean = 1024.0 / 50.0;
    assert!(*loads(&before).values().max().unwrap() as f64 / mean <= 1.29);
    for gone in 0..49 {
        let after = assign(1024, &all_but(50, gone), DEFAULT_LOAD_FACTOR).unwrap();
        let share = moved(&before, &after) as f64 / 1024.0;
        assert!(share <= 0.0264, "slot {gone} moved {share}: more than the 27 partitions it may have had");
        assert!(*loads(&after).values().max().unwrap() as f64 / (1024.0 / 49.0) <= 1.29);
    }
}

#[test]
fn a_leaver_in_the_middle_moves_hardly_more_than_its_own() {
    for (partitions, slots, load_factor, limit) in
        [(1024, 50, 1.25, 0.0005), (256, 10, 1.25, 0.0005), (4096, 200, 1.25, 0.0005), (1024, 50, 1.1, 0.005)]
    {
        let share = needless_in_the_middle(partitions, slots, load_factor);
        println!("{partitions} partitions, {slots} slots, load factor {load_factor}: {share:.5} needless");
        assert!(share < limit, "{partitions} partitions, {slots} slots: {share} moved needlessly");
    }
}

#[test]
fn a_leaver_at_the_end_moves_little_more_than_its_own() {
    for (partitions, slots) in [(1024, 50), (256, 10), (4096, 200)] {
        let share = needless(partitions, slots, DEFAULT_LOAD_FACTOR, slots - 1);
        println!("{partitions} partitions, {slots} slots: {share:.5} needless");
        assert!(share < 0.02, "{partitions} partitions, {slots} slots: {share} moved needlessly");
    }
}

#[test]
fn a_joiner_takes_little_from_others_but_its_share() {
    for (partitions, slots) in [(256_u32, 4_u32), (1024, 50), (4096, 200)] {
        let before = assign(partitions, &(0..slots).collect::<Vec<_>>(), DEFAULT_LOAD_FACTOR).unwrap();
        let after = assign(partitions, &(0..=slots).collect::<Vec<_>>(), DEFAULT_LOAD_FACTOR).unwrap();
        let taken = loads(&after)[&slots];
        let needless = moved(&before, &after) - taken;
        assert!(taken * slots as usize >= partitions as usize / 2, "the joiner got {taken} of {partitions}");
        assert!(needless * 50 <= partitions as usize, "{needless} of {partitions} moved between others");
    }
}

#[test]
fn a_joiner_in_a_vacant_slot_undoes_the_leave() {
    let all: Vec<u32> = (0..50).collect();
    let before = assign(1024, &all, DEFAULT_LOAD_FACTOR).unwrap();
    assert_ne!(assign(1024, &all_but(50, 17), DEFAULT_LOAD_FACTOR).unwrap(), before);
    assert_eq!(assign(1024, &all, DEFAULT_LOAD_FACTOR).unwrap(), before);
}

#[test]
fn bad_arguments_are_refused_with_field_and_limit() {
    let refusal = |partitions, slots: &[u32], load| assign(partitions, slots, load).unwrap_err();
    for (error, code, text) in [
        (refusal(0, &[0], 1.25), ErrorCode::OutOfRange, "partitions must be between 1 and 4096, got 0"),
        (refusal(4097, &[0], 1.25), ErrorCode::OutOfRange, "partitions must be between 1 and 4096, got 4097"),
        (refusal(8, &[], 1.25), ErrorCode::Empty, "slots must have at least one entry, got none"),
        (refusal(8, &[1, 1024], 1.25), ErrorCode::OutOfRange, "slots must be between 0 and 1023, got 1024"),
        (refusal(8, &[3, 1, 3], 1.25), ErrorCode::Duplicate, "slots must not repeat an entry, got 3 twice"),
        (refusal(8, &[1], 0.99), ErrorCode::OutOfRange, "load_factor must be between 1.0 and 1024.0, got 0.99"),
        (refusal(8, &[1], f64::NAN), ErrorCode::OutOfRange, "load_factor must be between 1.0 and 1024.0, got NaN"),
    ] {
        assert_eq!((error.code(), error.to_string().as_str()), (code, text));
    }
}

fn fleet() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![prop::collection::btree_set(0..24_u32, 1..=24), prop::collection::btree_set(0..MAX_SLOTS, 1..=60),]
        .prop_map(|slots| slots.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_partition_is_owned_within_the_bound(
        partitions in 1..=MAX_PARTITIONS,
        slots in fleet(),
        load_factor in prop_oneof![Just(1.0), Just(1.25), 1.0..3.0_f64],
    ) {
        let table = assign(partitions, &slots, load_factor).unwrap();
        prop_assert_eq!(table.len(), partitions as usize);
        let bound = widest(partitions, slots.len(), load_factor);
        for (slot, load) in loads(&table) {
            prop_assert!(slots.contains(&slot));
            prop_assert!(load <= bound, "slot {} has {}, bound {}", slot, load, bound);
        }
    }

    #[test]
    fn the_order_of_slots_has_no_influence(partitions in 1..=1024_u32, slots in fleet()) {
        let mut sorted = slots.clone();
        sorted.sort_unstable();
        let table = assign(partitions, &slots, DEFAULT_LOAD_FACTOR).unwrap();
        prop_assert_eq!(table, assign(partitions, &sorted, DEFAULT_LOAD_FACTOR).unwrap());
    }

    #[test]
    fn without_a_bound_only_the_leavers_partitions_move(slots in fleet(), pick: prop::sample::Index) {
        let highest = *slots.iter().max().unwrap();
        let candidates: Vec<u32> = slots.iter().copied().filter(|&slot| slot != highest).collect();
        prop_assume!(!candidates.is_empty());
        let gone = *pick.get(&candidates);
        let rest: Vec<u32> = slots.iter().copied().filter(|&slot| slot != gone).collect();
        let before = assign(512, &slots, 1024.0).unwrap();
        let after = assign(512, &rest, 1024.0).unwrap();
        for (before, after) in before.into_iter().zip(after) {
            prop_assert!(before == after || before == gone);
        }
    }
}
