//! The answer to a fetch of rows, from its bytes to columns in Arrow's layouts, in one pass and without an object a row.
//!
//! The message is MessagePack: `[wire version, [[partition, revision, whole, [row, ...]], ...]]`, and a row is
//! `[row id, value, version, deleted = false, metadata = nil]`. Fields may have been appended to each of these arrays by
//! a later build, and are skipped. What is accepted, and what it means, is what `ringcast-wire` says with its own
//! decoder, and tests hold the two together; only a number that its column can't hold is refused here alone.
//!
//! The bytes come from a network, so nothing that they say of themselves is believed: no count reserves more than the
//! bytes behind it could fill, and no nesting uses the stack.

mod columns;
mod reader;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::fmt;

pub use columns::{Bits, Maps, Texts};

use crate::Error;
use reader::{Found, Reader};

/// The version of the messages that [`decode`] reads.
pub const WIRE_VERSION: i64 = 1;

/// Fewest bytes of a row: its own header and its three fields that have no default.
const LEAST_ROW_BYTES: usize = 4;

/// Where a run of rows comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The partition.
    pub partition: i32,
    /// The revision of the partition as of which the rows are.
    pub revision: i64,
    /// Whether these are all live rows of the partition, and not those that were asked for.
    pub whole: bool,
    /// How many rows there are.
    pub rows: usize,
}

/// All rows of a reply, one after another, as columns of the same length.
#[derive(Debug, Default)]
pub struct Rows {
    /// Where they come from, in their order.
    pub entries: Vec<Entry>,
    /// Ids.
    pub row_ids: Texts,
    /// Values; empty where `deleted`.
    pub values: Texts,
    /// The revision of each row's last write.
    pub versions: Vec<i64>,
    /// Partitions, one a row.
    pub partitions: Vec<i32>,
    /// Which rows are tombstones.
    pub deleted: Bits,
    /// Metadata, where a row has some.
    pub metadata: Maps,
}

impl Rows {
    /// How many rows there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.versions.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }
}

/// What is wrong with a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// It ends before what it says it has.
    Truncated,
    /// Something follows its end.
    Trailing,
    /// A field is of another type.
    Type {
        /// The field.
        field: &'static str,
        /// The type that it must have.
        wanted: &'static str,
        /// The type that it has.
        found: &'static str,
    },
    /// An array lacks fields.
    Short {
        /// What the array is.
        field: &'static str,
        /// How many fields it must have.
        least: usize,
        /// How many it has.
        found: usize,
    },
    /// A byte that begins nothing in MessagePack.
    Opcode,
    /// A text is not UTF-8.
    NotUtf8 {
        /// The field.
        field: &'static str,
    },
    /// A number is too large for its column.
    Number {
        /// The field.
        field: &'static str,
        /// The bits of the column.
        bits: u32,
    },
    /// It was written by a build that speaks another version.
    WireVersion {
        /// The version.
        found: i64,
    },
    /// It has more bytes than a column's offsets can count.
    TooLong,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "it ends too early"),
            Self::Trailing => write!(f, "something follows its end"),
            Self::Type { field, wanted, found } => write!(f, "{field} must be {wanted}, got {found}"),
            Self::Short { field, least, found } => write!(f, "{field} must have at least {least} fields, got {found}"),
            Self::Opcode => write!(f, "no MessagePack value begins so"),
            Self::NotUtf8 { field } => write!(f, "{field} must be UTF-8"),
            Self::Number { field, bits } => write!(f, "{field} must fit a signed integer of {bits} bits"),
            Self::WireVersion { found } => write!(f, "it has wire version {found}, this build speaks {WIRE_VERSION}"),
            Self::TooLong => write!(f, "at most {} bytes are allowed", i32::MAX),
        }
    }
}

/// The rows of an encoded reply.
///
/// # Errors
/// `Reply`, with the byte at which it was found out: the reply is damaged or of another wire version.
pub fn decode(body: &[u8]) -> Result<Rows, Error> {
    let mut reader = Reader::new(body);
    let read = if body.len() > i32::MAX as usize { Err(Problem::TooLong) } else { read_reply(&mut reader) };
    read.map_err(|problem| Error::Reply { at: reader.at(), problem })
}

fn read_reply(reader: &mut Reader<'_>) -> Result<Rows, Problem> {
    let fields = reader.fields("reply", 2)?;
    let version = reader.int("wire_version")?;
    if version != WIRE_VERSION {
        return Err(Problem::WireVersion { found: version });
    }
    let mut decoder = Decoder::default();
    for _ in 0..reader.array("partitions")? {
        decoder.entry(reader)?;
    }
    if fields > 2 {
        reader.text("history")?;
        reader.skip(fields - 3)?;
    }
    reader.end()?;
    let mut rows = decoder.rows;
    rows.metadata.finish(rows.versions.len());
    Ok(rows)
}

/// What is kept from row to row.
#[derive(Default)]
struct Decoder<'a> {
    rows: Rows,
    /// The metadata of one row, in order.
    pairs: Vec<(&'a str, &'a str)>,
    /// Where in `pairs` a key is. An ordered map withstands keys that were chosen to collide.
    keys: BTreeMap<&'a str, usize>,
}

impl<'a> Decoder<'a> {
    fn entry(&mut self, reader: &mut Reader<'a>) -> Result<(), Problem> {
        let fields = reader.fields("entry", 4)?;
        let partition = reader.int("partition")?;
        let partition = i32::try_from(partition).map_err(|_| Problem::Number { field: "partition", bits: 32 })?;
        let (revision, whole) = (reader.int("revision")?, reader.bool("whole")?);
        let rows = reader.array("rows")?;
        self.reserve(rows.min(reader.left() / LEAST_ROW_BYTES));
        for _ in 0..rows {
            self.row(reader)?;
        }
        reader.skip(fields - 4)?;
        self.rows.partitions.resize(self.rows.versions.len(), partition);
        self.rows.entries.push(Entry { partition, revision, whole, rows });
        Ok(())
    }

    /// Makes room for that many rows. Their texts are left out: they may be as long as all that is to come.
    fn reserve(&mut self, rows: usize) {
        self.rows.row_ids.reserve(rows);
        self.rows.values.reserve(rows);
        self.rows.versions.reserve(rows);
        self.rows.partitions.reserve(rows);
    }

    #[inline]
    fn row(&mut self, reader: &mut Reader<'a>) -> Result<(), Problem> {
        let fields = reader.fields("row", 3)?;
        let row_id = reader.text("row_id")?;
        let value = reader.text("value")?;
        let version = reader.int("version")?;
        let index = self.rows.versions.len();
        let deleted = fields > 3 && reader.bool("deleted")?;
        if fields > 4 {
            self.metadata(reader, index)?;
            reader.skip(fields - 5)?;
        }
        self.rows.row_ids.push(row_id);
        self.rows.values.push(if deleted { "" } else { value });
        self.rows.versions.push(version);
        if deleted {
            self.rows.deleted.set(index);
        }
        Ok(())
    }

    #[inline]
    fn metadata(&mut self, reader: &mut Reader<'a>, row: usize) -> Result<(), Problem> {
        let Found::Map(count) = reader.map_or_nil("metadata")? else { return Ok(()) };
        self.pairs.clear();
        self.keys.clear();
        for _ in 0..count {
            let pair = (reader.text("metadata key")?, reader.text("metadata value")?);
            match self.keys.entry(pair.0) {
                // As in a dict: the last value counts, at the place of the first.
                Place::Occupied(place) => self.pairs[*place.get()].1 = pair.1,
                Place::Vacant(place) => {
                    place.insert(self.pairs.len());
                    self.pairs.push(pair);
                }
            }
        }
        self.rows.metadata.set(row, &self.pairs);
        Ok(())
    }
}
