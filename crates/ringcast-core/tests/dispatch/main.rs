//! Key-shared dispatch: random schedules against a checker, the checker against broken dispatchers, and the rules one
//! by one.

mod checker;
mod falsify;
mod filters;
mod history;
mod router;
mod rules;
mod schedules;
