//! What can be wrong with an argument, as data.

use std::fmt;

use crate::reply::Problem;

/// A stable name for each kind of [`Error`], fit for a log field or another language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// A number is outside its limits.
    OutOfRange,
    /// A list that must have an entry has none.
    Empty,
    /// The same entry is listed twice.
    Duplicate,
    /// Two lists that must be equally long are not, a buffer is shorter than its own offsets say, or a message is damaged.
    Malformed,
}

impl ErrorCode {
    /// Every code, so that a caller's table can be checked for completeness.
    pub const ALL: [Self; 4] = [Self::OutOfRange, Self::Empty, Self::Duplicate, Self::Malformed];

    /// The code as text. It never changes once released.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OutOfRange => "out_of_range",
            Self::Empty => "empty",
            Self::Duplicate => "duplicate",
            Self::Malformed => "malformed",
        }
    }
}

/// Why an argument was refused. The text gives the field, the value and the limit.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// An integer outside `min..=max`.
    OutOfRange {
        /// Name of the argument.
        field: &'static str,
        /// What was given.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// A load factor that is not a number in `1.0..=max`.
    LoadFactor {
        /// What was given.
        value: f64,
        /// Largest value allowed.
        max: f64,
    },
    /// A list without entries.
    Empty {
        /// Name of the argument.
        field: &'static str,
    },
    /// An entry that occurs twice.
    Duplicate {
        /// Name of the argument.
        field: &'static str,
        /// The entry.
        value: String,
    },
    /// A list that must be as long as another one and is not.
    Length {
        /// Name of the argument.
        field: &'static str,
        /// How many entries were given.
        value: usize,
        /// How many there must be.
        expected: usize,
    },
    /// A buffer that contradicts itself.
    Malformed {
        /// Name of the argument.
        field: &'static str,
        /// Index of the first bad entry.
        index: usize,
    },
    /// A fetch reply that can't be read.
    Reply {
        /// How many bytes had been read.
        at: usize,
        /// What is wrong there.
        problem: Problem,
    },
}

impl Error {
    /// The kind of this error.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::OutOfRange { .. } | Self::LoadFactor { .. } => ErrorCode::OutOfRange,
            Self::Empty { .. } => ErrorCode::Empty,
            Self::Duplicate { .. } => ErrorCode::Duplicate,
            Self::Length { .. } | Self::Malformed { .. } | Self::Reply { .. } => ErrorCode::Malformed,
        }
    }

    /// `value` when it is in `min..=max`, else the error that says so.
    pub(crate) fn check_range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), Self> {
        if (min..=max).contains(&value) { Ok(()) } else { Err(Self::OutOfRange { field, value, min, max }) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { field, value, min, max } => {
                write!(f, "{field} must be between {min} and {max}, got {value}")
            }
            Self::LoadFactor { value, max } => {
                write!(f, "load_factor must be between 1.0 and {max:?}, got {value}")
            }
            Self::Empty { field } => write!(f, "{field} must have at least one entry, got none"),
            Self::Duplicate { field, value } => write!(f, "{field} must not repeat an entry, got {value} twice"),
            Self::Length { field, value, expected } => {
                write!(f, "{field} must have as many entries as there are partitions, {expected}, got {value}")
            }
            Self::Malformed { field, index } => {
                write!(f, "{field} is malformed: entry {index} points outside the data")
            }
            Self::Reply { at, problem } => write!(f, "reply can't be read at byte {at}: {problem}"),
        }
    }
}

impl std::error::Error for Error {}
