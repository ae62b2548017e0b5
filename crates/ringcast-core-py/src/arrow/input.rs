//! A column of row ids from any object with `__arrow_c_array__` or `__arrow_c_stream__`.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::slice;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use ringcast_core::Error;
use ringcast_core::column::{View, partition_offsets, partition_views};
use ringcast_core::hash::Partitioner;

use super::abi::{ArrowArray, ArrowArrayStream, ArrowSchema, take};

/// The layouts that a column of row ids may have.
#[derive(Clone, Copy)]
enum Layout {
    Offsets32,
    Offsets64,
    Views,
}

/// A column in one or more chunks, owned until dropped.
pub struct Column {
    layout: Layout,
    chunks: Vec<ArrowArray>,
}

// SAFETY: the Arrow C data interface lets a consumer read and release an array from any thread.
unsafe impl Send for Column {}
// SAFETY: as above; nothing is written through a shared reference.
unsafe impl Sync for Column {}

impl Column {
    /// Takes over the column that `source` exports. No data is copied.
    pub fn import(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        if source.hasattr("__arrow_c_array__")? {
            Self::from_array(source)
        } else if source.hasattr("__arrow_c_stream__")? {
            Self::from_stream(source)
        } else {
            let kind = source.get_type().name()?;
            Err(PyTypeError::new_err(format!("row_ids must be an Arrow array or chunked array, got {kind}")))
        }
    }

    /// Rows in all chunks.
    pub fn rows(&self) -> PyResult<usize> {
        let mut rows = 0_usize;
        for chunk in &self.chunks {
            let length = usize::try_from(chunk.length).map_err(|_| broken("a negative length"))?;
            rows = rows.checked_add(length).ok_or_else(|| broken("too many rows"))?;
        }
        Ok(rows)
    }

    /// The partition of every row, and the first null if there is one instead.
    pub fn partition(&self, partitioner: &Partitioner, out: &mut [u32]) -> Result<(), Refusal> {
        let mut rest = out;
        let mut before = 0;
        for chunk in &self.chunks {
            let chunk = Chunk::new(chunk)?;
            let (here, behind) = rest.split_at_mut(chunk.length);
            rest = behind;
            if let Some(index) = chunk.first_null() {
                return Err(Refusal::Null { index: before + index });
            }
            if chunk.length > 0 {
                chunk.partition(self.layout, partitioner, here).map_err(|refusal| refusal.behind(before))?;
            }
            before += chunk.length;
        }
        Ok(())
    }

    fn from_array(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        let pair = source.call_method0("__arrow_c_array__")?;
        let pair = pair.cast::<PyTuple>()?;
        let schema: NonNull<ArrowSchema> = place(&pair.get_item(0)?, c"arrow_schema")?;
        let array: NonNull<ArrowArray> = place(&pair.get_item(1)?, c"arrow_array")?;
        // SAFETY: capsules of these names hold these structures, and we hold the only reference to the capsules.
        let (schema, array) = unsafe { (take(schema, ArrowSchema::empty()), take(array, ArrowArray::empty())) };
        if array.release.is_none() {
            return Err(broken("an array that was released already"));
        }
        Ok(Self { layout: Layout::of(&schema)?, chunks: vec![array] })
    }

    fn from_stream(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        let capsule = source.call_method0("__arrow_c_stream__")?;
        let stream: NonNull<ArrowArrayStream> = place(&capsule, c"arrow_array_stream")?;
        let spent = ArrowArrayStream {
            get_schema: None,
            get_next: None,
            get_last_error: None,
            release: None,
            private_data: ptr::null_mut(),
        };
        // SAFETY: a capsule of this name holds this structure, and we hold the only reference to the capsule.
        let mut stream = unsafe { take(stream, spent) };
        let (Some(get_schema), Some(get_next), Some(_)) = (stream.get_schema, stream.get_next, stream.release) else {
            return Err(broken("a stream that was released already"));
        };
        let mut schema = ArrowSchema::empty();
        // SAFETY: the stream is not released, and the structure to fill is ours.
        let status = unsafe { get_schema(&raw mut stream, &raw mut schema) };
        check(&mut stream, status)?;
        let layout = Layout::of(&schema)?;
        let mut chunks = Vec::new();
        loop {
            let mut array = ArrowArray::empty();
            // SAFETY: as for the schema.
            let status = unsafe { get_next(&raw mut stream, &raw mut array) };
            check(&mut stream, status)?;
            if array.release.is_none() {
                return Ok(Self { layout, chunks });
            }
            chunks.push(array);
        }
    }
}

impl Layout {
    fn of(schema: &ArrowSchema) -> PyResult<Self> {
        match schema.format() {
            "u" | "z" => Ok(Self::Offsets32),
            "U" | "Z" => Ok(Self::Offsets64),
            "vu" | "vz" => Ok(Self::Views),
            other => Err(PyTypeError::new_err(format!(
                "row_ids must be an Arrow column of strings or binary (format u, U, vu, z, Z or vz), got format {other:?}"
            ))),
        }
    }

    const fn min_buffers(self) -> usize {
        match self {
            Self::Offsets32 | Self::Offsets64 => 3,
            Self::Views => 2,
        }
    }
}

/// Why a column was refused.
pub enum Refusal {
    /// A row is null.
    Null {
        /// The row.
        index: usize,
    },
    /// The producer broke the interface's rules.
    Broken(&'static str),
    /// A row points outside the data.
    Core(Error),
}

impl Refusal {
    /// The same with an index that counts `rows` earlier rows too.
    fn behind(self, rows: usize) -> Self {
        match self {
            Self::Core(Error::Malformed { field, index }) => {
                Self::Core(Error::Malformed { field, index: index + rows })
            }
            other => other,
        }
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Null { index } => PyValueError::new_err(format!("row_ids[{index}] must be a row id, got null")),
            Refusal::Broken(what) => broken(what),
            Refusal::Core(error) => crate::border::to_exception(&error),
        }
    }
}

/// One array of the column, with its header checked.
struct Chunk<'a> {
    array: &'a ArrowArray,
    buffers: &'a [*const c_void],
    offset: usize,
    length: usize,
}

impl<'a> Chunk<'a> {
    fn new(array: &'a ArrowArray) -> Result<Self, Refusal> {
        let size = |value: i64| usize::try_from(value).map_err(|_| Refusal::Broken("a negative length"));
        let (offset, length, count) = (size(array.offset)?, size(array.length)?, size(array.n_buffers)?);
        if offset.checked_add(length).and_then(|end| end.checked_add(1)).is_none() {
            return Err(Refusal::Broken("too many rows"));
        }
        let buffers = if array.buffers.is_null() {
            &[]
        } else {
            // SAFETY: an unreleased array has `n_buffers` buffer pointers.
            unsafe { slice::from_raw_parts(array.buffers.cast_const(), count) }
        };
        Ok(Self { array, buffers, offset, length })
    }

    /// The first row whose validity bit is not set.
    fn first_null(&self) -> Option<usize> {
        let validity = self.buffers.first().copied().filter(|bits| !bits.is_null() && self.array.null_count != 0)?;
        // SAFETY: a validity buffer has a bit for each row up to the end.
        let bits = unsafe { slice::from_raw_parts(validity.cast::<u8>(), (self.offset + self.length).div_ceil(8)) };
        (0..self.length).find(|row| bits[(self.offset + row) / 8] >> ((self.offset + row) % 8) & 1 == 0)
    }

    fn partition(&self, layout: Layout, partitioner: &Partitioner, out: &mut [u32]) -> Result<(), Refusal> {
        if self.buffers.len() < layout.min_buffers() {
            return Err(Refusal::Broken("too few buffers"));
        }
        let found = match layout {
            Layout::Offsets32 => {
                let offsets = self.read::<i32>(1, self.offset, self.length + 1)?;
                partition_offsets(partitioner, offsets, self.data(offsets.last().copied().map(i64::from))?, out)
            }
            Layout::Offsets64 => {
                let offsets = self.read::<i64>(1, self.offset, self.length + 1)?;
                partition_offsets(partitioner, offsets, self.data(offsets.last().copied())?, out)
            }
            Layout::Views => {
                let views = self.read::<View>(1, self.offset, self.length)?;
                partition_views(partitioner, views, &self.view_buffers()?, out)
            }
        };
        found.map_err(Refusal::Core)
    }

    /// The data buffer, which reaches as far as the last offset says.
    fn data(&self, end: Option<i64>) -> Result<&'a [u8], Refusal> {
        let end = usize::try_from(end.unwrap_or(0)).map_err(|_| Refusal::Broken("a negative offset"))?;
        self.read::<u8>(2, 0, end)
    }

    /// The data buffers that views point into. Their lengths are in a last buffer of 64-bit integers.
    fn view_buffers(&self) -> Result<Vec<&'a [u8]>, Refusal> {
        let last = self.buffers.len() - 1;
        if last < 2 {
            return Ok(Vec::new());
        }
        let lengths = self.read::<i64>(last, 0, last - 2)?;
        let buffer = |(at, &length): (usize, &i64)| {
            let length = usize::try_from(length).map_err(|_| Refusal::Broken("a negative buffer length"))?;
            self.read::<u8>(at + 2, 0, length)
        };
        lengths.iter().enumerate().map(buffer).collect()
    }

    /// `count` values of buffer `at`, from the value `start` on.
    fn read<T: Copy>(&self, at: usize, start: usize, count: usize) -> Result<&'a [T], Refusal> {
        let first = self.buffers[at].cast::<T>();
        if count == 0 {
            return Ok(&[]);
        }
        if first.is_null() {
            return Err(Refusal::Broken("a missing buffer"));
        }
        if !first.is_aligned() {
            return Err(Refusal::Broken("a misaligned buffer"));
        }
        // SAFETY: the buffer is present and aligned, every bit pattern is a valid T (T is an integer or an array of
        // bytes), and by the interface's rules it is as long as the array's offset, length and offsets say.
        Ok(unsafe { slice::from_raw_parts(first.add(start), count) })
    }
}

/// Where the structure lies that a capsule of that name holds.
fn place<T>(capsule: &Bound<'_, PyAny>, name: &CStr) -> PyResult<NonNull<T>> {
    Ok(capsule.cast::<PyCapsule>()?.pointer_checked(Some(name))?.cast())
}

/// Turns a stream's status into an exception with the stream's own words.
fn check(stream: &mut ArrowArrayStream, status: c_int) -> PyResult<()> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the stream is not released; the text lives until the next call on it.
    let text = stream.get_last_error.map(|last_error| unsafe { last_error(stream) }).filter(|text| !text.is_null());
    // SAFETY: the text is NUL-terminated by the interface's rules.
    let reason = text.map_or("no reason given".into(), |text| unsafe { CStr::from_ptr(text) }.to_string_lossy());
    Err(PyValueError::new_err(format!("row_ids can't be read from their Arrow stream (status {status}): {reason}")))
}

fn broken(what: &str) -> PyErr {
    PyValueError::new_err(format!("row_ids break the rules of the Arrow C data interface: {what}"))
}
