//! Columns of our own as Arrow arrays. Nothing is copied: what is handed over keeps its owner alive until it is released.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::abi::{ArrowArray, ArrowSchema};

/// Whatever the buffers of an array lie in.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// The pair of capsules that `__arrow_c_array__` returns.
pub type Capsules<'py> = (Bound<'py, PyCapsule>, Bound<'py, PyCapsule>);

/// A field may hold nulls.
pub const NULLABLE: i64 = 2;

/// The capsules of a column.
pub fn capsules(py: Python<'_>, schema: ArrowSchema, array: ArrowArray) -> PyResult<Capsules<'_>> {
    let schema = PyCapsule::new_with_value(py, Handed(schema), c"arrow_schema")?;
    let array = PyCapsule::new_with_value(py, Handed(array), c"arrow_array")?;
    Ok((schema, array))
}

/// A field of a type given by its format string, with the fields inside.
pub fn field(
    format: &'static CStr,
    name: &'static CStr,
    flags: i64,
    children: impl IntoIterator<Item = ArrowSchema>,
) -> ArrowSchema {
    let mut parts = Box::new(SchemaParts { children: children.into_iter().map(boxed).collect() });
    let mut schema = ArrowSchema::empty();
    schema.format = format.as_ptr();
    schema.name = name.as_ptr();
    schema.flags = flags;
    (schema.n_children, schema.children) = listed(&mut parts.children);
    schema.private_data = Box::into_raw(parts).cast();
    schema.release = Some(release_schema);
    schema
}

/// An array of so many rows, of which some are null, over buffers inside `owner`.
///
/// The buffers must be those that the type demands, long enough for `rows`, and must not move while `owner` lives.
#[allow(clippy::cast_possible_wrap)] // nothing in memory is longer than isize::MAX
pub fn array(
    rows: usize,
    nulls: usize,
    owner: Owner,
    buffers: Vec<*const c_void>,
    children: impl IntoIterator<Item = ArrowArray>,
) -> ArrowArray {
    let children = children.into_iter().map(boxed).collect();
    let mut parts = Box::new(ArrayParts { buffers, children, _owner: owner });
    let mut array = ArrowArray::empty();
    array.length = rows as i64;
    array.null_count = nulls as i64;
    array.n_buffers = parts.buffers.len() as i64;
    array.buffers = parts.buffers.as_mut_ptr();
    (array.n_children, array.children) = listed(&mut parts.children);
    array.private_data = Box::into_raw(parts).cast();
    array.release = Some(release_array);
    array
}

/// A buffer for [`array`].
pub const fn buffer<T>(values: &[T]) -> *const c_void {
    values.as_ptr().cast()
}

/// A structure in a capsule. The consumer moves it out; if none does, dropping the capsule releases it.
#[repr(transparent)]
struct Handed<T>(#[allow(dead_code)] T);

// SAFETY: what we export may be released from any thread.
unsafe impl<T> Send for Handed<T> {}

/// What an exported schema keeps alive, besides its static texts.
struct SchemaParts {
    children: Vec<*mut ArrowSchema>,
}

/// What an exported array keeps alive.
struct ArrayParts {
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    _owner: Owner,
}

fn boxed<T>(structure: T) -> *mut T {
    Box::into_raw(Box::new(structure))
}

#[allow(clippy::cast_possible_wrap)] // as above
fn listed<T>(children: &mut [*mut T]) -> (i64, *mut *mut T) {
    (children.len() as i64, children.as_mut_ptr())
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the consumer passes the structure that `field` filled, once.
    let schema = unsafe { &mut *schema };
    // SAFETY: the private data came from `Box::into_raw` of this type.
    let parts = unsafe { Box::from_raw(schema.private_data.cast::<SchemaParts>()) };
    for child in parts.children {
        // SAFETY: it came from `boxed`. A consumer may have moved it out, and has left it spent then.
        drop(unsafe { Box::from_raw(child) });
    }
    schema.private_data = ptr::null_mut();
    schema.release = None;
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: the consumer passes the structure that `array` filled, once.
    let array = unsafe { &mut *array };
    // SAFETY: the private data came from `Box::into_raw` of this type.
    let parts = unsafe { Box::from_raw(array.private_data.cast::<ArrayParts>()) };
    for child in parts.children {
        // SAFETY: as for a schema's.
        drop(unsafe { Box::from_raw(child) });
    }
    array.private_data = ptr::null_mut();
    array.release = None;
}
