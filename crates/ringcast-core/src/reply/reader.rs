//! MessagePack values, one after another, from bytes that may be anything.

use super::Problem;

/// What stands where a map may be.
pub enum Found {
    /// `nil`.
    Nil,
    /// A map of so many pairs.
    Map(usize),
}

/// A place in a message. After an error it is near what was wrong.
pub struct Reader<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub const fn new(body: &'a [u8]) -> Self {
        Self { body, at: 0 }
    }

    /// How many bytes were read.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// How many bytes there are still.
    pub const fn left(&self) -> usize {
        self.body.len() - self.at
    }

    /// Nothing may follow.
    pub const fn end(&self) -> Result<(), Problem> {
        if self.left() == 0 { Ok(()) } else { Err(Problem::Trailing) }
    }

    /// An integer of any width.
    #[inline]
    #[allow(clippy::cast_possible_wrap)] // that is what a negative fixint is
    pub fn int(&mut self, field: &'static str) -> Result<i64, Problem> {
        let op = self.byte()?;
        match op {
            0x00..=0x7f | 0xe0..=0xff => Ok(i64::from(op as i8)),
            0xcc => Ok(i64::from(self.byte()?)),
            0xcd => Ok(i64::from(u16::from_be_bytes(self.bytes()?))),
            0xce => Ok(i64::from(u32::from_be_bytes(self.bytes()?))),
            0xcf => i64::try_from(u64::from_be_bytes(self.bytes()?)).map_err(|_| Problem::Number { field, bits: 64 }),
            0xd0 => Ok(i64::from(i8::from_be_bytes(self.bytes()?))),
            0xd1 => Ok(i64::from(i16::from_be_bytes(self.bytes()?))),
            0xd2 => Ok(i64::from(i32::from_be_bytes(self.bytes()?))),
            0xd3 => Ok(i64::from_be_bytes(self.bytes()?)),
            _ => Err(other(field, "int", op)),
        }
    }

    #[inline]
    pub fn bool(&mut self, field: &'static str) -> Result<bool, Problem> {
        match self.byte()? {
            0xc2 => Ok(false),
            0xc3 => Ok(true),
            op => Err(other(field, "bool", op)),
        }
    }

    #[inline]
    pub fn text(&mut self, field: &'static str) -> Result<&'a str, Problem> {
        let op = self.byte()?;
        let length = match op {
            0xa0..=0xbf => usize::from(op & 0x1f),
            0xd9 => self.size1()?,
            0xda => self.size2()?,
            0xdb => self.size4()?,
            _ => return Err(other(field, "str", op)),
        };
        std::str::from_utf8(self.take(length)?).map_err(|_| Problem::NotUtf8 { field })
    }

    /// How many items an array has; they follow. Never more than there are bytes left.
    #[inline]
    pub fn array(&mut self, field: &'static str) -> Result<usize, Problem> {
        let op = self.byte()?;
        let count = match op {
            0x90..=0x9f => usize::from(op & 0x0f),
            0xdc => self.size2()?,
            0xdd => self.size4()?,
            _ => return Err(other(field, "array", op)),
        };
        self.fitting(count, 1)
    }

    /// How many fields the array of a structure has; of those behind the `least` some may be missing or unknown.
    #[inline]
    pub fn fields(&mut self, field: &'static str, least: usize) -> Result<usize, Problem> {
        let found = self.array(field)?;
        if found < least { Err(Problem::Short { field, least, found }) } else { Ok(found) }
    }

    #[inline]
    pub fn map_or_nil(&mut self, field: &'static str) -> Result<Found, Problem> {
        let op = self.byte()?;
        let count = match op {
            0xc0 => return Ok(Found::Nil),
            0x80..=0x8f => usize::from(op & 0x0f),
            0xde => self.size2()?,
            0xdf => self.size4()?,
            _ => return Err(other(field, "map or nil", op)),
        };
        self.fitting(count, 2).map(Found::Map)
    }

    /// Passes over so many values of any type, however they are nested.
    pub fn skip(&mut self, values: usize) -> Result<(), Problem> {
        let mut pending = values;
        while pending > 0 {
            pending -= 1;
            let inside = self.skip_one()?;
            pending = pending.saturating_add(inside);
            // Each takes a byte at least, so a false count is found out at once.
            self.fitting(pending, 1)?;
        }
        Ok(())
    }

    /// Passes over one value; how many values it is the head of.
    fn skip_one(&mut self) -> Result<usize, Problem> {
        let op = self.byte()?;
        let length = match op {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 0,
            0x80..=0x8f => return Ok(2 * usize::from(op & 0x0f)),
            0x90..=0x9f => return Ok(usize::from(op & 0x0f)),
            0xdc => return self.size2(),
            0xdd => return self.size4(),
            0xde => return Ok(2 * self.size2()?),
            0xdf => return Ok(self.size4()?.saturating_mul(2)),
            0xa0..=0xbf => usize::from(op & 0x1f),
            0xc4 | 0xd9 => self.size1()?,
            0xc5 | 0xda => self.size2()?,
            0xc6 | 0xdb => self.size4()?,
            0xc7 => self.size1()? + 1,
            0xc8 => self.size2()? + 1,
            0xc9 => self.size4()?.saturating_add(1),
            0xcc | 0xd0 => 1,
            0xcd | 0xd1 => 2,
            0xca | 0xce | 0xd2 => 4,
            0xcb | 0xcf | 0xd3 => 8,
            0xd4..=0xd8 => (1 << (op - 0xd4)) + 1,
            0xc1 => return Err(Problem::Opcode),
        };
        self.take(length).map(|_| 0)
    }

    /// A count that the bytes left can hold, at `least` bytes each.
    #[inline]
    fn fitting(&self, count: usize, least: usize) -> Result<usize, Problem> {
        if count > self.left() / least { Err(Problem::Truncated) } else { Ok(count) }
    }

    fn size1(&mut self) -> Result<usize, Problem> {
        Ok(usize::from(self.byte()?))
    }

    fn size2(&mut self) -> Result<usize, Problem> {
        Ok(usize::from(u16::from_be_bytes(self.bytes()?)))
    }

    fn size4(&mut self) -> Result<usize, Problem> {
        // Where a usize is narrower the bytes can't be there either.
        Ok(usize::try_from(u32::from_be_bytes(self.bytes()?)).unwrap_or(usize::MAX))
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Problem> {
        let byte = *self.body.get(self.at).ok_or(Problem::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let bytes = *self.body[self.at..].first_chunk().ok_or(Problem::Truncated)?;
        self.at += N;
        Ok(bytes)
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<&'a [u8], Problem> {
        let taken = self.body[self.at..].get(..length).ok_or(Problem::Truncated)?;
        self.at += length;
        Ok(taken)
    }
}

#[cold]
const fn other(field: &'static str, wanted: &'static str, op: u8) -> Problem {
    let found = match op {
        0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => "int",
        0x80..=0x8f | 0xde | 0xdf => "map",
        0x90..=0x9f | 0xdc | 0xdd => "array",
        0xa0..=0xbf | 0xd9..=0xdb => "str",
        0xc0 => "nil",
        0xc2 | 0xc3 => "bool",
        0xc4..=0xc6 => "bin",
        0xca | 0xcb => "float",
        0xc7..=0xc9 | 0xd4..=0xd8 => "ext",
        0xc1 => return Problem::Opcode,
    };
    Problem::Type { field, wanted, found }
}
