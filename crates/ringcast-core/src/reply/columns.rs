//! Columns in the layouts of the Arrow columnar format specification, as they grow.

/// Texts one behind the other: text `i` is `data[offsets[i]..offsets[i + 1]]`, UTF-8.
#[derive(Debug)]
pub struct Texts {
    offsets: Vec<i32>,
    data: Vec<u8>,
}

impl Default for Texts {
    fn default() -> Self {
        Self { offsets: vec![0], data: Vec::new() }
    }
}

impl Texts {
    /// One more than there are texts.
    #[must_use]
    pub fn offsets(&self) -> &[i32] {
        &self.offsets
    }

    /// The bytes of all texts.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    pub(super) fn reserve(&mut self, texts: usize) {
        self.offsets.reserve(texts);
    }

    #[inline]
    pub(super) fn push(&mut self, text: &str) {
        self.data.extend_from_slice(text.as_bytes());
        self.offsets.push(offset(self.data.len()));
    }
}

/// A bit a row, least significant first. Rows behind the last that is set have none.
#[derive(Debug, Default)]
pub struct Bits {
    bytes: Vec<u8>,
    set: usize,
}

impl Bits {
    /// How many are set.
    #[must_use]
    pub const fn set_count(&self) -> usize {
        self.set
    }

    /// The bits of so many rows, or their complement.
    #[must_use]
    pub fn bytes(&self, rows: usize, complement: bool) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(rows.div_ceil(8), 0);
        if complement {
            for byte in &mut bytes {
                *byte = !*byte;
            }
        }
        bytes
    }

    /// Sets a row's bit; each row's at most once, in order.
    pub(super) fn set(&mut self, row: usize) {
        self.bytes.resize(row / 8 + 1, 0);
        self.bytes[row / 8] |= 1 << (row % 8);
        self.set += 1;
    }
}

/// A map of texts to texts a row, or none. The pairs of row `i` are `offsets[i]..offsets[i + 1]` of `keys` and `values`.
#[derive(Debug, Default)]
pub struct Maps {
    /// Which rows have one.
    pub present: Bits,
    /// All keys.
    pub keys: Texts,
    /// All values.
    pub values: Texts,
    offsets: Vec<i32>,
}

impl Maps {
    /// One more than there are rows.
    #[must_use]
    pub fn offsets(&self) -> &[i32] {
        &self.offsets
    }

    /// Gives a row its pairs; rows come in order, and those without pairs may be left out.
    pub(super) fn set(&mut self, row: usize, pairs: &[(&str, &str)]) {
        if pairs.is_empty() {
            return;
        }
        self.finish(row);
        for (key, value) in pairs {
            self.keys.push(key);
            self.values.push(value);
        }
        self.present.set(row);
    }

    /// There are so many rows, those behind the last that was set being without.
    pub(super) fn finish(&mut self, rows: usize) {
        let end = offset(self.keys.offsets().len() - 1);
        self.offsets.resize(rows + 1, end);
    }
}

/// No column has more bytes than the message that it comes from, whose length fits.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
const fn offset(length: usize) -> i32 {
    length as i32
}
