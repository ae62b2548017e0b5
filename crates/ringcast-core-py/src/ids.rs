//! Row ids and ring keys as they come in: `str` as its UTF-8 bytes, `bytes` as they are.

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

/// The bytes of one id. The interpreter keeps the UTF-8 form of a `str` with the object, so nothing is copied here.
pub fn bytes_of<'a>(id: &'a Bound<'_, PyAny>, field: &str) -> PyResult<&'a [u8]> {
    view(id.as_borrowed()).ok_or_else(|| refusal(id, field))
}

/// The text of one argument, with an error that names the field when it can't be written as UTF-8.
pub fn text_of<'a>(text: &'a Bound<'_, PyString>, field: &str) -> PyResult<&'a str> {
    text.to_str().map_err(|_| not_utf8(field))
}

/// Ids held alive by a tuple of our own, so that the list they came from may change while the lock is released.
pub struct Ids<'py> {
    held: Bound<'py, PyTuple>,
}

impl<'py> Ids<'py> {
    /// Takes hold of every id of a list, a tuple or any other iterable.
    pub fn hold(ids: &Bound<'py, PyAny>, field: &str) -> PyResult<Self> {
        if ids.is_instance_of::<PyString>() || ids.is_instance_of::<PyBytes>() {
            let message = format!("{field} must be a sequence of str or bytes, not one {}", ids.get_type().name()?);
            return Err(PyTypeError::new_err(message));
        }
        let held = PyTuple::type_object(ids.py()).call1((ids,))?.cast_into()?;
        Ok(Self { held })
    }

    /// The bytes of each id.
    pub fn views(&self, field: &str) -> PyResult<Vec<&[u8]>> {
        let mut views = Vec::with_capacity(self.held.len());
        for (index, id) in self.held.iter_borrowed().enumerate() {
            views.push(view(id).ok_or_else(|| refusal(&id, &format!("{field}[{index}]")))?);
        }
        Ok(views)
    }
}

/// The bytes of an id, unless it is neither `str` nor `bytes` or can't be written as UTF-8.
#[inline]
fn view<'a>(id: Borrowed<'a, '_, PyAny>) -> Option<&'a [u8]> {
    // The exact type first: that check is a comparison, the general one a call.
    if id.is_exact_instance_of::<PyBytes>() {
        return <&[u8]>::extract(id).ok();
    }
    match <&str>::extract(id) {
        Ok(text) => Some(text.as_bytes()),
        Err(_) => <&[u8]>::extract(id).ok(),
    }
}

/// Why an id has no bytes.
#[cold]
fn refusal(id: &Bound<'_, PyAny>, field: &str) -> PyErr {
    if id.is_instance_of::<PyString>() {
        return not_utf8(field);
    }
    match id.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("{field} must be str or bytes, got {kind}")),
        Err(error) => error,
    }
}

fn not_utf8(field: &str) -> PyErr {
    PyValueError::new_err(format!("{field} must be encodable as UTF-8, got a lone surrogate"))
}
