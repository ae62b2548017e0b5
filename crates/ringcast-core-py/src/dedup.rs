//! `Dedup`: the micro-batch of row changes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use ringcast_core::dedup::{self, Push};
use ringcast_core::{MAX_DEDUP_ROWS, MAX_PARTITIONS};

use crate::border::{released, to_exception};
use crate::ids::text_of;
use crate::ints::int;

const PARTITION: (u64, u64) = (0, MAX_PARTITIONS as u64 - 1);
const VERSION: (u64, u64) = (0, u64::MAX);

/// A bounded batch of row changes that keeps the newest version of each row and the order of first arrival.
#[pyclass(frozen, module = "ringcast_core")]
pub struct Dedup {
    batch: Mutex<dedup::Dedup>,
}

impl Dedup {
    fn lock(&self) -> MutexGuard<'_, dedup::Dedup> {
        // The core does not panic half-way, so a poisoned batch is still whole.
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Dedup {
    #[new]
    fn new(max_rows: &Bound<'_, PyAny>) -> PyResult<Self> {
        let max_rows = int(max_rows, "max_rows", (1, MAX_DEDUP_ROWS as u64))?;
        let batch = dedup::Dedup::new(max_rows).map_err(|error| to_exception(&error))?;
        Ok(Self { batch: Mutex::new(batch) })
    }

    /// Takes in one change. A version that is not higher than the one held is dropped.
    ///
    /// Returns False when the row is new and the batch is full; then nothing has changed. Raises ValueError for a
    /// partition of 4096 or more and a row id above 512 bytes.
    #[pyo3(signature = (partition, row_id, version, deleted=false))]
    fn push(
        &self,
        partition: &Bound<'_, PyAny>,
        row_id: &Bound<'_, PyString>,
        version: &Bound<'_, PyAny>,
        deleted: bool,
    ) -> PyResult<bool> {
        let (partition, version) = (int(partition, "partition", PARTITION)?, int(version, "version", VERSION)?);
        let row_id = text_of(row_id, "row_id")?;
        let outcome = self.lock().push(partition, row_id, version, deleted);
        outcome.map(|push| push != Push::Full).map_err(|error| to_exception(&error))
    }

    /// Takes in `(partition, row_id, version, deleted)` in order, in one crossing, and returns how many it took:
    /// fewer than given when the batch became full. Raises as push(), and then nothing was taken.
    fn push_many(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<usize> {
        let rows = rows.try_iter()?.map(|row| Row::of(&row?)).collect::<PyResult<Vec<_>>>()?;
        let views = rows.iter().map(Row::view).collect::<PyResult<Vec<_>>>()?;
        released(py, || self.lock().push_many(&views))
    }

    /// Empties the batch: `(partition, row_id, version, deleted)` of each row, in order of first arrival.
    fn drain(&self, py: Python<'_>) -> Vec<(u32, String, u64, bool)> {
        let rows = py.detach(|| self.lock().drain());
        rows.into_iter().map(|row| (row.partition, row.row_id.into(), row.version, row.deleted)).collect()
    }

    /// Most rows that this batch may hold.
    #[getter]
    fn max_rows(&self) -> usize {
        self.lock().max_rows()
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }
}

/// One change as it came in, holding on to its row id.
struct Row<'py> {
    partition: u32,
    id: Bound<'py, PyString>,
    version: u64,
    deleted: bool,
}

impl<'py> Row<'py> {
    fn of(row: &Bound<'py, PyAny>) -> PyResult<Self> {
        let row = row.cast::<PyTuple>()?;
        if row.len() != 4 {
            let message = format!("a row must be (partition, row_id, version, deleted), got {} fields", row.len());
            return Err(PyValueError::new_err(message));
        }
        Ok(Self {
            partition: int(&row.get_item(0)?, "partition", PARTITION)?,
            id: row.get_item(1)?.cast_into()?,
            version: int(&row.get_item(2)?, "version", VERSION)?,
            deleted: row.get_item(3)?.extract()?,
        })
    }

    fn view(&self) -> PyResult<(u32, &str, u64, bool)> {
        Ok((self.partition, text_of(&self.id, "row_id")?, self.version, self.deleted))
    }
}
