//! What a dispatcher asks for, as classes that `match` takes apart.

use pyo3::prelude::*;
use pyo3::types::PyList;
use ringcast_core::dispatch;

/// One thing that a Dispatcher asks its caller to do or to know: an instance of one of the classes in here.
#[pyclass(frozen, eq, module = "ringcast_core")]
#[derive(PartialEq)]
pub enum Action {
    /// Hand the message to the consumer, which answers with the same three values. `attempt` counts the deliveries of the
    /// message from 1.
    Deliver { consumer: u64, offset: u64, attempt: u32 },
    /// No answer came in time, and one that comes still does not count. The message is tried again, or is poison.
    TimedOut { consumer: u64, offset: u64, attempt: u32 },
    /// Publish the message as a dead letter, then call dead_lettered(). `reason`: rejected, timed_out or evicted.
    DeadLetter { offset: u64, deliveries: u32, reason: String },
    /// The message is given up and settled. `reason` as for DeadLetter.
    Drop { offset: u64, deliveries: u32, reason: String },
    /// The message and its key stand still until unblock() or discard(). `reason` as for DeadLetter.
    Block { offset: u64, deliveries: u32, reason: String },
    /// No consumer accepts the message's key: it is settled.
    Skip { offset: u64, deliveries: u32 },
    /// The consumer is lost. What it had in flight is being delivered to others.
    Evicted { consumer: u64 },
    /// A draining consumer has answered everything and is gone.
    Left { consumer: u64 },
    /// Every message up to `cursor` is settled. At most one in a list, and the last.
    Advance { cursor: u64 },
}

#[pymethods]
impl Action {
    fn __repr__(&self) -> String {
        let poison = |kind: &str, offset: &u64, deliveries: &u32, reason: &str| {
            format!("Action.{kind}(offset={offset}, deliveries={deliveries}, reason={reason:?})")
        };
        match self {
            Self::Deliver { consumer, offset, attempt } => {
                format!("Action.Deliver(consumer={consumer}, offset={offset}, attempt={attempt})")
            }
            Self::TimedOut { consumer, offset, attempt } => {
                format!("Action.TimedOut(consumer={consumer}, offset={offset}, attempt={attempt})")
            }
            Self::DeadLetter { offset, deliveries, reason } => poison("DeadLetter", offset, deliveries, reason),
            Self::Drop { offset, deliveries, reason } => poison("Drop", offset, deliveries, reason),
            Self::Block { offset, deliveries, reason } => poison("Block", offset, deliveries, reason),
            Self::Skip { offset, deliveries } => format!("Action.Skip(offset={offset}, deliveries={deliveries})"),
            Self::Evicted { consumer } => format!("Action.Evicted(consumer={consumer})"),
            Self::Left { consumer } => format!("Action.Left(consumer={consumer})"),
            Self::Advance { cursor } => format!("Action.Advance(cursor={cursor})"),
        }
    }
}

impl From<dispatch::Action> for Action {
    fn from(action: dispatch::Action) -> Self {
        use dispatch::Action as Core;
        match action {
            Core::Deliver { consumer, offset, attempt } => Self::Deliver { consumer: consumer.0, offset, attempt },
            Core::TimedOut { consumer, offset, attempt } => Self::TimedOut { consumer: consumer.0, offset, attempt },
            Core::DeadLetter { offset, deliveries, reason } => {
                Self::DeadLetter { offset, deliveries, reason: reason.as_str().into() }
            }
            Core::Drop { offset, deliveries, reason } => {
                Self::Drop { offset, deliveries, reason: reason.as_str().into() }
            }
            Core::Block { offset, deliveries, reason } => {
                Self::Block { offset, deliveries, reason: reason.as_str().into() }
            }
            Core::Skip { offset, deliveries } => Self::Skip { offset, deliveries },
            Core::Evicted { consumer } => Self::Evicted { consumer: consumer.0 },
            Core::Left { consumer } => Self::Left { consumer: consumer.0 },
            Core::Advance { cursor } => Self::Advance { cursor },
        }
    }
}

/// The actions of one call, in order.
pub fn to_list(py: Python<'_>, actions: Vec<dispatch::Action>) -> PyResult<Bound<'_, PyList>> {
    let list = actions.into_iter().map(Action::from).map(|action| action.into_pyobject(py));
    PyList::new(py, list.collect::<PyResult<Vec<_>>>()?)
}
