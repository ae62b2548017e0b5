//! Partitions of a whole column of row ids, read where they lie in Arrow's columnar layouts.
//!
//! Layouts as in the Arrow columnar format specification: variable-size binary with 32- or 64-bit offsets, and
//! views of 16 bytes that hold short values themselves. What a column claims about itself is checked row by row.

use crate::Error;
use crate::hash::Partitioner;

/// A row's view: its length, and then either up to 12 bytes or a prefix, a buffer index and an offset.
pub type View = [u8; 16];

/// Longest value that a [`View`] holds itself.
const INLINE: usize = 12;

/// An offset of Arrow's variable-size layouts.
pub trait Offset: Copy {
    /// The offset as an index. A negative one becomes too large for any buffer.
    fn index(self) -> usize;
}

impl Offset for i32 {
    #[inline]
    fn index(self) -> usize {
        usize::try_from(self).unwrap_or(usize::MAX)
    }
}

impl Offset for i64 {
    #[inline]
    fn index(self) -> usize {
        usize::try_from(self).unwrap_or(usize::MAX)
    }
}

/// Writes the partition of row `i`, which is `data[offsets[i]..offsets[i + 1]]`, to `out[i]`.
///
/// # Errors
/// `Malformed` with the index of the row when `offsets` does not have one entry more than `out`, falls, or points
/// outside `data`.
pub fn partition_offsets<O: Offset>(
    partitioner: &Partitioner,
    offsets: &[O],
    data: &[u8],
    out: &mut [u32],
) -> Result<(), Error> {
    if offsets.len() != out.len() + 1 {
        return Err(malformed(out.len().min(offsets.len())));
    }
    for (index, (out, bounds)) in out.iter_mut().zip(offsets.windows(2)).enumerate() {
        let row_id = data.get(bounds[0].index()..bounds[1].index()).ok_or_else(|| malformed(index))?;
        *out = partitioner.partition(row_id);
    }
    Ok(())
}

/// Writes the partition of row `i`, which `views[i]` holds or finds in `buffers`, to `out[i]`.
///
/// # Errors
/// `Malformed` with the index of the row when `views` and `out` are not equally long, or a view points outside
/// `buffers`.
pub fn partition_views(
    partitioner: &Partitioner,
    views: &[View],
    buffers: &[&[u8]],
    out: &mut [u32],
) -> Result<(), Error> {
    if views.len() != out.len() {
        return Err(malformed(out.len().min(views.len())));
    }
    for (index, (out, view)) in out.iter_mut().zip(views).enumerate() {
        let row_id = resolve(view, buffers).ok_or_else(|| malformed(index))?;
        *out = partitioner.partition(row_id);
    }
    Ok(())
}

#[inline]
fn resolve<'a>(view: &'a View, buffers: &[&'a [u8]]) -> Option<&'a [u8]> {
    let (fields, _) = view.as_chunks::<4>();
    let field = |at: usize| usize::try_from(i32::from_le_bytes(fields[at])).ok();
    let length = field(0)?;
    if length <= INLINE {
        return view.get(4..4 + length);
    }
    let start = field(3)?;
    buffers.get(field(2)?)?.get(start..start.checked_add(length)?)
}

const fn malformed(index: usize) -> Error {
    Error::Malformed { field: "row_ids", index }
}
