//! Ten thousand random schedules, and what must not get past the checker.

use crate::checker::{Owners, Tally, judge};
use crate::falsify::FALSIFIERS;
use crate::history::{Fault, Random, schedule};

const STEPS: u32 = 60;

#[test]
fn ten_thousand_random_schedules_keep_the_rules() {
    let owners = Owners::new();
    let mut sum = Tally::default();
    for seed in 0..10_000 {
        let world = schedule(seed, STEPS, None);
        let tally = judge(&world.history, &owners).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let counts = world.dispatcher.counts();
        assert_eq!(tally.unsettled, 0, "seed {seed}: unsettled to the end");
        assert_eq!(tally.offered, tally.acked + tally.dropped + tally.dead_lettered + tally.skipped, "seed {seed}");
        let counted = Tally {
            offered: counts.offered,
            deliveries: counts.deliveries,
            acked: counts.acked,
            dropped: counts.dropped,
            dead_lettered: counts.dead_lettered,
            skipped: counts.skipped,
            ..tally
        };
        assert_eq!(counted, tally, "seed {seed}: the dispatcher counts otherwise");
        sum.offered += tally.offered;
        sum.dropped += tally.dropped;
        sum.dead_lettered += tally.dead_lettered;
        sum.skipped += tally.skipped;
        sum.full_window += tally.full_window;
        sum.full_consumer += tally.full_consumer;
        sum.moved_keys += tally.moved_keys;
    }
    // Nothing of this is proved by schedules in which it does not happen.
    println!("{sum:?}");
    for often in [sum.dropped, sum.dead_lettered, sum.skipped, sum.full_window, sum.full_consumer, sum.moved_keys] {
        assert!(often > 1000, "{sum:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [1, 2, 3] {
        assert_eq!(schedule(seed, 200, None).history.events, schedule(seed, 200, None).history.events);
    }
}

#[test]
fn a_dispatcher_that_breaks_a_rule_is_found_out() {
    let owners = Owners::new();
    for fault in
        [Fault::EvictionAcknowledges, Fault::JoinForgets, Fault::TimeOutAcknowledges, Fault::RejectAcknowledges]
    {
        let worlds = (0..400).map(|seed| schedule(seed, STEPS, Some(fault)));
        let faulty: Vec<_> = worlds.filter(|world| world.faulty).collect();
        assert!(faulty.len() > 50, "{fault:?} came about {} times", faulty.len());
        for world in faulty {
            assert!(judge(&world.history, &owners).is_err(), "{fault:?} was not noticed");
        }
    }
}

#[test]
fn a_history_with_one_rule_broken_is_found_out() {
    let owners = Owners::new();
    for (name, words, falsify) in FALSIFIERS {
        let mut applied = 0;
        let mut by_its_name = 0;
        for seed in 0..300 {
            let mut history = schedule(seed, STEPS, None).history;
            if !falsify(&mut history, &mut Random(seed)) {
                continue;
            }
            applied += 1;
            let verdict = judge(&history, &owners);
            let wrong = verdict.expect_err(&format!("{name}, seed {seed}, was not noticed"));
            by_its_name += u32::from(wrong.contains(words));
        }
        assert!(applied >= 20, "{name} could be applied {applied} times only");
        assert!(by_its_name > 0, "{name} was never called {words:?}");
    }
}
