//! The rows of a fetch reply, as an Arrow record batch.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use pyo3::prelude::*;
use ringcast_core::reply::{Bits, Rows, Texts};

use super::abi::{ArrowArray, ArrowSchema};
use super::export::{Capsules, NULLABLE, Owner, array, buffer, capsules, field};

/// The rows of a fetch reply, which Arrow libraries read in place: pass it to `pyarrow.record_batch(...)`.
///
/// Columns: row_id and value (utf8), version (int64), partition (int32), deleted (bool), metadata (map of utf8 to utf8).
/// value is null where deleted, metadata where there is none.
#[pyclass(frozen, module = "ringcast_core")]
pub struct FetchedRows {
    columns: Arc<Columns>,
}

/// Rows, and the bitmaps that Arrow needs beside them.
struct Columns {
    rows: Rows,
    deleted: Vec<u8>,
    /// Which rows have a value; nothing when all have.
    valued: Option<Vec<u8>>,
    described: Vec<u8>,
}

impl FetchedRows {
    pub fn new(rows: Rows) -> Self {
        let count = rows.len();
        let bits = |bits: &Bits| bits.bytes(count, false);
        let (deleted, described) = (bits(&rows.deleted), bits(&rows.metadata.present));
        let valued = (rows.deleted.set_count() > 0).then(|| rows.deleted.bytes(count, true));
        Self { columns: Arc::new(Columns { rows, deleted, valued, described }) }
    }
}

#[pymethods]
impl FetchedRows {
    /// `(partition, revision, whole, rows)` of each run of rows, in the order of the rows. `whole`: these are all live
    /// rows of the partition as of the revision, and not those that were asked for.
    #[getter]
    fn entries(&self) -> Vec<(i32, i64, bool, usize)> {
        self.columns.rows.entries.iter().map(|one| (one.partition, one.revision, one.whole, one.rows)).collect()
    }

    /// The Arrow PyCapsule interface: a schema (a struct of the columns) and an array that share this object's memory.
    #[pyo3(signature = (requested_schema=None))]
    #[allow(clippy::needless_pass_by_value)]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Capsules<'py>> {
        // As for `Partitions`.
        drop(requested_schema);
        capsules(py, schema(), batch(&self.columns))
    }

    fn __len__(&self) -> usize {
        self.columns.rows.len()
    }
}

fn schema() -> ArrowSchema {
    let pair = [field(c"u", c"key", 0, []), field(c"u", c"value", NULLABLE, [])];
    let columns = [
        field(c"u", c"row_id", 0, []),
        field(c"u", c"value", NULLABLE, []),
        field(c"l", c"version", 0, []),
        field(c"i", c"partition", 0, []),
        field(c"b", c"deleted", 0, []),
        field(c"+m", c"metadata", NULLABLE, [field(c"+s", c"entries", 0, pair)]),
    ];
    field(c"+s", c"", 0, columns)
}

fn batch(columns: &Arc<Columns>) -> ArrowArray {
    let owner = || -> Owner { Arc::<Columns>::clone(columns) };
    let Columns { rows, deleted, valued, described } = &**columns;
    let count = rows.len();
    let flat = |values: *const c_void| array(count, 0, owner(), vec![ptr::null(), values], []);
    let texts = |texts: &Texts, nulls: usize, valid: *const c_void| {
        let buffers = vec![valid, buffer(texts.offsets()), buffer(texts.data())];
        array(texts.offsets().len() - 1, nulls, owner(), buffers, [])
    };
    let (keys, values) = (&rows.metadata.keys, &rows.metadata.values);
    let pairs = [texts(keys, 0, ptr::null()), texts(values, 0, ptr::null())];
    let pairs = array(keys.offsets().len() - 1, 0, owner(), vec![ptr::null()], pairs);
    let without = count - rows.metadata.present.set_count();
    let maps = vec![buffer(described), buffer(rows.metadata.offsets())];
    let found = [
        texts(&rows.row_ids, 0, ptr::null()),
        texts(&rows.values, rows.deleted.set_count(), valued.as_ref().map_or(ptr::null(), |bits| buffer(bits))),
        flat(buffer(&rows.versions)),
        flat(buffer(&rows.partitions)),
        flat(buffer(deleted)),
        array(count, without, owner(), maps, [pairs]),
    ];
    array(count, 0, owner(), vec![ptr::null()], found)
}
