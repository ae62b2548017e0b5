//! Micro-batch dedup: of all changes heard in a window, the newest of each row.

use std::collections::BTreeMap;

use crate::{Error, MAX_DEDUP_ROWS, MAX_PARTITIONS, MAX_ROW_ID_BYTES};

/// What became of a pushed change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// The row is new in this batch.
    Added,
    /// The row was here with a lower version, which this one replaces.
    Replaced,
    /// The row is here with the same or a higher version; the change was dropped.
    Stale,
    /// The row is new and the batch holds `max_rows` rows already; nothing was changed.
    Full,
}

/// One change of a row, as drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Partition of the row.
    pub partition: u32,
    /// The row id.
    pub row_id: Box<str>,
    /// Highest version pushed.
    pub version: u64,
    /// Whether that version is a tombstone.
    pub deleted: bool,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    version: u64,
    deleted: bool,
}

/// A bounded batch of row changes that keeps the newest version of each row and the order of first arrival.
///
/// The index is an ordered map: it needs no random seed to withstand row ids that were chosen to collide.
#[derive(Debug)]
pub struct Dedup {
    max_rows: usize,
    /// Position in `slots` of each row, by row id and partition.
    index: BTreeMap<(Box<str>, u32), usize>,
    slots: Vec<Slot>,
}

impl Dedup {
    /// An empty batch for at most `max_rows` rows.
    ///
    /// # Errors
    /// When `max_rows` is 0 or above [`MAX_DEDUP_ROWS`].
    pub fn new(max_rows: usize) -> Result<Self, Error> {
        Error::check_range("max_rows", max_rows as u64, 1, MAX_DEDUP_ROWS as u64)?;
        Ok(Self { max_rows, index: BTreeMap::new(), slots: Vec::new() })
    }

    /// Takes in one change.
    ///
    /// # Errors
    /// When the partition is 4096 or above or the row id is longer than 512 bytes.
    pub fn push(&mut self, partition: u32, row_id: &str, version: u64, deleted: bool) -> Result<Push, Error> {
        check(partition, row_id)?;
        let full = self.slots.len() >= self.max_rows;
        let key = (Box::from(row_id), partition);
        if full {
            let Some(&at) = self.index.get(&key) else { return Ok(Push::Full) };
            return Ok(self.slots[at].offer(version, deleted));
        }
        match self.index.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(self.slots[*entry.get()].offer(version, deleted)),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(self.slots.len());
                self.slots.push(Slot { version, deleted });
                Ok(Push::Added)
            }
        }
    }

    /// Takes in `(partition, row_id, version, deleted)` in order until the batch is full; returns how many it took.
    ///
    /// # Errors
    /// As [`Dedup::push`], before anything is taken in.
    pub fn push_many(&mut self, rows: &[(u32, &str, u64, bool)]) -> Result<usize, Error> {
        for (partition, row_id, ..) in rows {
            check(*partition, row_id)?;
        }
        for (taken, (partition, row_id, version, deleted)) in rows.iter().enumerate() {
            if self.push(*partition, row_id, *version, *deleted)? == Push::Full {
                return Ok(taken);
            }
        }
        Ok(rows.len())
    }

    /// Empties the batch: one change a row, in the order in which the rows first arrived.
    pub fn drain(&mut self) -> Vec<Change> {
        let mut rows: Vec<_> = std::mem::take(&mut self.index).into_iter().collect();
        rows.sort_unstable_by_key(|(_, at)| *at);
        let slots = std::mem::take(&mut self.slots);
        let change = |(((row_id, partition), _), slot): (((Box<str>, u32), usize), Slot)| Change {
            partition,
            row_id,
            version: slot.version,
            deleted: slot.deleted,
        };
        rows.into_iter().zip(slots).map(change).collect()
    }

    /// Rows held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no row is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Most rows that this batch may hold.
    #[must_use]
    pub const fn max_rows(&self) -> usize {
        self.max_rows
    }
}

impl Slot {
    fn offer(&mut self, version: u64, deleted: bool) -> Push {
        if version <= self.version {
            return Push::Stale;
        }
        *self = Self { version, deleted };
        Push::Replaced
    }
}

fn check(partition: u32, row_id: &str) -> Result<(), Error> {
    Error::check_range("partition", u64::from(partition), 0, u64::from(MAX_PARTITIONS - 1))?;
    Error::check_range("row_id length in bytes", row_id.len() as u64, 0, MAX_ROW_ID_BYTES as u64)
}
