//! `Dispatcher`: the state machine of one key-shared subscription.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};
use ringcast_core::Error;
use ringcast_core::dispatch::{self, ConsumerId, MAX_DELIVERIES, MAX_SETTING_MS, MAX_WINDOW, Settings};

use super::action::to_list;
use super::arguments::{Keys, capacity_of, consumer_of, now, offset_of, poison_of, same_length};
use crate::border::{released, to_exception};
use crate::ints::{column, int};
use crate::ring::names_of;

const OFFSET: (u64, u64) = (0, u64::MAX);
const ATTEMPT: (u64, u64) = (0, u32::MAX as u64);
const WINDOW: (u64, u64) = (1, MAX_WINDOW as u64);
const DELIVERIES: (u64, u64) = (1, MAX_DELIVERIES as u64);
const MS: (u64, u64) = (1, MAX_SETTING_MS);

/// What a call answers, and the actions that follow from it.
type Answered<'py, T> = PyResult<(T, Bound<'py, PyList>)>;

/// Decides which consumer gets which message when; what it returns is for the caller to do.
///
/// Messages of one row key are in flight one at a time and in order, whatever happens to consumers. The cursor never
/// passes a message that is not settled. All times are whole milliseconds of one clock that the caller reads; one that
/// runs backwards is taken to stand still. Call tick() at next_deadline_ms.
///
/// `window` bounds the unsettled messages, `consumer_capacity` those in flight at a consumer without a capacity of its
/// own. A delivery fails when it is rejected or gets no answer for `ack_timeout_ms`; it is tried again after
/// `backoff_first_ms`, doubling up to `backoff_most_ms`. After `max_tries` failures, or `max_deliveries` deliveries for
/// whatever reasons, `poison` decides: "drop", "dead-letter" or "block". A consumer is evicted after `evict_after_ms`
/// without a sign of life; what it had goes to others, and where none accepts the key it is kept for `orphan_hold_ms`.
///
/// Raises ValueError for a setting outside its limits, naming it.
#[pyclass(frozen, module = "ringcast_core")]
pub struct Dispatcher {
    machine: Mutex<dispatch::Dispatcher>,
}

/// One consumer of a Dispatcher, for people to look at.
#[pyclass(frozen, get_all, module = "ringcast_core")]
pub struct ConsumerState {
    /// Its number.
    consumer: u64,
    /// The name it joined with.
    name: String,
    /// Most messages it may have in flight.
    capacity: u32,
    /// Messages it has in flight.
    in_flight: u32,
    /// Keys that wait for it to have room.
    waiting: u32,
    /// Whether it gets nothing new and leaves when it has answered what it has.
    draining: bool,
}

impl Dispatcher {
    fn lock(&self) -> MutexGuard<'_, dispatch::Dispatcher> {
        // The core checks before it changes anything, so what a panic left behind is still whole.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call of the machine with the interpreter lock released.
    fn call<'py, T: Send>(
        &self,
        py: Python<'py>,
        work: impl Send + FnOnce(&mut dispatch::Dispatcher, &mut Vec<dispatch::Action>) -> Result<T, Error>,
    ) -> Answered<'py, T> {
        let (result, actions) = released(py, || {
            let mut actions = Vec::new();
            work(&mut self.lock(), &mut actions).map(|result| (result, actions))
        })?;
        Ok((result, to_list(py, actions)?))
    }

    /// A call that may have nothing to apply to.
    fn call_if<'py>(
        &self,
        py: Python<'py>,
        work: impl Send + FnOnce(&mut dispatch::Dispatcher, &mut Vec<dispatch::Action>) -> bool,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (applied, actions) = self.call(py, |machine, out| Ok(work(machine, out)))?;
        Ok(applied.then_some(actions))
    }
}

/// How a consumer answers.
type Answer = fn(&mut dispatch::Dispatcher, ConsumerId, &[(u64, u32)], u64, &mut Vec<dispatch::Action>) -> Vec<bool>;

impl Dispatcher {
    fn answer<'py>(
        &self,
        consumer: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        attempts: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
        answer: Answer,
    ) -> Answered<'py, Vec<bool>> {
        let (id, at) = (consumer_of(consumer)?, now(now_ms)?);
        let offsets: Vec<u64> = column(offsets, "offsets", OFFSET)?;
        let attempts: Vec<u32> = column(attempts, "attempts", ATTEMPT)?;
        same_length(("offsets", "attempts"), (offsets.len(), attempts.len()))?;
        let answers: Vec<(u64, u32)> = offsets.into_iter().zip(attempts).collect();
        self.call(consumer.py(), |machine, out| Ok(answer(machine, id, &answers, at, out)))
    }
}

#[pymethods]
impl Dispatcher {
    #[new]
    #[pyo3(signature = (
        *, cursor=None, window=None, consumer_capacity=None, ack_timeout_ms=None, max_tries=None, max_deliveries=None,
        backoff_first_ms=None, backoff_most_ms=None, poison="drop", evict_after_ms=None, orphan_hold_ms=None,
    ))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of Python
    fn new(
        cursor: Option<&Bound<'_, PyAny>>,
        window: Option<&Bound<'_, PyAny>>,
        consumer_capacity: Option<&Bound<'_, PyAny>>,
        ack_timeout_ms: Option<&Bound<'_, PyAny>>,
        max_tries: Option<&Bound<'_, PyAny>>,
        max_deliveries: Option<&Bound<'_, PyAny>>,
        backoff_first_ms: Option<&Bound<'_, PyAny>>,
        backoff_most_ms: Option<&Bound<'_, PyAny>>,
        poison: &str,
        evict_after_ms: Option<&Bound<'_, PyAny>>,
        orphan_hold_ms: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let base = Settings::default();
        let count = |value: Option<&Bound<'_, PyAny>>, field, limits, default| {
            value.map_or(Ok(default), |value| int::<u32>(value, field, limits))
        };
        let ms = |value: Option<&Bound<'_, PyAny>>, field, default| {
            value.map_or(Ok(default), |value| int::<u64>(value, field, MS))
        };
        let settings = Settings {
            window: count(window, "window", WINDOW, base.window)?,
            consumer_capacity: count(consumer_capacity, "consumer_capacity", WINDOW, base.consumer_capacity)?,
            ack_timeout_ms: ms(ack_timeout_ms, "ack_timeout_ms", base.ack_timeout_ms)?,
            max_tries: count(max_tries, "max_tries", DELIVERIES, base.max_tries)?,
            max_deliveries: count(max_deliveries, "max_deliveries", DELIVERIES, base.max_deliveries)?,
            backoff_first_ms: ms(backoff_first_ms, "backoff_first_ms", base.backoff_first_ms)?,
            backoff_most_ms: ms(backoff_most_ms, "backoff_most_ms", base.backoff_most_ms)?,
            poison: poison_of(poison)?,
            evict_after_ms: ms(evict_after_ms, "evict_after_ms", base.evict_after_ms)?,
            orphan_hold_ms: ms(orphan_hold_ms, "orphan_hold_ms", base.orphan_hold_ms)?,
        };
        let cursor = cursor.map_or(Ok(0), |cursor| int(cursor, "cursor", OFFSET))?;
        let machine = dispatch::Dispatcher::new(settings, cursor).map_err(|error| to_exception(&error))?;
        Ok(Self { machine: Mutex::new(machine) })
    }

    /// Adds a consumer and returns its number. Without filters it accepts every key, else those that a filter stands for
    /// (see KeyFilter). Raises ValueError when there are too many consumers or filters, the name is taken, empty or too
    /// long, or a filter or the capacity is outside its limits; then nothing has changed.
    #[pyo3(signature = (name, filters=None, *, now_ms, capacity=None))]
    fn join<'py>(
        &self,
        name: &str,
        filters: Option<&Bound<'py, PyAny>>,
        now_ms: &Bound<'py, PyAny>,
        capacity: Option<&Bound<'py, PyAny>>,
    ) -> Answered<'py, u64> {
        let filters = filters.map_or(Ok(Vec::new()), |filters| names_of(filters, "filters"))?;
        let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
        let (capacity, at) = (capacity.map(capacity_of).transpose()?, now(now_ms)?);
        self.call(now_ms.py(), |machine, out| machine.join(name, &filters, capacity, at, out).map(|id| id.0))
    }

    /// Lets a consumer leave in peace: nothing new for it, and Action.Left once it has answered what it has. It must go
    /// on giving signs of life. None when it is not here, or leaving already.
    fn drain<'py>(
        &self,
        consumer: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (id, at) = (consumer_of(consumer)?, now(now_ms)?);
        self.call_if(now_ms.py(), |machine, out| machine.drain(id, at, out))
    }

    /// Counts a consumer as lost at once, as when its connection closes. None when it is not here.
    fn evict<'py>(
        &self,
        consumer: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (id, at) = (consumer_of(consumer)?, now(now_ms)?);
        self.call_if(now_ms.py(), |machine, out| machine.evict(id, at, out))
    }

    /// Notes a sign of life; an answer is one too. False when the consumer is not here (any more).
    fn heartbeat(&self, consumer: &Bound<'_, PyAny>, now_ms: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.lock().heartbeat(consumer_of(consumer)?, now(now_ms)?))
    }

    /// Takes in messages, by ascending offset, until the window is full; returns how many were taken.
    ///
    /// A message whose offset is not above all before it has been here: it is taken and ignored. Raises ValueError for a
    /// key above 512 bytes and for lists of different lengths; then nothing was taken. A buffer of unsigned 64-bit
    /// integers (`array('Q')`, numpy uint64) of offsets is read as a block.
    fn offer<'py>(
        &self,
        offsets: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> Answered<'py, usize> {
        let at = now(now_ms)?;
        let offsets: Vec<u64> = column(offsets, "offsets", OFFSET)?;
        let held = Keys::hold(keys)?;
        let views = held.views()?;
        same_length(("offsets", "keys"), (offsets.len(), views.len()))?;
        let messages: Vec<(u64, &str)> = offsets.into_iter().zip(views).collect();
        self.call(keys.py(), |machine, out| machine.offer(&messages, at, out))
    }

    /// A consumer has done with these messages. Says of each whether that counted: an answer to a delivery that is not in
    /// flight at this consumer does not. Buffers (`array('Q')` and `array('I')`) are read as a block.
    fn acknowledge<'py>(
        &self,
        consumer: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        attempts: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> Answered<'py, Vec<bool>> {
        self.answer(consumer, offsets, attempts, now_ms, dispatch::Dispatcher::acknowledge)
    }

    /// A consumer could not take these messages: they are tried again later, or are poison. Else as acknowledge().
    fn reject<'py>(
        &self,
        consumer: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        attempts: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> Answered<'py, Vec<bool>> {
        self.answer(consumer, offsets, attempts, now_ms, dispatch::Dispatcher::reject)
    }

    /// Settles a message that was published as asked for by Action.DeadLetter. None when it does not wait for that.
    fn dead_lettered<'py>(
        &self,
        offset: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (offset, at) = (offset_of(offset)?, now(now_ms)?);
        self.call_if(now_ms.py(), |machine, out| machine.dead_lettered(offset, at, out))
    }

    /// Tries a blocked message again, as if it had never failed. None when it is not blocked.
    fn unblock<'py>(
        &self,
        offset: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (offset, at) = (offset_of(offset)?, now(now_ms)?);
        self.call_if(now_ms.py(), |machine, out| machine.unblock(offset, at, out))
    }

    /// Gives up a blocked message. None when it is not blocked.
    fn discard<'py>(
        &self,
        offset: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (offset, at) = (offset_of(offset)?, now(now_ms)?);
        self.call_if(now_ms.py(), |machine, out| machine.discard(offset, at, out))
    }

    /// Does what is due: evictions, time-outs, further tries, the end of waiting for a lost consumer.
    fn tick<'py>(&self, now_ms: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let at = now(now_ms)?;
        let ((), actions) = self.call(now_ms.py(), |machine, out| {
            machine.tick(at, out);
            Ok(())
        })?;
        Ok(actions)
    }

    /// When tick() may have something to do next; None when time alone changes nothing.
    #[getter]
    fn next_deadline_ms(&self) -> Option<u64> {
        self.lock().next_deadline_ms()
    }

    /// The acknowledgement frontier, from which to resume: every message up to here is settled.
    #[getter]
    fn cursor(&self) -> u64 {
        self.lock().cursor()
    }

    /// The highest offset that arrived.
    #[getter]
    fn last_offset(&self) -> u64 {
        self.lock().last_offset()
    }

    /// How many messages may be offered now.
    #[getter]
    fn room(&self) -> usize {
        self.lock().room()
    }

    /// How many messages are in flight.
    #[getter]
    fn in_flight(&self) -> usize {
        self.lock().in_flight()
    }

    /// How many messages are not settled.
    #[getter]
    fn unsettled(&self) -> usize {
        self.lock().unsettled()
    }

    /// What happened so far, by name. "offered" is "acked", "dropped", "dead_lettered", "skipped" and what is unsettled.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.lock().counts();
        [
            ("offered", counts.offered),
            ("repeated", counts.repeated),
            ("deliveries", counts.deliveries),
            ("acked", counts.acked),
            ("rejected", counts.rejected),
            ("timed_out", counts.timed_out),
            ("evicted", counts.evicted),
            ("stale", counts.stale),
            ("dropped", counts.dropped),
            ("dead_lettered", counts.dead_lettered),
            ("skipped", counts.skipped),
        ]
        .into_py_dict(py)
    }

    /// The offsets of blocked messages, ascending.
    fn blocked(&self) -> Vec<u64> {
        self.lock().blocked()
    }

    /// The consumers, in the order in which they joined.
    fn consumers(&self) -> Vec<ConsumerState> {
        self.lock().consumers().into_iter().map(ConsumerState::from).collect()
    }
}

impl From<dispatch::ConsumerState> for ConsumerState {
    fn from(state: dispatch::ConsumerState) -> Self {
        let dispatch::ConsumerState { id, name, capacity, in_flight, waiting, draining } = state;
        Self { consumer: id.0, name, capacity, in_flight, waiting, draining }
    }
}
