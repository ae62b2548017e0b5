//! The worker of every partition with exclusive ownership: few moves, even loads.
//!
//! A worker is *fuller* than another when its load divided by its capacity is greater. A table is **even** when no
//! partition that may move can move to another worker and leave that one less full than its own worker was. So with
//! equal capacities the loads of two workers differ by no more than one partition: with loads of 1, by no more than 1,
//! and each worker has `⌊P/N⌋` or `⌈P/N⌉` partitions. Pinned partitions can't move; a worker with more pinned load than
//! its share has nothing else.
//!
//! - Where all partitions have the same load, the table is the even one with the **fewest moves**. The even tables are
//!   those that give out places in the order of how full they make their worker (the highest averages method of
//!   V. D'Hondt, 1878); they differ only in which workers have a last place, among places that are worth the same. Those
//!   go to workers that have a partition for it.
//! - Otherwise the fewest moves are as hard to find as a partition of numbers into equal sums. The table is even, and a
//!   partition moves only to make it so. Partitions without a worker are placed by descending load (R. L. Graham,
//!   "Bounds on Multiprocessing Timing Anomalies", 1969), then the fullest worker gives up the partition that evens it
//!   out most, until the table is even. Should that take more than `4·P` steps, every partition that may move is placed
//!   afresh by descending load, which is even as well.
//!
//! A tie is settled by the names of workers and the numbers of partitions: the order of the arguments has no influence.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashSet};

use crate::{Error, MAX_PARTITIONS, MAX_ROW_ID_BYTES, MAX_SLOTS};

/// Greatest capacity of a worker and load of a partition; the least is 1.
pub const MAX_WEIGHT: u32 = 1_000_000;

/// A worker that may own partitions.
#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    /// Its name: 1 to 512 bytes, distinct.
    pub name: &'a str,
    /// How much it takes in proportion to the others: 1 to [`MAX_WEIGHT`].
    pub capacity: u32,
    /// Whether it must end with nothing, whatever is pinned to it.
    pub drains: bool,
}

/// The index in `workers` of the new owner of each partition; the module's description says which.
///
/// `owners`: the present owner of each partition, as an index in `workers`, or `None`. `loads`: the load of each, or 1
/// for all. `pins`: partitions that a worker must own, as (partition, index of the worker), unless it drains.
///
/// # Errors
/// When the number of owners is not in `1..=4096`, that of workers not in `1..=1024`, or that of loads is another than
/// that of owners; when a name is empty, longer than 512 bytes or given twice, or all workers drain; when an index is out
/// of range, a capacity or load is not in `1..=1_000_000`, or a partition is pinned twice.
pub fn assign_sticky(
    owners: &[Option<u32>],
    workers: &[Worker<'_>],
    loads: Option<&[u32]>,
    pins: &[(u32, u32)],
) -> Result<Vec<u32>, Error> {
    check(owners, workers, loads)?;
    let pinned = pinned(owners.len(), workers, pins)?;
    let mut table = Table::new(owners, workers, pinned);
    match loads {
        Some(loads) if loads.iter().any(|&load| load != loads[0]) => table.even_out(loads),
        _ => table.count_out(),
    }
    Ok(table.indices())
}

fn check(owners: &[Option<u32>], workers: &[Worker<'_>], loads: Option<&[u32]>) -> Result<(), Error> {
    Error::check_range("number of owners", owners.len() as u64, 1, u64::from(MAX_PARTITIONS))?;
    Error::check_range("number of workers", workers.len() as u64, 1, u64::from(MAX_SLOTS))?;
    let mut seen = HashSet::with_capacity(workers.len());
    for worker in workers {
        Error::check_range("worker name length in bytes", worker.name.len() as u64, 1, MAX_ROW_ID_BYTES as u64)?;
        Error::check_range("capacity", u64::from(worker.capacity), 1, u64::from(MAX_WEIGHT))?;
        if !seen.insert(worker.name) {
            return Err(Error::Duplicate { field: "workers", value: format!("{:?}", worker.name) });
        }
    }
    if workers.iter().all(|worker| worker.drains) {
        return Err(Error::Empty { field: "workers that do not drain" });
    }
    for &owner in owners.iter().flatten() {
        Error::check_range("owner", u64::from(owner), 0, workers.len() as u64 - 1)?;
    }
    let Some(loads) = loads else { return Ok(()) };
    if loads.len() != owners.len() {
        return Err(Error::Length { field: "loads", value: loads.len(), expected: owners.len() });
    }
    loads.iter().try_for_each(|&load| Error::check_range("load", u64::from(load), 1, u64::from(MAX_WEIGHT)))
}

/// The worker that each partition is pinned to; a pin to a worker that drains counts for nothing.
fn pinned(partitions: usize, workers: &[Worker<'_>], pins: &[(u32, u32)]) -> Result<Vec<Option<u32>>, Error> {
    let mut found = vec![None; partitions];
    let mut seen = vec![false; partitions];
    for &(partition, worker) in pins {
        Error::check_range("pinned partition", u64::from(partition), 0, partitions as u64 - 1)?;
        Error::check_range("worker of a pin", u64::from(worker), 0, workers.len() as u64 - 1)?;
        if std::mem::replace(&mut seen[partition as usize], true) {
            return Err(Error::Duplicate { field: "pins", value: partition.to_string() });
        }
        found[partition as usize] = (!workers[worker as usize].drains).then_some(worker);
    }
    Ok(found)
}

/// How full a worker is: its load over its capacity, compared without rounding.
#[derive(Debug, Clone, Copy)]
struct Fill {
    load: u64,
    capacity: u64,
}

impl Ord for Fill {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.load * other.capacity).cmp(&(other.load * self.capacity)) // at most 4096 · 10^6 · 10^6: below 2^52
    }
}

impl PartialOrd for Fill {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Fill {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Fill {}

/// Workers that take partitions, by rank in the order of their names, and the partitions by the rank of their worker.
struct Table {
    /// Index of the worker of each rank.
    workers: Vec<u32>,
    capacities: Vec<u64>,
    /// Rank that each partition is pinned to.
    pinned: Vec<Option<usize>>,
    /// Rank of each partition's worker, as far as it has one.
    ranks: Vec<Option<usize>>,
}

impl Table {
    fn new(owners: &[Option<u32>], workers: &[Worker<'_>], pinned: Vec<Option<u32>>) -> Self {
        let mut order: Vec<u32> = (0_u32..).zip(workers).filter(|(_, one)| !one.drains).map(|(at, _)| at).collect();
        order.sort_unstable_by_key(|&at| workers[at as usize].name);
        let mut rank_of = vec![None; workers.len()];
        for (rank, &at) in order.iter().enumerate() {
            rank_of[at as usize] = Some(rank);
        }
        let ranked = |worker: Option<u32>| worker.and_then(|at| rank_of[at as usize]);
        let pinned: Vec<Option<usize>> = pinned.into_iter().map(ranked).collect();
        let ranks = owners.iter().zip(&pinned).map(|(&owner, &pin)| pin.or_else(|| ranked(owner))).collect();
        let capacities = order.iter().map(|&at| u64::from(workers[at as usize].capacity)).collect();
        Self { workers: order, capacities, pinned, ranks }
    }

    fn indices(self) -> Vec<u32> {
        let workers = self.workers;
        self.ranks.into_iter().map(|rank| workers[rank.unwrap_or_default()]).collect()
    }

    /// The partitions that may move, in order.
    fn movable(&self) -> impl Iterator<Item = usize> {
        (0..self.pinned.len()).filter(|&partition| self.pinned[partition].is_none())
    }

    /// Sums up something of each partition by the rank of its worker.
    fn sums<T: Copy + Default + std::ops::AddAssign>(&self, of: impl Fn(usize) -> T) -> Vec<T> {
        let mut sums = vec![T::default(); self.workers.len()];
        for (partition, rank) in self.ranks.iter().enumerate() {
            if let Some(rank) = *rank {
                sums[rank] += of(partition);
            }
        }
        sums
    }

    /// The even table with the fewest moves, where all partitions have the same load.
    fn count_out(&mut self) {
        let movable: Vec<usize> = self.movable().collect();
        let present = self.sums(|partition| u64::from(self.pinned[partition].is_none()));
        let mut room = self.places(movable.len(), &present);
        let mut homeless = Vec::new();
        for partition in movable {
            match self.ranks[partition] {
                Some(rank) if room[rank] > 0 => room[rank] -= 1,
                _ => homeless.push(partition),
            }
        }
        let mut rank = 0; // round and round, so that neighbours are spread
        for partition in homeless {
            while room[rank] == 0 {
                rank = (rank + 1) % room.len();
            }
            room[rank] -= 1;
            self.ranks[partition] = Some(rank);
            rank = (rank + 1) % room.len();
        }
    }

    /// How many of the movable partitions each worker is to have; `present` is how many it has.
    fn places(&self, movable: usize, present: &[u64]) -> Vec<u64> {
        let pins = self.sums(|partition| u64::from(self.pinned[partition].is_some()));
        let place = |rank: usize, load: u64| Reverse((Fill { load, capacity: self.capacities[rank] }, rank));
        let mut heap: BinaryHeap<_> = pins.iter().enumerate().map(|(rank, &load)| place(rank, load + 1)).collect();
        let mut loads = pins.clone();
        let mut last: Option<Fill> = None;
        for _ in 0..movable {
            let Some(Reverse((fill, rank))) = heap.pop() else { break };
            loads[rank] = fill.load;
            last = Some(fill);
            heap.push(place(rank, fill.load + 1));
        }
        // Places that are worth as much as the last one are interchangeable: they go where a partition is already.
        let is_last = |rank: usize, load: u64| last == Some(Fill { load, capacity: self.capacities[rank] });
        let mut equal: Vec<usize> = Vec::new();
        let mut given = 0;
        for rank in 0..loads.len() {
            if loads[rank] > pins[rank] && is_last(rank, loads[rank]) {
                loads[rank] -= 1;
                given += 1;
                equal.push(rank);
            } else if is_last(rank, loads[rank] + 1) {
                equal.push(rank);
            }
        }
        equal.sort_by_key(|&rank| (present[rank] <= loads[rank] - pins[rank], rank));
        for rank in equal.into_iter().take(given) {
            loads[rank] += 1;
        }
        loads.iter().zip(&pins).map(|(load, pins)| load - pins).collect()
    }

    /// An even table, where partitions have different loads.
    fn even_out(&mut self, loads: &[u32]) {
        let load = |partition: usize| u64::from(loads[partition]);
        let mut sums = self.sums(load);
        self.place(loads, &mut sums);
        let mut free: Vec<Vec<usize>> = vec![Vec::new(); sums.len()];
        for partition in self.movable() {
            free[self.ranks[partition].unwrap_or_default()].push(partition);
        }
        for _ in 0..4 * loads.len() {
            let Some((from, at, to)) = self.useful_move(loads, &sums, &free) else { return };
            let partition = free[from].swap_remove(at);
            free[to].push(partition);
            sums[from] -= load(partition);
            sums[to] += load(partition);
            self.ranks[partition] = Some(to);
        }
        for partition in self.movable().collect::<Vec<_>>() {
            self.ranks[partition] = None;
        }
        let mut sums = self.sums(load);
        self.place(loads, &mut sums);
    }

    /// Places the partitions without a worker by descending load, each where it leaves its worker least full.
    fn place(&mut self, loads: &[u32], sums: &mut [u64]) {
        let mut homeless: Vec<usize> = (0..loads.len()).filter(|&partition| self.ranks[partition].is_none()).collect();
        homeless.sort_by_key(|&partition| Reverse(loads[partition]));
        for partition in homeless {
            let load = u64::from(loads[partition]);
            if let Some((_, to)) = self.least_full(load, sums) {
                sums[to] += load;
                self.ranks[partition] = Some(to);
            }
        }
    }

    /// The worker that a load leaves least full, and how full.
    fn least_full(&self, load: u64, sums: &[u64]) -> Option<(Fill, usize)> {
        let fills = self.capacities.iter().zip(sums).enumerate();
        fills.map(|(rank, (&capacity, sum))| (Fill { load: sum + load, capacity }, rank)).min()
    }

    /// A move that leaves the receiver less full than the giver was: of the fullest worker that has one, the partition
    /// that leaves the fuller of the two least full. As (giver, place among its free ones, receiver).
    fn useful_move(&self, loads: &[u32], sums: &[u64], free: &[Vec<usize>]) -> Option<(usize, usize, usize)> {
        let fill = |rank: usize| (Fill { load: sums[rank], capacity: self.capacities[rank] }, Reverse(rank));
        let fullest = (0..sums.len()).max_by_key(|&rank| fill(rank))?;
        self.move_from(fullest, loads, sums, free).or_else(|| {
            let mut order: Vec<usize> = (0..sums.len()).collect();
            order.sort_by_key(|&rank| Reverse(fill(rank)));
            order.into_iter().skip(1).find_map(|from| self.move_from(from, loads, sums, free))
        })
    }

    fn move_from(
        &self,
        from: usize,
        loads: &[u32],
        sums: &[u64],
        free: &[Vec<usize>],
    ) -> Option<(usize, usize, usize)> {
        let load = |partition: usize| u64::from(loads[partition]);
        let least = free[from].iter().map(|&partition| load(partition)).min()?;
        let (fill, to) = self.least_full(least, sums)?;
        if to == from || fill >= (Fill { load: sums[from], capacity: self.capacities[from] }) {
            return None;
        }
        let after = |partition: usize| {
            let left = Fill { load: sums[from] - load(partition), capacity: self.capacities[from] };
            left.max(Fill { load: sums[to] + load(partition), capacity: self.capacities[to] })
        };
        let (at, _) = free[from].iter().enumerate().min_by_key(|&(_, &partition)| (after(partition), partition))?;
        Some((from, at, to))
    }
}
