//! The C structures of the Arrow C data and stream interfaces. All `unsafe` rules of their use are stated there: the
//! consumer may read until it calls `release`, exactly once, and a structure without `release` is spent.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

#[repr(C)]
pub struct ArrowSchema {
    pub format: *const c_char,
    pub name: *const c_char,
    pub metadata: *const c_char,
    pub flags: i64,
    pub n_children: i64,
    pub children: *mut *mut ArrowSchema,
    pub dictionary: *mut ArrowSchema,
    pub release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    pub private_data: *mut c_void,
}

#[repr(C)]
pub struct ArrowArray {
    pub length: i64,
    pub null_count: i64,
    pub offset: i64,
    pub n_buffers: i64,
    pub n_children: i64,
    pub buffers: *mut *const c_void,
    pub children: *mut *mut ArrowArray,
    pub dictionary: *mut ArrowArray,
    pub release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    pub private_data: *mut c_void,
}

#[repr(C)]
pub struct ArrowArrayStream {
    pub get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    pub get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    pub get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    pub release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    pub private_data: *mut c_void,
}

impl ArrowSchema {
    /// A structure for a producer to fill.
    pub const fn empty() -> Self {
        Self {
            format: ptr::null(),
            name: ptr::null(),
            metadata: ptr::null(),
            flags: 0,
            n_children: 0,
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: None,
            private_data: ptr::null_mut(),
        }
    }

    /// The format string, e.g. `u` for UTF-8 with 32-bit offsets; a dictionary counts as no format that we read.
    pub fn format(&self) -> &str {
        if self.format.is_null() || self.release.is_none() {
            return "nothing";
        }
        if !self.dictionary.is_null() {
            return "dictionary";
        }
        // SAFETY: an unreleased schema's format is a NUL-terminated string that lives as long as the schema.
        unsafe { CStr::from_ptr(self.format) }.to_str().unwrap_or("not text")
    }
}

impl ArrowArray {
    /// A structure for a producer to fill.
    pub const fn empty() -> Self {
        Self {
            length: 0,
            null_count: 0,
            offset: 0,
            n_buffers: 0,
            n_children: 0,
            buffers: ptr::null_mut(),
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: None,
            private_data: ptr::null_mut(),
        }
    }
}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: we own the structure and it was not released yet.
            unsafe { release(self) };
        }
    }
}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: we own the structure and it was not released yet.
            unsafe { release(self) };
        }
    }
}

impl Drop for ArrowArrayStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: we own the structure and it was not released yet.
            unsafe { release(self) };
        }
    }
}

/// Moves a structure out of the place that a capsule points to, so that the capsule's destructor finds it spent.
///
/// # Safety
/// `place` must point to a valid structure of type `T`, which nobody else reads at the same time.
pub unsafe fn take<T>(place: ptr::NonNull<T>, spent: T) -> T {
    // SAFETY: by the caller's promise. What was there is returned, so nothing is dropped twice.
    unsafe { ptr::replace(place.as_ptr(), spent) }
}
