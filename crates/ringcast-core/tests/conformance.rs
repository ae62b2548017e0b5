//! The vectors of `tests/conformance`, which other implementations wrote. The Python tests read the same files.

use std::fs;
use std::path::Path;

use ringcast_core::assign::assign;
use ringcast_core::hash::{row_partition, xxh64};
use ringcast_core::jump::{jump_hash, jump_hash_batch};
use ringcast_core::ring::{Ring, ring_assign};
use ringcast_core::sticky::{Worker, assign_sticky};
use serde_json::Value;

fn cases(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut file: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(cases) = file["cases"].take() else { panic!("{name} has no list of cases") };
    assert!(cases.len() >= 4, "{name} has only {} cases", cases.len());
    cases
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn bytes(case: &Value) -> Vec<u8> {
    if let Some(text) = case["text"].as_str() {
        return text.as_bytes().to_vec();
    }
    let hex = case["hex"].as_str().unwrap().as_bytes();
    hex.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn rows_fall_where_spark_puts_them() {
    for case in cases("row_partition.json") {
        let row_id = bytes(&case);
        assert_eq!(xxh64(&row_id).cast_signed(), case["hash"].as_i64().unwrap(), "{case}");
        for (partitions, expected) in case["partitions"].as_object().unwrap() {
            let got = row_partition(&row_id, partitions.parse().unwrap()).unwrap();
            assert_eq!(got, number(expected), "{partitions} partitions, {case}");
        }
    }
}

#[test]
fn keys_jump_as_published() {
    for case in cases("jump_hash.json") {
        let key = case["key"].as_u64().unwrap();
        for (buckets, expected) in case["buckets"].as_object().unwrap() {
            let buckets = buckets.parse().unwrap();
            assert_eq!(jump_hash(key, buckets).unwrap(), number(expected), "{key} in {buckets}");
            assert_eq!(jump_hash_batch(&[key], buckets).unwrap(), [number(expected)], "{key} in {buckets}");
        }
    }
}

#[test]
fn partitions_are_assigned_as_transcribed() {
    for case in cases("assign_jump.json") {
        let load_factor = case["load_factor"].as_f64().unwrap();
        let table = assign(number(&case["partitions"]), &numbers(&case["slots"]), load_factor).unwrap();
        assert_eq!(table, numbers(&case["table"]), "{} on {}", case["partitions"], case["slots"]);
    }
}

#[test]
fn owners_are_assigned_as_transcribed() {
    for case in cases("assign_sticky.json") {
        let names: Vec<&str> = case["workers"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let index = |name: &Value| names.iter().position(|known| Some(*known) == name.as_str());
        let index = |name: &Value| index(name).map(|at| u32::try_from(at).unwrap());
        let owners: Vec<Option<u32>> = case["owners"].as_array().unwrap().iter().map(index).collect();
        let drains: Vec<u32> = case["drains"].as_array().unwrap().iter().filter_map(index).collect();
        let capacities = numbers(&case["capacities"]);
        let workers: Vec<Worker<'_>> = (0..)
            .zip(names.iter().zip(&capacities))
            .map(|(at, (name, &capacity))| Worker { name, capacity, drains: drains.contains(&at) })
            .collect();
        let loads = case["loads"].as_array().map(|loads| loads.iter().map(number).collect::<Vec<_>>());
        let pins: Vec<(u32, u32)> = case["pins"]
            .as_object()
            .unwrap()
            .iter()
            .filter_map(|(partition, name)| Some((partition.parse().unwrap(), index(name)?)))
            .collect();
        let table = assign_sticky(&owners, &workers, loads.as_deref(), &pins).unwrap();
        let expected: Vec<u32> = case["table"].as_array().unwrap().iter().filter_map(index).collect();
        assert_eq!(table, expected, "{case}");
    }
}

#[test]
fn ring_keys_belong_to_the_nearest_point() {
    for case in cases("ring.json") {
        let members: Vec<&str> =
            case["members"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let ring = Ring::new(&members).unwrap();
        let table = ring_assign(64, &members).unwrap();
        for (key, owner) in case["owners"].as_object().unwrap() {
            let owner = owner.as_str().unwrap();
            assert_eq!(members[ring.owner(key.as_bytes()) as usize], owner, "{key:?} on {members:?}");
            if let Ok(partition) = key.parse::<usize>() {
                assert_eq!(members[table[partition] as usize], owner, "partition {key} on {members:?}");
            }
        }
    }
}

#[test]
fn routing_keys_belong_to_the_nearest_point() {
    for case in cases("routing_key.json") {
        let members: Vec<&str> =
            case["members"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let ring = Ring::new(&members).unwrap();
        for row in case["rows"].as_array().unwrap() {
            let (key, owner) = (row[2].as_str().unwrap(), row[3].as_str().unwrap());
            assert_eq!(members[ring.owner(key.as_bytes()) as usize], owner, "{key:?} by {}", case["setting"]);
        }
    }
}
