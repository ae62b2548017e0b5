//! Exclusive ownership: evenness, moves against a search over all tables, determinism, limits.

use proptest::prelude::*;
use ringcast_core::sticky::{MAX_WEIGHT, Worker, assign_sticky};
use ringcast_core::{Error, ErrorCode};

#[derive(Debug, Clone)]
struct Case {
    owners: Vec<Option<u32>>,
    names: Vec<String>,
    capacities: Vec<u32>,
    drains: Vec<bool>,
    loads: Option<Vec<u32>>,
    pins: Vec<(u32, u32)>,
}

impl Case {
    fn plain(partitions: usize, workers: usize) -> Self {
        Self {
            owners: vec![None; partitions],
            names: (0..workers).map(|at| format!("worker-{at:03}")).collect(),
            capacities: vec![1; workers],
            drains: vec![false; workers],
            loads: None,
            pins: Vec::new(),
        }
    }

    fn run(&self) -> Result<Vec<u32>, Error> {
        let workers: Vec<Worker<'_>> = self
            .names
            .iter()
            .zip(self.capacities.iter().zip(&self.drains))
            .map(|(name, (&capacity, &drains))| Worker { name, capacity, drains })
            .collect();
        assign_sticky(&self.owners, &workers, self.loads.as_deref(), &self.pins)
    }

    fn load(&self, partition: usize) -> u64 {
        self.loads.as_ref().map_or(1, |loads| u64::from(loads[partition]))
    }

    fn pin(&self, partition: usize) -> Option<u32> {
        let found = self.pins.iter().find(|pin| pin.0 as usize == partition);
        found.map(|pin| pin.1).filter(|&worker| !self.drains[worker as usize])
    }

    /// Pins and drains are obeyed, and no move of a free partition leaves its receiver less full than the giver was.
    fn is_even(&self, table: &[u32]) -> bool {
        let mut sums = vec![0_u64; self.names.len()];
        for (partition, &worker) in table.iter().enumerate() {
            sums[worker as usize] += self.load(partition);
        }
        let obeyed = |(partition, &worker): (usize, &u32)| {
            !self.drains[worker as usize] && self.pin(partition).is_none_or(|pin| pin == worker)
        };
        let is_useful = |partition: usize, from: usize, to: usize| {
            !self.drains[to]
                && from != to
                && (sums[to] + self.load(partition)) * u64::from(self.capacities[from])
                    < sums[from] * u64::from(self.capacities[to])
        };
        table.iter().enumerate().all(obeyed)
            && (0..table.len())
                .filter(|&partition| self.pin(partition).is_none())
                .all(|partition| (0..self.names.len()).all(|to| !is_useful(partition, table[partition] as usize, to)))
    }

    fn moves(&self, table: &[u32]) -> usize {
        self.owners.iter().zip(table).filter(|(owner, worker)| owner.is_some_and(|owner| owner != **worker)).count()
    }

    /// The fewest moves of all even tables.
    fn fewest(&self) -> usize {
        let (partitions, workers) = (self.owners.len(), self.names.len());
        let tables = 0..workers.pow(u32::try_from(partitions).unwrap());
        let table = |mut number: usize| -> Vec<u32> {
            let digit = |_| {
                let worker = number % workers;
                number /= workers;
                u32::try_from(worker).unwrap()
            };
            (0..partitions).map(digit).collect()
        };
        tables.map(table).filter(|table| self.is_even(table)).map(|table| self.moves(&table)).min().unwrap()
    }
}

fn counts(table: &[u32], workers: usize) -> Vec<usize> {
    let mut counts = vec![0; workers];
    for &worker in table {
        counts[worker as usize] += 1;
    }
    counts
}

#[test]
fn a_joiner_takes_its_share_and_nothing_else_moves() {
    let mut case = Case::plain(4096, 200);
    case.owners = case.run().unwrap().into_iter().map(Some).collect();
    let mut wider = Case { owners: case.owners, ..Case::plain(4096, 201) };
    let table = wider.run().unwrap();
    assert_eq!(wider.moves(&table), 20);
    assert_eq!(counts(&table, 201).into_iter().min(), Some(20));
    assert_eq!(counts(&table, 201).into_iter().max(), Some(21));
    wider.owners = table.iter().copied().map(Some).collect();
    assert_eq!(wider.run().unwrap(), table, "an even table stays");
}

#[test]
fn a_leaver_moves_its_own_partitions_only() {
    let mut case = Case::plain(1024, 50);
    let before = case.run().unwrap();
    case.owners = before.iter().map(|&owner| (owner != 17).then_some(owner)).collect();
    case.drains[17] = true;
    let table = case.run().unwrap();
    assert_eq!(case.moves(&table), 0);
    assert_eq!(counts(&table, 50)[17], 0);
}

#[test]
fn capacities_share_in_proportion() {
    let case = Case { capacities: vec![1, 2, 5], ..Case::plain(800, 3) };
    assert_eq!(counts(&case.run().unwrap(), 3), [100, 200, 500]);
}

#[test]
fn a_drained_worker_ends_with_nothing_whatever_is_pinned_to_it() {
    let pins = vec![(0, 1), (1, 1), (2, 0)];
    let case = Case { pins, drains: vec![false, true, false], owners: vec![Some(1); 9], ..Case::plain(9, 3) };
    let table = case.run().unwrap();
    assert_eq!(counts(&table, 3)[1], 0);
    assert_eq!(table[2], 0);
    assert!(case.is_even(&table));
}

#[test]
fn the_limit_on_steps_leaves_an_even_table() {
    // All partitions at one worker, of very uneven loads: more moves than any real change needs.
    let loads = (0..4096_u32).map(|at| 1 + at * 7919 % MAX_WEIGHT).collect();
    let capacities = (0..64).map(|at| 1 + at * at * 13).collect();
    let case = Case { owners: vec![Some(0); 4096], loads: Some(loads), capacities, ..Case::plain(4096, 64) };
    assert!(case.is_even(&case.run().unwrap()));
}

/// A change that makes a good case bad, and the error that follows.
type Refused = (fn(&mut Case), ErrorCode, &'static str);

#[test]
fn bad_arguments_are_refused_with_field_and_limit() {
    let refusal = |change: fn(&mut Case)| {
        let mut case = Case::plain(8, 2);
        change(&mut case);
        let error = case.run().unwrap_err();
        (error.code(), error.to_string())
    };
    let (range, empty, duplicate) = (ErrorCode::OutOfRange, ErrorCode::Empty, ErrorCode::Duplicate);
    let cases: [Refused; 13] = [
        (|case| case.owners.clear(), range, "number of owners must be between 1 and 4096, got 0"),
        (|case| case.owners = vec![None; 4097], range, "number of owners must be between 1 and 4096, got 4097"),
        (|case| *case = Case::plain(8, 1025), range, "number of workers must be between 1 and 1024, got 1025"),
        (|case| case.names.clear(), range, "number of workers must be between 1 and 1024, got 0"),
        (|case| case.names[1].clear(), range, "worker name length in bytes must be between 1 and 512, got 0"),
        (
            |case| case.names[1] = case.names[0].clone(),
            duplicate,
            "workers must not repeat an entry, got \"worker-000\" twice",
        ),
        (|case| case.drains = vec![true; 2], empty, "workers that do not drain must have at least one entry, got none"),
        (|case| case.capacities[1] = 0, range, "capacity must be between 1 and 1000000, got 0"),
        (|case| case.owners[3] = Some(2), range, "owner must be between 0 and 1, got 2"),
        (
            |case| case.loads = Some(vec![1; 7]),
            ErrorCode::Malformed,
            "loads must have as many entries as there are partitions, 8, got 7",
        ),
        (|case| case.loads = Some(vec![1_000_001; 8]), range, "load must be between 1 and 1000000, got 1000001"),
        (|case| case.pins = vec![(8, 0)], range, "pinned partition must be between 0 and 7, got 8"),
        (|case| case.pins = vec![(3, 0), (3, 1)], duplicate, "pins must not repeat an entry, got 3 twice"),
    ];
    for (change, code, text) in cases {
        assert_eq!(refusal(change), (code, text.to_owned()));
    }
    assert_eq!(refusal(|case| case.pins = vec![(3, 2)]).1, "worker of a pin must be between 0 and 1, got 2");
}

prop_compose! {
    fn case(most_partitions: usize, most_workers: usize)(
        partitions in 1..=most_partitions,
        workers in 1..=most_workers,
    )(
        owners in prop::collection::vec(prop::option::weighted(0.8, 0..u32::try_from(workers).unwrap()), partitions),
        capacities in prop_oneof![
            Just(vec![1; workers]),
            prop::collection::vec(1..=4_u32, workers),
            prop::collection::vec(1..=MAX_WEIGHT, workers),
        ],
        drains in prop::collection::vec(prop::bool::weighted(0.15), workers),
        pins in prop::collection::btree_map(0..u32::try_from(partitions).unwrap(), 0..u32::try_from(workers).unwrap(), 0..3),
        loads in prop::option::of(prop_oneof![
            prop::collection::vec(1..=9_u32, partitions),
            prop::collection::vec(1..=MAX_WEIGHT, partitions),
        ]),
        spare in 0..workers,
    ) -> Case {
        let (partitions, workers) = (owners.len(), capacities.len());
        let pins = pins.into_iter().collect();
        let mut case = Case { owners, capacities, drains, loads, pins, ..Case::plain(partitions, workers) };
        case.drains[spare] = false;
        case
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn equal_loads_move_as_few_as_any_even_table(case in case(6, 4)) {
        let case = Case { loads: None, ..case };
        let table = case.run().unwrap();
        prop_assert!(case.is_even(&table), "{table:?}");
        prop_assert_eq!(case.moves(&table), case.fewest(), "{:?}", table);
    }

    #[test]
    fn every_table_is_even_and_stays(case in case(200, 24)) {
        let table = case.run().unwrap();
        prop_assert!(case.is_even(&table), "{table:?}");
        let again = Case { owners: table.iter().copied().map(Some).collect(), ..case };
        prop_assert_eq!(again.run().unwrap(), table);
    }

    #[test]
    fn different_loads_of_an_even_table_move_only_what_must(case in case(6, 4)) {
        let table = case.run().unwrap();
        prop_assert!(case.is_even(&table), "{table:?}");
        if case.fewest() == 0 && case.owners.iter().all(Option::is_some) {
            prop_assert_eq!(case.moves(&table), 0);
        }
    }

    #[test]
    fn the_order_of_workers_and_pins_has_no_influence(case in case(64, 12), shift in 0..12_usize) {
        let workers = case.names.len();
        let to = |at: u32| u32::try_from((at as usize + shift) % workers).unwrap();
        let mut other = case.clone();
        other.names.rotate_right(shift % workers);
        other.capacities.rotate_right(shift % workers);
        other.drains.rotate_right(shift % workers);
        other.owners = case.owners.iter().map(|owner| owner.map(to)).collect();
        other.pins = case.pins.iter().rev().map(|&(partition, worker)| (partition, to(worker))).collect();
        let expected: Vec<u32> = case.run().unwrap().into_iter().map(to).collect();
        prop_assert_eq!(other.run().unwrap(), expected);
    }
}
