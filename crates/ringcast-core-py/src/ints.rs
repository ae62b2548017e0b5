//! Integers as they come in. What does not fit is a `ValueError` that names the field, as every other bad value.

use pyo3::PyTypeInfo;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};

/// An integer that fits `T`; `limits` is for the message only, the core checks them.
pub fn int<'py, T>(value: &Bound<'py, PyAny>, field: &str, limits: (u64, u64)) -> PyResult<T>
where
    for<'a> T: FromPyObject<'a, 'py>,
{
    value.extract().map_err(|_| unfit(value, field, limits))
}

/// Integers of any iterable that fit `T`.
pub fn ints<'py, T>(values: &Bound<'py, PyAny>, field: &str, limits: (u64, u64)) -> PyResult<Vec<T>>
where
    for<'a> T: FromPyObject<'a, 'py>,
{
    let held = PyTuple::type_object(values.py()).call1((values,))?.cast_into::<PyTuple>()?;
    let one = |(index, value): (usize, Borrowed<'_, 'py, PyAny>)| {
        T::extract(value).map_err(|_| unfit(&value, &format!("{field}[{index}]"), limits))
    };
    held.iter_borrowed().enumerate().map(one).collect()
}

/// As [`ints`], but a buffer of exactly `T` (`array('Q')` and numpy `uint64` for `u64`) is read as a block.
pub fn column<'py, T>(values: &Bound<'py, PyAny>, field: &str, limits: (u64, u64)) -> PyResult<Vec<T>>
where
    for<'a> T: Element + FromPyObject<'a, 'py>,
{
    match PyBuffer::<T>::get(values) {
        Ok(buffer) => buffer.to_vec(values.py()),
        Err(_) => ints(values, field, limits),
    }
}

fn unfit(value: &Bound<'_, PyAny>, field: &str, (min, max): (u64, u64)) -> PyErr {
    if value.is_instance_of::<PyInt>() {
        return PyValueError::new_err(format!("{field} must be between {min} and {max}, got {value}"));
    }
    match value.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("{field} must be int, got {kind}")),
        Err(error) => error,
    }
}
