//! Key-shared dispatch: the state machine, the router without bookkeeping, and the filters.

mod action;
mod arguments;
mod dispatcher;
mod router;

pub use action::Action;
pub use dispatcher::{ConsumerState, Dispatcher};
pub use router::{KeyFilter, Router};
