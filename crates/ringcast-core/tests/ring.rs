//! The consistent ring: ownership, projection, movement.

use proptest::prelude::*;
use ringcast_core::ErrorCode;
use ringcast_core::ring::{Ring, VIRTUAL_NODES, ring_assign, ring_hash};

fn names(count: u32) -> Vec<String> {
    (0..count).map(|member| format!("worker-{member}")).collect()
}

/// The definition, point by point: the nearest clockwise, ties by name.
fn nearest<'a>(members: &[&'a str], key: &str) -> &'a str {
    let hash = ring_hash(key.as_bytes());
    let point = |member: &&'a str, vnode: u32| {
        let at = ring_hash(format!("{member}-{vnode}").as_bytes());
        (at.wrapping_sub(hash), *member)
    };
    members.iter().flat_map(|member| (0..VIRTUAL_NODES).map(move |vnode| point(member, vnode))).min().unwrap().1
}

#[test]
fn the_hash_is_fnv_1a_with_the_murmur3_finalizer() {
    // FNV-1a of "" is its offset basis 0x811c9dc5 and of "foobar" 0xbf9cf968 (published test vectors); finished
    // with the finalizer worked out by hand.
    let finish = |mut hash: u32| {
        hash ^= hash >> 16;
        hash = hash.wrapping_mul(0x85eb_ca6b);
        hash ^= hash >> 13;
        hash = hash.wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    };
    assert_eq!(ring_hash(b""), finish(0x811c_9dc5));
    assert_eq!(ring_hash(b"foobar"), finish(0xbf9c_f968));
}

#[test]
fn a_third_member_takes_about_a_third() {
    let (two, three) = (Ring::new(&names(2)).unwrap(), Ring::new(&names(3)).unwrap());
    let keys: Vec<String> = (0..1000).map(|key| format!("key-{key}")).collect();
    let moved = keys.iter().filter(|key| two.owner(key.as_bytes()) != three.owner(key.as_bytes())).count();
    assert!((150..=550).contains(&moved), "{moved} of 1000 keys moved");
}

#[test]
fn load_is_bearable() {
    let ring = Ring::new(&names(20)).unwrap();
    let mut load = [0_u32; 20];
    for key in 0..100_000 {
        load[ring.owner(format!("key-{key}").as_bytes()) as usize] += 1;
    }
    // 5000 a member; 100 points give a standard deviation of about a tenth.
    assert!(load.iter().all(|&keys| (3000..7500).contains(&keys)), "{load:?}");
}

#[test]
fn bad_members_are_refused() {
    let code = |members: &[&str]| Ring::new(members).unwrap_err().code();
    assert_eq!(code(&[]), ErrorCode::Empty);
    assert_eq!(code(&["a", "b", "a"]), ErrorCode::Duplicate);
    assert_eq!(code(&[""]), ErrorCode::OutOfRange);
    assert_eq!(code(&["x".repeat(513).as_str()]), ErrorCode::OutOfRange);
    assert_eq!(Ring::new(&names(1025)).unwrap_err().code(), ErrorCode::OutOfRange);
    assert_eq!(ring_assign(0, &names(1)).unwrap_err().code(), ErrorCode::OutOfRange);
}

#[test]
fn the_largest_ring_works() {
    let members = names(1024);
    let borrowed: Vec<&str> = members.iter().map(String::as_str).collect();
    let ring = Ring::new(&members).unwrap();
    for key in ["", "a", "worker-17", "zzz"] {
        assert_eq!(borrowed[ring.owner(key.as_bytes()) as usize], nearest(&borrowed, key));
    }
}

fn members() -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_set("[a-z0-9]{1,6}", 1..12).prop_map(|names| names.into_iter().collect()).prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_key_belongs_to_the_nearest_point_clockwise(members in members(), keys in prop::collection::vec(".{0,12}", 1..20)) {
        let borrowed: Vec<&str> = members.iter().map(String::as_str).collect();
        let ring = Ring::new(&members).unwrap();
        let views: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        for (key, owner) in keys.iter().zip(ring.owners(&views)) {
            prop_assert_eq!(borrowed[owner as usize], nearest(&borrowed, key));
            prop_assert_eq!(ring.owner(key.as_bytes()), owner);
        }
    }

    #[test]
    fn projection_equals_a_ring_of_the_eligible(members in members(), mask: u16, key in ".{0,12}") {
        let eligible = |member: u32| mask >> (member % 16) & 1 == 1;
        let kept: Vec<&str> =
            (0_u32..).zip(&members).filter(|(at, _)| eligible(*at)).map(|(_, name)| name.as_str()).collect();
        let ring = Ring::new(&members).unwrap();
        let owner = ring.owner_among(key.as_bytes(), eligible).map(|member| members[member as usize].as_str());
        prop_assert_eq!(owner, (!kept.is_empty()).then(|| nearest(&kept, &key)));
    }

    #[test]
    fn a_leaver_moves_only_its_own_partitions(members in members(), pick: prop::sample::Index) {
        prop_assume!(members.len() > 1);
        let gone = pick.index(members.len());
        let mut rest = members.clone();
        rest.remove(gone);
        let (before, after) = (ring_assign(256, &members).unwrap(), ring_assign(256, &rest).unwrap());
        for (before, after) in before.into_iter().zip(after) {
            let before = before as usize;
            prop_assert!(before == gone || members[before] == rest[after as usize]);
        }
    }
}
