//! Key filters against the definition.

use proptest::prelude::*;
use ringcast_core::dispatch::{KeyFilter, MAX_FILTER_BYTES};

use crate::checker::stands_for;

#[test]
fn a_filter_stands_for_whole_keys() {
    for (pattern, yes, no) in [
        ("payment", &["payment"][..], &["payments", "Payment", ""][..]),
        ("ship*", &["ship", "shipping", "ship/to"], &["shi", "worship"]),
        ("eu-west-?", &["eu-west-1", "eu-west-日"], &["eu-west-", "eu-west-10"]),
        ("*", &["", "anything"], &[]),
        ("**", &["", "anything"], &[]),
        ("*-?", &["a-1", "-1", "a-b-c"], &["a-", "a"]),
        ("[a]{b,c}\\?", &["[a]{b,c}\\x"], &["a", "[a]{b,c}x"]),
    ] {
        let filter = KeyFilter::new(pattern).unwrap();
        for key in yes {
            assert!(filter.accepts(key), "{pattern} {key}");
        }
        for key in no {
            assert!(!filter.accepts(key), "{pattern} {key}");
        }
    }
}

#[test]
fn no_pattern_takes_more_than_its_length_times_that_of_the_key() {
    // By trying everything these would take longer than the universe has.
    let pattern = "*a".repeat(MAX_FILTER_BYTES / 2 - 1) + "*b";
    let filter = KeyFilter::new(&pattern).unwrap();
    assert!(!filter.accepts(&"a".repeat(512)));
    let one_star = format!("*{}b", "a".repeat(250));
    assert!(!KeyFilter::new(&one_star).unwrap().accepts(&"a".repeat(512)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn equals_the_definition(pattern in "[ab日*?]{1,8}", key in "[ab日]{0,10}") {
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        let accepted = KeyFilter::new(&pattern).unwrap().accepts(&key);
        prop_assert_eq!(accepted, stands_for(&chars(&pattern), &chars(&key)));
    }
}
