//! The variant without bookkeeping.

use ringcast_core::dispatch::{ConsumerId, MAX_SETTING_MS, Route, Routed, Router};
use ringcast_core::ring::Ring;

#[test]
fn each_message_goes_to_the_owner_of_its_key() {
    let mut router = Router::new(3000).unwrap();
    let names = ["one", "two", "three"];
    let ids: Vec<ConsumerId> = names.iter().map(|name| router.join(name, &[], 1000, 0).unwrap()).collect();
    let ring = Ring::new(&names).unwrap();
    let keys: Vec<String> = (0..300).map(|key| format!("key-{key}")).collect();
    let found = router.route(&keys.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    for (key, route) in keys.iter().zip(found) {
        assert_eq!(route, Route::To(ids[ring.owner(key.as_bytes()) as usize]));
    }
}

#[test]
fn what_does_not_fit_is_lost_and_what_nobody_wants_too() {
    let mut router = Router::new(3000).unwrap();
    assert_eq!(router.route(&["a"]).unwrap(), [Route::Unmatched]);
    let one = router.join("one", &["a*"], 2, 0).unwrap();
    let (to, full) = (Route::To(one), Route::Saturated(one));
    assert_eq!(router.route(&["a1", "b", "a2", "a3"]).unwrap(), [to, Route::Unmatched, to, full]);
    assert!(router.taken(one, 1, 10));
    assert_eq!(router.route(&["a1", "a2"]).unwrap(), [to, full]);
    assert!(router.taken(one, 99, 10));
    assert_eq!(router.route(&["a1", "a2", "a3"]).unwrap(), [to, to, full]);
    assert_eq!(router.counts(), Routed { queued: 5, saturated: 3, unmatched: 2 });
    assert!(router.leave(one) && !router.leave(one) && !router.taken(one, 1, 10));
}

#[test]
fn the_silent_are_evicted() {
    let mut router = Router::new(3000).unwrap();
    assert_eq!(router.next_deadline_ms(), None);
    let one = router.join("one", &[], 5, 1000).unwrap();
    let two = router.join("two", &[], 5, 1000).unwrap();
    assert!(router.heartbeat(two, 2000));
    assert_eq!(router.next_deadline_ms(), Some(4000));
    assert!(router.tick(3999).is_empty());
    assert_eq!(router.tick(4000), [one]);
    assert!(!router.heartbeat(one, 4000));
    assert_eq!(router.next_deadline_ms(), Some(5000));
    assert_eq!(router.tick(5000), [two]);
}

#[test]
fn bad_arguments_are_refused() {
    for ms in [0, MAX_SETTING_MS + 1] {
        let message = format!("evict_after_ms must be between 1 and 86400000, got {ms}");
        assert_eq!(Router::new(ms).unwrap_err().to_string(), message);
    }
    let mut router = Router::new(1).unwrap();
    let one = router.join("one", &[], 5, 0).unwrap();
    let long = "x".repeat(513);
    let error = router.route(&["good", &long]).unwrap_err();
    assert_eq!(error.to_string(), "key length in bytes must be between 0 and 512, got 513");
    assert_eq!(router.route(&["good"; 6]).unwrap()[5], Route::Saturated(one));
}
