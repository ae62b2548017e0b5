//! Columns that cross by the Arrow PyCapsule interface: read where they lie, and handed back without a copy.
//!
//! The three C structures are frozen by the Arrow C data interface specification and need no library.

mod abi;
mod export;
mod input;
mod output;
mod rows;

pub use input::Column;
pub use output::Partitions;
pub use rows::FetchedRows;
