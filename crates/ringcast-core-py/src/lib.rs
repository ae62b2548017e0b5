//! The Python face of `ringcast-core`: converts arguments, releases the lock, maps errors. No logic lives here.

#![allow(clippy::doc_markdown)] // what is documented here becomes docstrings of Python

mod arrow;
mod border;
mod dedup;
mod dispatch;
mod ids;
mod ints;
mod ring;
mod sticky;

use pyo3::prelude::*;

/// Native functions of Ringcast; import them from `ringcast_core`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;
    use pyo3::types::PyBytes;
    use ringcast_core::{
        MAX_DEDUP_ROWS, MAX_PARTITIONS, MAX_ROW_ID_BYTES, MAX_SLOTS, assign, dispatch, hash, jump, reply, ring, sticky,
    };

    #[pymodule_export]
    use crate::arrow::{FetchedRows, Partitions};
    #[pymodule_export]
    use crate::dedup::Dedup;
    #[pymodule_export]
    use crate::dispatch::{Action, ConsumerState, Dispatcher, KeyFilter, Router};
    #[pymodule_export]
    use crate::ring::Ring;

    use crate::arrow::Column;
    use crate::border::{released, to_exception};
    use crate::ids::{Ids, bytes_of};
    use crate::ints::{column, int, ints};
    use crate::ring::names_of;
    use crate::sticky::{Assigned, pins_of};

    const PARTITIONS: (u64, u64) = (1, MAX_PARTITIONS as u64);
    const BUCKETS: (u64, u64) = (1, jump::MAX_BUCKETS as u64);

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("MAX_PARTITIONS", MAX_PARTITIONS)?;
        module.add("MAX_SLOTS", MAX_SLOTS)?;
        module.add("MAX_ROW_ID_BYTES", MAX_ROW_ID_BYTES)?;
        module.add("MAX_DEDUP_ROWS", MAX_DEDUP_ROWS)?;
        module.add("MAX_CONSUMERS", dispatch::MAX_CONSUMERS)?;
        module.add("MAX_KEY_FILTERS", dispatch::MAX_FILTERS)?;
        module.add("MAX_DISPATCH_WINDOW", dispatch::MAX_WINDOW)?;
        module.add("VIRTUAL_NODES", ring::VIRTUAL_NODES)?;
        module.add("DEFAULT_LOAD_FACTOR", assign::DEFAULT_LOAD_FACTOR)?;
        module.add("MAX_WEIGHT", sticky::MAX_WEIGHT)?;
        module.add("WIRE_VERSION", reply::WIRE_VERSION)?;
        module.add("HASH_NAME", ringcast_core::HASH_NAME)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// The partition of one row: XXH64 (seed 42) of the id's UTF-8 bytes, as a signed integer, floor-modulo
    /// `partitions` (1 to 4096); the same number as Spark's `pmod(xxhash64(id), partitions)`.
    ///
    /// Raises ValueError for a partition count outside 1 to 4096 and a str with a lone surrogate.
    #[pyfunction]
    fn row_partition(row_id: &Bound<'_, PyAny>, partitions: &Bound<'_, PyAny>) -> PyResult<u32> {
        let partitioner = partitioner(partitions)?;
        Ok(partitioner.partition(bytes_of(row_id, "row_id")?))
    }

    /// row_partition() of each id of an iterable, in one crossing, as an `array.array('i')`.
    ///
    /// The interpreter lock is released while it hashes. Raises as row_partition(), naming the index.
    #[pyfunction]
    fn row_partitions<'py>(row_ids: &Bound<'py, PyAny>, partitions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let partitioner = partitioner(partitions)?;
        let py = row_ids.py();
        let held = Ids::hold(row_ids, "row_ids")?;
        let views = held.views("row_ids")?;
        let found = released(py, || Ok(partitioner.partition_all(&views)))?;
        int_array(py, &found)
    }

    /// row_partition() of each row of an Arrow column, read where it lies.
    ///
    /// Takes any object with `__arrow_c_array__` or `__arrow_c_stream__` (arrays, chunked arrays, series) of type utf8,
    /// large_utf8, utf8_view or the binary types. The result goes into Arrow without a copy: `pyarrow.array(result)`.
    /// Raises TypeError for another type, ValueError for a null, naming its index.
    #[pyfunction]
    fn row_partitions_arrow(row_ids: &Bound<'_, PyAny>, partitions: &Bound<'_, PyAny>) -> PyResult<Partitions> {
        let partitioner = partitioner(partitions)?;
        let column = Column::import(row_ids)?;
        let rows = column.rows()?;
        let found = row_ids.py().detach(|| {
            let mut found = vec![0; rows];
            column.partition(&partitioner, &mut found).map(|()| found)
        })?;
        Ok(Partitions::new(found))
    }

    /// The rows of an encoded fetch reply as columns for Arrow: what `ringcast_wire.decode_fetch_reply` makes objects of.
    ///
    /// The interpreter lock is released while it reads. Takes memory in proportion to the bytes given, whatever they say.
    /// Raises ValueError, naming the byte, for a reply that is damaged, of another wire version, over 2 GiB, or with a
    /// number that its column can't hold.
    #[pyfunction]
    fn read_fetch_reply(py: Python<'_>, body: &[u8]) -> PyResult<FetchedRows> {
        released(py, || reply::decode(body).map(FetchedRows::new))
    }

    /// JumpHash (Lamping and Veach, 2014) of a key of 64 bits over `buckets` buckets (1 to 2^31 - 1).
    #[pyfunction]
    fn jump_hash(key: &Bound<'_, PyAny>, buckets: &Bound<'_, PyAny>) -> PyResult<u32> {
        let (key, buckets) = (int(key, "key", (0, u64::MAX))?, int(buckets, "buckets", BUCKETS)?);
        jump::jump_hash(key, buckets).map_err(|error| to_exception(&error))
    }

    /// jump_hash() of each key, in one crossing, as an `array.array('i')`.
    ///
    /// Keys are any iterable of int; a buffer of unsigned 64-bit integers (`array('Q')`, numpy uint64) is read as a block,
    /// which is several times as fast. The interpreter lock is released while it hashes.
    #[pyfunction]
    #[pyo3(signature = (keys, buckets))]
    fn jump_hash_batch<'py>(keys: &Bound<'py, PyAny>, buckets: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = keys.py();
        let (keys, buckets) = (column(keys, "keys", (0, u64::MAX))?, int(buckets, "buckets", BUCKETS)?);
        let found = released(py, || jump::jump_hash_batch(&keys, buckets))?;
        int_array(py, &found)
    }

    /// The slot of each partition: bounded-load JumpHash over the occupied slots (distinct, below 1024, any order).
    ///
    /// Every partition gets an occupied slot, and no slot gets more than ceil(load_factor * partitions / slots).
    /// Deterministic, and a slot that falls vacant moves little more than its own partitions. Raises ValueError for no
    /// slot, a repeated slot, and a load factor outside 1.0 to 1024.0.
    #[pyfunction]
    #[pyo3(signature = (partitions, slots, load_factor=assign::DEFAULT_LOAD_FACTOR))]
    fn assign_jump(partitions: &Bound<'_, PyAny>, slots: &Bound<'_, PyAny>, load_factor: f64) -> PyResult<Vec<u32>> {
        let py = slots.py();
        let partitions = int(partitions, "partitions", PARTITIONS)?;
        let slots: Vec<u32> = ints(slots, "slots", (0, u64::from(MAX_SLOTS) - 1))?;
        released(py, || assign::assign(partitions, &slots, load_factor))
    }

    /// The member (its index in `members`) of each partition: owner of the key str(partition) on a Ring of `members`.
    #[pyfunction]
    fn assign_ring(partitions: &Bound<'_, PyAny>, members: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let partitions = int(partitions, "partitions", PARTITIONS)?;
        let names = names_of(members, "members")?;
        released(members.py(), || ring::ring_assign(partitions, &names))
    }

    /// The worker of each partition under exclusive ownership: the fewest moves from `owners` to an even table.
    ///
    /// `owners` are the present owners, by partition (1 to 4096); None, or a name that is not among `workers`, means that
    /// there is none. `capacities` are of the workers in their order, `loads` of the partitions, each 1 to 1,000,000 and 1
    /// where not given. `pins` says which worker must own a partition, and `drains` names workers that must end with
    /// nothing; a pin to a worker that drains or is not there counts for nothing.
    ///
    /// Even: no partition that may move can leave its new worker less full (load by capacity) than its old one was. With
    /// equal capacities and loads every worker has floor(P/N) or ceil(P/N) partitions. With equal loads the table is the
    /// even one with the fewest moves, otherwise an even one. The order of the arguments has no influence. Raises
    /// ValueError for what is out of range, repeated or of another length, and where every worker drains.
    #[pyfunction]
    #[pyo3(signature = (owners, workers, *, capacities=None, loads=None, pins=None, drains=None))]
    fn assign_sticky<'py>(
        py: Python<'py>,
        owners: &Bound<'py, PyAny>,
        workers: &Bound<'py, PyAny>,
        capacities: Option<&Bound<'py, PyAny>>,
        loads: Option<&Bound<'py, PyAny>>,
        pins: Option<&Bound<'py, PyAny>>,
        drains: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        const WEIGHTS: (u64, u64) = (1, sticky::MAX_WEIGHT as u64);
        let capacities = capacities.map(|given| ints(given, "capacities", WEIGHTS)).transpose()?;
        let loads: Option<Vec<u32>> = loads.map(|given| ints(given, "loads", WEIGHTS)).transpose()?;
        let names = names_of(workers, "workers")?;
        let drains = drains.map(|given| names_of(given, "drains")).transpose()?.unwrap_or_default();
        let assigned = Assigned::new(names, capacities, &drains)?;
        let owners = assigned.owners(owners)?;
        let pins = pins.map(|given| pins_of(given, &assigned)).transpose()?.unwrap_or_default();
        let found = released(py, || sticky::assign_sticky(&owners, &assigned.workers(), loads.as_deref(), &pins))?;
        assigned.named(py, &found)
    }

    fn partitioner(partitions: &Bound<'_, PyAny>) -> PyResult<hash::Partitioner> {
        let partitions = int(partitions, "partitions", PARTITIONS)?;
        hash::Partitioner::new(partitions).map_err(|error| to_exception(&error))
    }

    /// An `array.array` of C ints: flat, and shared by numpy, memoryview and pyarrow without a copy.
    fn int_array<'py>(py: Python<'py>, values: &[u32]) -> PyResult<Bound<'py, PyAny>> {
        let bytes = PyBytes::new_with(py, size_of_val(values), |out| {
            for (to, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *to = value.to_ne_bytes();
            }
            Ok(())
        })?;
        py.import("array")?.getattr("array")?.call1(("i", bytes))
    }
}
