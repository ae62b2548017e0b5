//! Arguments of dispatch as they come in.

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use ringcast_core::dispatch::{ConsumerId, MAX_WINDOW, PoisonPolicy};

use crate::ids::text_of;
use crate::ints::int;

/// Row keys held alive by a tuple of our own, so that the list they came from may change while the lock is released.
pub struct Keys<'py>(Bound<'py, PyTuple>);

impl<'py> Keys<'py> {
    /// Takes hold of every key of an iterable.
    pub fn hold(keys: &Bound<'py, PyAny>) -> PyResult<Self> {
        if keys.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("keys must be a sequence of str, not one str"));
        }
        Ok(Self(PyTuple::type_object(keys.py()).call1((keys,))?.cast_into()?))
    }

    /// The text of each key.
    pub fn views(&self) -> PyResult<Vec<&str>> {
        let mut views = Vec::with_capacity(self.0.len());
        for (index, key) in self.0.iter_borrowed().enumerate() {
            // Extracting borrows from the tuple, which outlives this; what has no text gets its message from text_of.
            views.push(<&str>::extract(key).map_err(|_| refusal(&key, index))?);
        }
        Ok(views)
    }
}

#[cold]
fn refusal(key: &Bound<'_, PyAny>, index: usize) -> PyErr {
    let field = format!("keys[{index}]");
    match key.cast::<PyString>() {
        Ok(text) => text_of(text, &field).err().unwrap_or_else(|| PyValueError::new_err(field)),
        Err(_) => match key.get_type().name() {
            Ok(kind) => PyTypeError::new_err(format!("{field} must be str, got {kind}")),
            Err(error) => error,
        },
    }
}

pub fn now(now_ms: &Bound<'_, PyAny>) -> PyResult<u64> {
    int(now_ms, "now_ms", (0, u64::MAX))
}

pub fn offset_of(offset: &Bound<'_, PyAny>) -> PyResult<u64> {
    int(offset, "offset", (0, u64::MAX))
}

pub fn consumer_of(consumer: &Bound<'_, PyAny>) -> PyResult<ConsumerId> {
    int(consumer, "consumer", (0, u64::MAX)).map(ConsumerId)
}

pub fn capacity_of(capacity: &Bound<'_, PyAny>) -> PyResult<u32> {
    int(capacity, "capacity", (1, MAX_WINDOW.into()))
}

pub fn poison_of(policy: &str) -> PyResult<PoisonPolicy> {
    match policy {
        "drop" => Ok(PoisonPolicy::Drop),
        "dead-letter" => Ok(PoisonPolicy::DeadLetter),
        "block" => Ok(PoisonPolicy::Block),
        _ => Err(PyValueError::new_err(format!("poison must be drop, dead-letter or block, got {policy:?}"))),
    }
}

/// Refuses two lists that belong together and are not equally long.
pub fn same_length(fields: (&str, &str), lengths: (usize, usize)) -> PyResult<()> {
    if lengths.0 == lengths.1 {
        return Ok(());
    }
    let ((one, other), (first, second)) = (fields, lengths);
    Err(PyValueError::new_err(format!("{one} and {other} must be equally long, got {first} and {second}")))
}
