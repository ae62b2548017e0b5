//! The rules one by one, as a reader would ask for them, and the limits.

use ringcast_core::ErrorCode;
use ringcast_core::dispatch::{
    Action, ConsumerId, Dispatcher, MAX_CONSUMERS, MAX_FILTERS, MAX_WINDOW, PoisonPolicy, Reason, Settings,
};

fn dispatcher(settings: Settings) -> Dispatcher {
    Dispatcher::new(settings, 0).unwrap()
}

fn join(dispatcher: &mut Dispatcher, name: &str, filters: &[&str]) -> (ConsumerId, Vec<Action>) {
    let mut out = Vec::new();
    (dispatcher.join(name, filters, None, 0, &mut out).unwrap(), out)
}

fn offer(dispatcher: &mut Dispatcher, messages: &[(u64, &str)]) -> Vec<Action> {
    let mut out = Vec::new();
    assert_eq!(dispatcher.offer(messages, 0, &mut out).unwrap(), messages.len());
    out
}

fn deliver(consumer: ConsumerId, offset: u64, attempt: u32) -> Action {
    Action::Deliver { consumer, offset, attempt }
}

#[test]
fn out_of_order_acknowledgements_move_the_cursor_only_when_it_is_contiguous() {
    let mut dispatcher = dispatcher(Settings::default());
    let (one, _) = join(&mut dispatcher, "one", &[]);
    offer(&mut dispatcher, &[(10, "a"), (11, "b"), (12, "c"), (15, "d")]);
    let mut out = Vec::new();
    assert_eq!(dispatcher.acknowledge(one, &[(10, 1), (12, 1), (15, 1)], 1, &mut out), [true; 3]);
    assert_eq!(out, [Action::Advance { cursor: 10 }]);
    out.clear();
    assert_eq!(dispatcher.acknowledge(one, &[(11, 1), (11, 1)], 1, &mut out), [true, false]);
    assert_eq!(out, [Action::Advance { cursor: 15 }]);
    assert_eq!((dispatcher.cursor(), dispatcher.unsettled(), dispatcher.counts().stale), (15, 0, 1));
}

#[test]
fn a_key_that_moves_waits_for_what_its_old_owner_has() {
    let mut dispatcher = dispatcher(Settings::default());
    let (one, _) = join(&mut dispatcher, "one", &["k*"]);
    assert_eq!(offer(&mut dispatcher, &[(1, "k"), (2, "k")]), [deliver(one, 1, 1)]);
    let mut out = Vec::new();
    let (two, joined) = join(&mut dispatcher, "two", &[]);
    assert!(joined.is_empty());
    assert!(dispatcher.drain(one, 0, &mut out)); // the key is the other's from now on
    assert!(out.is_empty());
    dispatcher.acknowledge(one, &[(1, 1)], 1, &mut out);
    assert_eq!(out, [Action::Left { consumer: one }, deliver(two, 2, 1), Action::Advance { cursor: 1 }]);
}

#[test]
fn an_evicted_consumer_settles_nothing() {
    let mut dispatcher = dispatcher(Settings { max_tries: 1, ..Settings::default() });
    let (one, _) = join(&mut dispatcher, "one", &[]);
    offer(&mut dispatcher, &[(1, "k"), (2, "k"), (3, "l")]);
    let mut out = Vec::new();
    dispatcher.heartbeat(one, 100);
    dispatcher.tick(3099, &mut out);
    assert!(out.is_empty());
    dispatcher.tick(3100, &mut out);
    assert_eq!(out, [Action::Evicted { consumer: one }]);
    assert!(!dispatcher.heartbeat(one, 3100));
    assert_eq!(dispatcher.acknowledge(one, &[(1, 1)], 3100, &mut out), [false]);
    assert_eq!(dispatcher.cursor(), 0);
    let (two, joined) = join(&mut dispatcher, "two", &[]);
    assert_eq!(joined, [deliver(two, 1, 2), deliver(two, 3, 2)]);
    out.clear();
    dispatcher.acknowledge(two, &[(1, 2)], 3100, &mut out);
    assert_eq!(out, [deliver(two, 2, 1), Action::Advance { cursor: 1 }]);
}

#[test]
fn a_key_that_nobody_accepts_is_skipped_but_waits_where_there_is_nobody_at_all() {
    let mut dispatcher = dispatcher(Settings::default());
    assert!(offer(&mut dispatcher, &[(1, "ship"), (2, "pay")]).is_empty());
    let (one, joined) = join(&mut dispatcher, "one", &["pay*"]);
    assert_eq!(joined, [Action::Skip { offset: 1, deliveries: 0 }, deliver(one, 2, 1), Action::Advance { cursor: 1 }]);
    assert_eq!(offer(&mut dispatcher, &[(3, "ship")]), [Action::Skip { offset: 3, deliveries: 0 }]);
}

#[test]
fn what_a_lost_consumer_had_is_kept_for_its_return() {
    let settings = Settings { orphan_hold_ms: 500, ..Settings::default() };
    for returns in [true, false] {
        let mut dispatcher = dispatcher(settings.clone());
        let (pay, _) = join(&mut dispatcher, "pay", &["pay*"]);
        join(&mut dispatcher, "ship", &["ship*"]);
        offer(&mut dispatcher, &[(1, "pay-1"), (2, "pay-1")]);
        let mut out = Vec::new();
        assert!(dispatcher.evict(pay, 1000, &mut out));
        assert_eq!(out, [Action::Evicted { consumer: pay }]);
        assert_eq!(dispatcher.next_deadline_ms(), Some(1500));
        if returns {
            let (again, joined) = join(&mut dispatcher, "pay", &["pay*"]);
            assert_eq!(joined, [deliver(again, 1, 2)]);
        } else {
            out.clear();
            dispatcher.tick(1500, &mut out);
            let skip = |offset, deliveries| Action::Skip { offset, deliveries };
            assert_eq!(out, [skip(1, 1), skip(2, 0), Action::Advance { cursor: 2 }]);
        }
    }
}

#[test]
fn tries_back_off_and_end_as_the_policy_says() {
    for poison in [PoisonPolicy::Drop, PoisonPolicy::DeadLetter, PoisonPolicy::Block] {
        let settings =
            Settings { max_tries: 3, backoff_most_ms: 1500, ack_timeout_ms: 10, poison, ..Settings::default() };
        let mut dispatcher = dispatcher(Settings { evict_after_ms: 60_000, ..settings });
        let (one, _) = join(&mut dispatcher, "one", &[]);
        offer(&mut dispatcher, &[(1, "k"), (2, "k")]);
        let mut out = Vec::new();
        dispatcher.reject(one, &[(1, 1)], 100, &mut out);
        dispatcher.tick(1099, &mut out);
        assert!(out.is_empty());
        dispatcher.tick(1100, &mut out);
        dispatcher.tick(1110, &mut out);
        assert_eq!(out, [deliver(one, 1, 2), Action::TimedOut { consumer: one, offset: 1, attempt: 2 }]);
        assert_eq!(dispatcher.next_deadline_ms(), Some(1110 + 1500));
        out.clear();
        dispatcher.tick(2610, &mut out);
        assert_eq!(dispatcher.reject(one, &[(1, 2), (1, 3)], 2611, &mut out), [false, true]);
        let (offset, deliveries, reason) = (1, 3, Reason::Rejected);
        let next = [deliver(one, 2, 1), Action::Advance { cursor: 1 }];
        assert_eq!(out.remove(0), deliver(one, 1, 3));
        match poison {
            PoisonPolicy::Drop => {
                assert_eq!(out.remove(0), Action::Drop { offset, deliveries, reason });
            }
            PoisonPolicy::DeadLetter => {
                assert_eq!(out, [Action::DeadLetter { offset, deliveries, reason }]);
                out.clear();
                assert!(dispatcher.dead_lettered(1, 2612, &mut out));
            }
            PoisonPolicy::Block => {
                assert_eq!(out, [Action::Block { offset, deliveries, reason }]);
                assert_eq!(dispatcher.blocked(), [1]);
                out.clear();
                assert!(dispatcher.unblock(1, 2612, &mut out));
                assert_eq!(out, [deliver(one, 1, 4)]);
                out.clear();
                dispatcher.acknowledge(one, &[(1, 4)], 2612, &mut out);
            }
        }
        assert_eq!(out, next, "{poison:?}");
        assert!(!dispatcher.dead_lettered(1, 0, &mut out) && !dispatcher.unblock(1, 0, &mut out));
        assert!(!dispatcher.discard(2, 0, &mut out));
    }
}

#[test]
fn a_message_that_its_consumers_die_of_is_poison_in_the_end() {
    let mut dispatcher = dispatcher(Settings { max_deliveries: 5, ..Settings::default() });
    let mut out = Vec::new();
    offer(&mut dispatcher, &[(1, "k")]);
    for attempt in 1..=5 {
        let (one, joined) = join(&mut dispatcher, "one", &[]);
        assert_eq!(joined, [deliver(one, 1, attempt)]);
        out.clear();
        assert!(dispatcher.evict(one, 0, &mut out));
    }
    assert_eq!(out[1], Action::Drop { offset: 1, deliveries: 5, reason: Reason::Evicted });
    assert_eq!(dispatcher.cursor(), 1);
}

#[test]
fn a_full_window_takes_no_more_and_a_full_consumer_lets_others_go_on() {
    let mut dispatcher = dispatcher(Settings { window: 3, consumer_capacity: 1, ..Settings::default() });
    let (a, _) = join(&mut dispatcher, "a", &["a*"]);
    let (b, _) = join(&mut dispatcher, "b", &["b*"]);
    let mut out = Vec::new();
    let batch = [(1, "a1"), (2, "a2"), (3, "b1"), (4, "b2")];
    assert_eq!(dispatcher.offer(&batch, 0, &mut out).unwrap(), 3);
    assert_eq!(out, [deliver(a, 1, 1), deliver(b, 3, 1)]);
    assert_eq!(dispatcher.room(), 0);
    let states = dispatcher.consumers();
    assert_eq!((states[0].in_flight, states[0].waiting, states[1].waiting), (1, 1, 0));
    out.clear();
    dispatcher.acknowledge(b, &[(3, 1)], 0, &mut out);
    assert!(out.is_empty());
    assert_eq!(dispatcher.offer(&batch, 0, &mut out).unwrap(), 4);
    assert_eq!(out, [deliver(b, 4, 1)]);
    assert_eq!(dispatcher.counts().repeated, 3);
}

#[test]
fn a_busy_key_does_not_keep_others_waiting() {
    let mut dispatcher = dispatcher(Settings { consumer_capacity: 1, ..Settings::default() });
    let (one, _) = join(&mut dispatcher, "one", &[]);
    offer(&mut dispatcher, &[(1, "busy"), (2, "other"), (3, "busy"), (4, "third")]);
    let mut out = Vec::new();
    for offset in 1..4 {
        assert_eq!(dispatcher.acknowledge(one, &[(offset, 1)], 0, &mut out), [true]);
    }
    out.retain(|action| matches!(action, Action::Deliver { .. }));
    assert_eq!(out, [deliver(one, 2, 1), deliver(one, 3, 1), deliver(one, 4, 1)]);
}

#[test]
fn a_message_that_holds_the_cursor_holds_no_memory_of_those_behind_it() {
    let settings = Settings { window: 8, evict_after_ms: 60_000, ..Settings::default() };
    let mut dispatcher = dispatcher(settings);
    let (one, _) = join(&mut dispatcher, "one", &[]);
    offer(&mut dispatcher, &[(1, "slow")]);
    let mut out = Vec::new();
    let mut most = 0;
    for offset in (10..20_000).step_by(2) {
        assert_eq!(dispatcher.offer(&[(offset, "a"), (offset + 1, "b")], 1, &mut out).unwrap(), 2);
        assert_eq!(
            dispatcher.acknowledge(one, &[(offset + 1, 1), (offset, 1), (offset, 1)], 1, &mut out),
            [true, true, false]
        );
        // All that it remembers is in there.
        most = most.max(if offset % 50 == 0 { format!("{dispatcher:?}").len() } else { 0 });
    }
    assert!(most < 40_000, "{most}");
    assert_eq!((dispatcher.cursor(), dispatcher.unsettled(), dispatcher.in_flight()), (0, 1, 1));
    assert_eq!(dispatcher.next_deadline_ms(), Some(30_000));
    out.clear();
    dispatcher.tick(30_000, &mut out);
    assert_eq!(out, [Action::TimedOut { consumer: one, offset: 1, attempt: 1 }]);
    dispatcher.tick(31_000, &mut out);
    dispatcher.acknowledge(one, &[(1, 2)], 31_000, &mut out);
    assert_eq!(out[1..], [deliver(one, 1, 2), Action::Advance { cursor: 19_999 }]);
}

#[test]
fn a_clock_that_runs_backwards_stands_still() {
    let mut dispatcher = dispatcher(Settings::default());
    let mut out = Vec::new();
    let one = dispatcher.join("one", &[], None, 5000, &mut out).unwrap();
    assert!(dispatcher.heartbeat(one, 10));
    assert_eq!(dispatcher.next_deadline_ms(), Some(8000));
    dispatcher.tick(u64::MAX, &mut out);
    assert_eq!(out, [Action::Evicted { consumer: one }]);
}

#[test]
fn every_setting_has_its_limits() {
    let good = Settings::default();
    let day = 24 * 60 * 60 * 1000;
    let bad = [
        ("window must be between 1 and 1048576, got 0", Settings { window: 0, ..good.clone() }),
        ("window must be between 1 and 1048576, got 1048577", Settings { window: MAX_WINDOW + 1, ..good.clone() }),
        ("consumer_capacity must be between 1 and 1048576, got 0", Settings { consumer_capacity: 0, ..good.clone() }),
        ("max_tries must be between 1 and 20, got 21", Settings { max_tries: 21, ..good.clone() }),
        ("max_tries must be between 1 and 20, got 0", Settings { max_tries: 0, ..good.clone() }),
        ("max_deliveries must be between 1 and 1000, got 1001", Settings { max_deliveries: 1001, ..good.clone() }),
        ("ack_timeout_ms must be between 1 and 86400000, got 0", Settings { ack_timeout_ms: 0, ..good.clone() }),
        (
            "backoff_first_ms must be between 1 and 86400000, got 86400001",
            Settings { backoff_first_ms: day + 1, ..good.clone() },
        ),
        (
            "backoff_most_ms must be between 1000 and 86400000, got 999",
            Settings { backoff_most_ms: 999, ..good.clone() },
        ),
        ("evict_after_ms must be between 1 and 86400000, got 0", Settings { evict_after_ms: 0, ..good.clone() }),
        ("orphan_hold_ms must be between 1 and 86400000, got 0", Settings { orphan_hold_ms: 0, ..good }),
    ];
    for (message, settings) in bad {
        assert_eq!(Dispatcher::new(settings, 0).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_refused_consumer_leaves_nothing_behind() {
    let mut dispatcher = dispatcher(Settings::default());
    let mut out = Vec::new();
    let long = "x".repeat(513);
    let many = vec!["a"; MAX_FILTERS + 1];
    let bad: [(&str, &[&str], Option<u32>, &str); 7] = [
        ("", &[], None, "consumer name length in bytes must be between 1 and 512, got 0"),
        (&long, &[], None, "consumer name length in bytes must be between 1 and 512, got 513"),
        ("a", &many, None, "number of filters must be between 0 and 64, got 65"),
        ("a", &["ok", ""], None, "filter length in bytes must be between 1 and 512, got 0"),
        ("a", &[&long], None, "filter length in bytes must be between 1 and 512, got 513"),
        ("a", &[], Some(0), "capacity must be between 1 and 1048576, got 0"),
        ("a", &[], Some(MAX_WINDOW + 1), "capacity must be between 1 and 1048576, got 1048577"),
    ];
    for (name, filters, capacity, message) in bad {
        assert_eq!(dispatcher.join(name, filters, capacity, 0, &mut out).unwrap_err().to_string(), message);
    }
    let (one, _) = join(&mut dispatcher, "one", &[]);
    let error = dispatcher.join("one", &[], None, 0, &mut out).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Duplicate);
    assert_eq!(dispatcher.consumers().len(), 1);
    // One that is leaving has made room for its successor.
    offer(&mut dispatcher, &[(1, "k")]);
    assert!(dispatcher.drain(one, 0, &mut out) && !dispatcher.drain(one, 0, &mut out));
    join(&mut dispatcher, "one", &[]);
    assert_eq!(dispatcher.consumers().len(), 2);
    let error = dispatcher.offer(&[(2, "ok"), (3, &long)], 0, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "key length in bytes must be between 0 and 512, got 513");
    assert_eq!(dispatcher.last_offset(), 1);
}

#[test]
fn no_more_consumers_than_a_ring_may_have() {
    let mut dispatcher = dispatcher(Settings::default());
    let mut out = Vec::new();
    for offset in 1..=u64::from(MAX_CONSUMERS) {
        // Each leaves with a message in flight, and so counts on. That spares the test large rings.
        let (one, _) = join(&mut dispatcher, "one", &[]);
        assert_eq!(offer(&mut dispatcher, &[(offset, &format!("k{offset}"))]), [deliver(one, offset, 1)]);
        assert!(dispatcher.drain(one, 0, &mut out));
    }
    let error = dispatcher.join("one", &[], None, 0, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "number of consumers must be between 1 and 1024, got 1025");
    dispatcher.acknowledge(ConsumerId(7), &[(7, 1)], 0, &mut out);
    assert_eq!(out, [Action::Left { consumer: ConsumerId(7) }]);
    join(&mut dispatcher, "one", &[]);
}
