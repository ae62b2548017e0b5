//! The partitions of a column, as an Arrow array of `int32` without nulls.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::abi::{ArrowArray, ArrowSchema};

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
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // The interface lets a producer ignore the request; a consumer casts what it gets.
        drop(requested_schema);
        let schema = PyCapsule::new_with_value(py, Handed(int32_schema()), c"arrow_schema")?;
        let array = PyCapsule::new_with_value(py, Handed(export(Arc::clone(&self.values))), c"arrow_array")?;
        Ok((schema, array))
    }

    fn __len__(&self) -> usize {
        self.values.len()
    }
}

/// A structure in a capsule. The consumer moves it out; if none does, dropping the capsule releases it.
#[repr(transparent)]
struct Handed<T>(#[allow(dead_code)] T);

// SAFETY: what we export may be released from any thread.
unsafe impl<T> Send for Handed<T> {}

/// What an exported array keeps alive.
struct Kept {
    /// No validity bitmap, then the values.
    buffers: [*const c_void; 2],
    _values: Arc<Vec<u32>>,
}

fn int32_schema() -> ArrowSchema {
    let mut schema = ArrowSchema::empty();
    schema.format = CString::from(c"i").into_raw();
    schema.name = c"".as_ptr();
    schema.release = Some(release_schema);
    schema
}

#[allow(clippy::cast_possible_wrap)] // a Vec is never longer than isize::MAX
fn export(values: Arc<Vec<u32>>) -> ArrowArray {
    let mut array = ArrowArray::empty();
    array.length = values.len() as i64;
    array.n_buffers = 2;
    // Partitions are below 4096, so their bits are those of an int32.
    let kept = Box::new(Kept { buffers: [ptr::null(), values.as_ptr().cast()], _values: values });
    let kept = Box::into_raw(kept);
    // SAFETY: just made from a box, so valid until `release_array` takes it back.
    array.buffers = unsafe { &raw mut (*kept).buffers }.cast();
    array.private_data = kept.cast();
    array.release = Some(release_array);
    array
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the consumer passes the structure that `int32_schema` filled, once.
    let schema = unsafe { &mut *schema };
    // SAFETY: the format came from `CString::into_raw`.
    drop(unsafe { CString::from_raw(schema.format.cast_mut()) });
    schema.format = ptr::null();
    schema.release = None;
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: the consumer passes the structure that `export` filled, once.
    let array = unsafe { &mut *array };
    // SAFETY: the private data came from `Box::into_raw` of this type.
    drop(unsafe { Box::from_raw(array.private_data.cast::<Kept>()) });
    array.private_data = ptr::null_mut();
    array.release = None;
}
