//! The partitions of a column, as an Arrow array of `int32` without nulls.

use std::ptr;
use std::sync::Arc;

use pyo3::prelude::*;

use super::export::{Capsules, array, buffer, capsules, field};

/// Partitions that Arrow libraries read in place: pass it to `pyarrow.array(...)`.
#[pyclass(frozen, module = "ringcast_core")]
pub struct Partitions {
    values: Arc<Vec<u32>>,
}

impl Partitions {
    pub fn new(values: Vec<u32>) -> Self {
        Self { values: Arc::new(values) }
    }
}

#[pymethods]
impl Partitions {
    /// The Arrow PyCapsule interface: a schema (int32) and an array that share this object's memory.
    #[pyo3(signature = (requested_schema=None))]
    #[allow(clippy::needless_pass_by_value)]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Capsules<'py>> {
        // The interface lets a producer ignore the request; a consumer casts what it gets.
        drop(requested_schema);
        let values = Arc::clone(&self.values);
        // Partitions are below 4096, so their bits are those of an int32.
        let buffers = vec![ptr::null(), buffer(&values)];
        capsules(py, field(c"i", c"", 0, []), array(values.len(), 0, values, buffers, []))
    }

    fn __len__(&self) -> usize {
        self.values.len()
    }
}
