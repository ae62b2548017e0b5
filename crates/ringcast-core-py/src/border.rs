//! The one place where the lock is released and errors become exceptions.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ringcast_core::Error;

/// Runs `work` with the interpreter lock released and turns its error into an exception.
pub fn released<T, F>(py: Python<'_>, work: F) -> PyResult<T>
where
    T: Send,
    F: Send + FnOnce() -> Result<T, Error>,
{
    py.detach(work).map_err(|error| to_exception(&error))
}

/// Every kind of core error is a bad value of an argument, so each is a `ValueError`. The match lists them all, so
/// that a new kind must be thought about here.
pub fn to_exception(error: &Error) -> PyErr {
    match error {
        Error::OutOfRange { .. }
        | Error::LoadFactor { .. }
        | Error::Empty { .. }
        | Error::Duplicate { .. }
        | Error::Length { .. }
        | Error::Malformed { .. }
        | Error::Reply { .. } => PyValueError::new_err(error.to_string()),
    }
}
