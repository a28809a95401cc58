//! How a result becomes a line of text: by a closure, as fields between tabs, or as JSON.
//!
//! Lines are appended to the block that goes to disk, so formatting copies nothing and allocates nothing. The sink adds
//! the newline; a closure that writes one itself makes two lines.

use crate::items::Items;
use std::fmt::{self, Display, Write as _};
use std::io;

/// Where a line is written to; it can only be added to.
///
/// `write!(line, "{word}\t{n}")` works without importing anything.
#[derive(Debug, Default)]
pub struct Line(pub(super) Vec<u8>);

impl Line {
    /// Adds formatted text; called by `write!`.
    ///
    /// # Errors
    /// When a value's own `Display` fails.
    #[inline]
    pub fn write_fmt(&mut self, arguments: fmt::Arguments<'_>) -> io::Result<()> {
        io::Write::write_fmt(&mut self.0, arguments)
    }

    /// Adds text.
    #[inline]
    pub fn push_str(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Adds bytes.
    #[inline]
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds an integer in decimal digits, several times as fast as `write!`.
    #[inline]
    pub fn push_integer(&mut self, number: impl itoa::Integer) {
        self.push_str(itoa::Buffer::new().format(number));
    }

    /// Adds a line of `item`, or nothing.
    #[inline]
    pub(super) fn add<I: Items>(&mut self, item: I::Of<'_>, format: &mut impl Format<I>) -> io::Result<()> {
        let start = self.0.len();
        let result = format.format(item, self);
        match result {
            Ok(()) => self.0.push(b'\n'),
            Err(_) => self.0.truncate(start),
        }
        result
    }
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push_bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a line of an item.
pub trait Format<I: Items>: Clone + Send + Sync + 'static {
    /// Writes `item` to `line`, without the newline.
    ///
    /// # Errors
    /// Stops the job, as an error of the program's own code.
    fn format(&mut self, item: I::Of<'_>, line: &mut Line) -> io::Result<()>;
}

/// By a closure.
#[derive(Clone, Copy, Debug)]
pub struct ByClosure<F>(pub(super) F);

impl<I: Items, F> Format<I> for ByClosure<F>
where
    F: for<'a> FnMut(I::Of<'a>, &mut Line) -> io::Result<()> + Clone + Send + Sync + 'static,
{
    #[inline]
    fn format(&mut self, item: I::Of<'_>, line: &mut Line) -> io::Result<()> {
        (self.0)(item, line)
    }
}

/// As fields between tabs. In a field, a tab, a newline, a carriage return and a backslash stand as `\t`, `\n`, `\r` and
/// `\\` (the text format of PostgreSQL's COPY), so a line is one record and a tab one border, whatever the text.
#[derive(Clone, Copy, Debug)]
pub struct Tsv;

impl<I: Items> Format<I> for Tsv
where
    for<'a> I::Of<'a>: Fields,
{
    #[inline]
    fn format(&mut self, item: I::Of<'_>, line: &mut Line) -> io::Result<()> {
        item.write_fields(line)
    }
}

/// As one JSON value a line, by serde.
#[derive(Clone, Copy, Debug)]
pub struct JsonLines;

impl<I: Items> Format<I> for JsonLines
where
    for<'a> I::Of<'a>: serde::Serialize,
{
    #[inline]
    fn format(&mut self, item: I::Of<'_>, line: &mut Line) -> io::Result<()> {
        Ok(serde_json::to_writer(&mut line.0, &item)?)
    }
}

/// What [`Tsv`] can write: tuples of up to eight values that can be displayed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no fields to put between tabs",
    note = "use a tuple of up to eight values that implement `Display`, or `lines` with a closure"
)]
pub trait Fields {
    /// Writes the fields with a tab between two.
    ///
    /// # Errors
    /// When a value's own `Display` fails.
    fn write_fields(&self, line: &mut Line) -> io::Result<()>;
}

macro_rules! impl_fields {
    ($($first:ident $($rest:ident)*;)*) => {$(
        impl<$first: Display, $($rest: Display),*> Fields for ($first, $($rest,)*) {
            #[inline]
            fn write_fields(&self, line: &mut Line) -> io::Result<()> {
                #[expect(non_snake_case, reason = "a variable of each type's name")]
                let ($first, $($rest,)*) = self;
                write_field(line, $first)?;
                $(
                    line.0.push(b'\t');
                    write_field(line, $rest)?;
                )*
                Ok(())
            }
        }
    )*};
}

impl_fields! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}

#[inline]
fn write_field(line: &mut Line, value: &impl Display) -> io::Result<()> {
    write!(Escaped(&mut line.0), "{value}").map_err(|fmt::Error| io::Error::other("a value could not be displayed"))
}

struct Escaped<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    #[inline]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b'\\')) {
            self.0.extend_from_slice(&rest[..at]);
            self.0.extend_from_slice(match rest[at] {
                b'\t' => b"\\t",
                b'\n' => b"\\n",
                b'\r' => b"\\r",
                _ => b"\\\\",
            });
            rest = &rest[at + 1..];
        }
        self.0.extend_from_slice(rest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::{Lines, Own};

    #[track_caller]
    fn check<I: Items>(item: I::Of<'_>, mut format: impl Format<I>, expected: &str) {
        let mut line = Line::default();
        line.add::<I>(item, &mut format).unwrap();
        assert_eq!(String::from_utf8(line.0).unwrap(), expected);
    }

    #[test]
    fn a_tab_stands_only_between_fields_and_a_newline_only_at_the_end() {
        check::<Own<(&str, u64)>>(("word", 3), Tsv, "word\t3\n");
        check::<Own<(&str,)>>(("a\tb\nc\rd\\e",), Tsv, "a\\tb\\nc\\rd\\\\e\n");
        check::<Own<(i8, char, f64, &str, u8, u8, u8, bool)>>(
            (-1, 'x', 0.5, "", 1, 2, 3, true),
            Tsv,
            "-1\tx\t0.5\t\t1\t2\t3\ttrue\n",
        );
        check::<Own<(&str, Vec<u64>)>>(("a\nb", vec![1, 2]), JsonLines, "[\"a\\nb\",[1,2]]\n");
        let digits = |n: i64, line: &mut Line| {
            line.push_integer(n);
            Ok(())
        };
        check::<Own<i64>>(i64::MIN, ByClosure(digits), "-9223372036854775808\n");
        check::<Lines>("x", ByClosure(|text: &str, line: &mut Line| write!(line, "<{text}>")), "<x>\n");
    }

    #[test]
    fn a_line_that_fails_leaves_nothing() {
        let mut line = Line::default();
        let mut format = ByClosure(|text: &str, line: &mut Line| {
            line.push_str(text);
            if text == "bad" { Err(io::Error::other("bad")) } else { Ok(()) }
        });
        line.add::<Lines>("one", &mut format).unwrap();
        line.add::<Lines>("bad", &mut format).unwrap_err();
        line.add::<Lines>("two", &mut format).unwrap();
        assert_eq!(line.0, b"one\ntwo\n");
    }
}
