//! `Router`: fire and forget. `KeyFilter`: which keys a consumer wants.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use ringcast_core::dispatch::{self, MAX_SETTING_MS, MAX_WINDOW, Route, Routed};

use super::arguments::{Keys, capacity_of, consumer_of, now};
use crate::border::{released, to_exception};
use crate::ints::int;
use crate::ring::names_of;

/// Routes messages by row key without remembering any: no answers, no further tries, no cursor.
///
/// What does not fit into the queue of the key's owner is lost. Consumers are chosen as by a Dispatcher, and evicted
/// after `evict_after_ms` without a sign of life. Times are whole milliseconds of one clock.
#[pyclass(frozen, module = "ringcast_core")]
pub struct Router {
    machine: Mutex<dispatch::Router>,
}

impl Router {
    fn lock(&self) -> MutexGuard<'_, dispatch::Router> {
        // The core checks before it changes anything, so what a panic left behind is still whole.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Router {
    #[new]
    #[pyo3(signature = (*, evict_after_ms=None))]
    fn new(evict_after_ms: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let default = dispatch::Settings::default().evict_after_ms;
        let after_ms = evict_after_ms.map_or(Ok(default), |ms| int(ms, "evict_after_ms", (1, MAX_SETTING_MS)))?;
        let machine = dispatch::Router::new(after_ms).map_err(|error| to_exception(&error))?;
        Ok(Self { machine: Mutex::new(machine) })
    }

    /// Adds a consumer whose queue takes `capacity` messages, and returns its number. Raises as Dispatcher.join().
    #[pyo3(signature = (name, filters=None, *, capacity, now_ms))]
    fn join(
        &self,
        py: Python<'_>,
        name: &str,
        filters: Option<&Bound<'_, PyAny>>,
        capacity: &Bound<'_, PyAny>,
        now_ms: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let filters = filters.map_or(Ok(Vec::new()), |filters| names_of(filters, "filters"))?;
        let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
        let (capacity, at) = (capacity_of(capacity)?, now(now_ms)?);
        released(py, || self.lock().join(name, &filters, capacity, at).map(|id| id.0))
    }

    /// Forgets a consumer and its queue. False when it is not here.
    fn leave(&self, py: Python<'_>, consumer: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = consumer_of(consumer)?;
        released(py, || Ok(self.lock().leave(id)))
    }

    /// Notes a sign of life. False when the consumer is not here (any more).
    fn heartbeat(&self, consumer: &Bound<'_, PyAny>, now_ms: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.lock().heartbeat(consumer_of(consumer)?, now(now_ms)?))
    }

    /// The consumer that gets each message, or None for one that is lost. One that goes anywhere counts as queued there
    /// until taken(). Raises ValueError for a key above 512 bytes; then nothing was routed.
    fn route(&self, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<u64>>> {
        let held = Keys::hold(keys)?;
        let views = held.views()?;
        let places = released(keys.py(), || self.lock().route(&views))?;
        let place = |route| if let Route::To(consumer) = route { Some(consumer.0) } else { None };
        Ok(places.into_iter().map(place).collect())
    }

    /// A consumer has taken `messages` out of its queue. False when it is not here (any more).
    fn taken(
        &self,
        consumer: &Bound<'_, PyAny>,
        messages: &Bound<'_, PyAny>,
        now_ms: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let messages = int(messages, "messages", (0, MAX_WINDOW.into()))?;
        Ok(self.lock().taken(consumer_of(consumer)?, messages, now(now_ms)?))
    }

    /// Evicts the consumers that have been silent for too long, and says which.
    fn tick(&self, py: Python<'_>, now_ms: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        let at = now(now_ms)?;
        let gone = released(py, || Ok(self.lock().tick(at)))?;
        Ok(gone.into_iter().map(|consumer| consumer.0).collect())
    }

    /// What became of messages so far, by name: "queued", "saturated" (lost to a full queue) and "unmatched" (lost because
    /// no consumer accepts the key).
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Routed { queued, saturated, unmatched } = self.lock().counts();
        [("queued", queued), ("saturated", saturated), ("unmatched", unmatched)].into_py_dict(py)
    }

    /// When tick() may have something to do next; None while there is no consumer.
    #[getter]
    fn next_deadline_ms(&self) -> Option<u64> {
        self.lock().next_deadline_ms()
    }
}

/// A pattern over whole row keys: `*` stands for any characters, `?` for exactly one, all others for themselves.
///
/// Raises ValueError for an empty pattern and one above 512 bytes. Matching takes at most pattern length times key
/// length steps.
#[pyclass(frozen, module = "ringcast_core")]
pub struct KeyFilter {
    pattern: dispatch::KeyFilter,
}

#[pymethods]
impl KeyFilter {
    #[new]
    fn new(pattern: &str) -> PyResult<Self> {
        let pattern = dispatch::KeyFilter::new(pattern).map_err(|error| to_exception(&error))?;
        Ok(Self { pattern })
    }

    /// Whether the pattern stands for `key`.
    fn accepts(&self, key: &str) -> bool {
        self.pattern.accepts(key)
    }
}
