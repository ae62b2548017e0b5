//! The pure half of Ringcast: which partition a row belongs to, and which worker a partition belongs to.
//!
//! Every worker, the config service and a Spark cluster must give the same answers to those two questions
//! without talking to each other, so they are answered here once: by functions of their arguments alone.
//! Nothing in this crate reads a clock, draws a random number, does I/O or knows of Python.
//!
//! | module | question |
//! |---|---|
//! | [`hash`] | the partition of a row: XXH64 with seed 42, floor-modulo, equal to Spark SQL's `pmod(xxhash64(id), n)` |
//! | [`mod@column`] | the same for a whole column of row ids in Arrow's layouts |
//! | [`jump`] | JumpHash, the bucket of a 64-bit key |
//! | [`assign`] | the slot of every partition: bounded-load JumpHash that tolerates vacant slots |
//! | [`sticky`] | the worker of every partition under exclusive ownership: few moves, even loads, weights, pins, drains |
//! | [`ring`] | the member of a key: consistent ring with 100 virtual nodes a member |
//! | [`dedup`] | which row changes of a micro-batch are still worth fetching |
//! | [`reply`] | which rows a fetch reply holds, as columns in Arrow's layouts |
//! | [`dispatch`] | which consumer gets which message when, so that each row key stays in order |

#![forbid(unsafe_code)]

pub mod assign;
pub mod column;
pub mod dedup;
pub mod dispatch;
mod error;
pub mod hash;
pub mod jump;
pub mod reply;
pub mod ring;
pub mod sticky;

pub use error::{Error, ErrorCode};

/// Largest partition count of a store.
pub const MAX_PARTITIONS: u32 = 4096;
/// Slots are `0..MAX_SLOTS`, so one assignment has at most this many workers.
pub const MAX_SLOTS: u32 = 1024;
/// Longest row id or member name, in bytes of UTF-8.
pub const MAX_ROW_ID_BYTES: usize = 512;
/// Most rows that one [`dedup::Dedup`] may hold.
pub const MAX_DEDUP_ROWS: usize = 1 << 20;
/// The name under which a store records how its rows are hashed.
pub const HASH_NAME: &str = "xxh64-42";
