//! The two kinds of lines: text, checked a batch at a time, and bytes.

use super::{InvalidText, Settings};
use crate::items::{ByteLines, Items, Lines};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// [`Lines`] or [`ByteLines`]: what a [`FileSource`](super::FileSource) makes of a file.
pub trait LineItems: Items + sealed::Emit {
    /// For `explain`.
    const NAME: &'static str;
}

impl LineItems for Lines {
    const NAME: &'static str = "text lines";
}

impl LineItems for ByteLines {
    const NAME: &'static str = "byte lines";
}

/// Some whole lines, as they lie in a block.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    pub(super) bytes: &'a [u8],
    /// Where each line lies in `bytes`, without its end, in order.
    pub(super) lines: &'a [Range<u32>],
    /// Where `bytes` begins in the file.
    pub(super) base: u64,
}

impl<'a> Batch<'a> {
    #[inline]
    fn line(&self, range: &Range<u32>) -> &'a [u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }
}

pub(super) mod sealed {
    use super::*;

    /// How lines are handed out.
    pub trait Emit: Items {
        /// Hands the lines of `batch` to `push`, noting in `last` where each starts; returns how many.
        fn emit(
            batch: Batch<'_>,
            settings: &EmitSettings<'_>,
            last: &mut u64,
            push: &mut impl FnMut(Self::Of<'_>),
        ) -> Result<usize>;
    }
}

/// What [`sealed::Emit`] needs to know.
pub struct EmitSettings<'a> {
    pub(super) settings: &'a Settings,
    pub(super) path: &'a std::path::Path,
}

impl sealed::Emit for ByteLines {
    #[inline]
    fn emit(batch: Batch<'_>, _: &EmitSettings<'_>, last: &mut u64, push: &mut impl FnMut(&[u8])) -> Result<usize> {
        for range in batch.lines {
            *last = batch.base + u64::from(range.start);
            push(batch.line(range));
        }
        Ok(batch.lines.len())
    }
}

impl sealed::Emit for Lines {
    #[inline]
    fn emit(
        batch: Batch<'_>,
        settings: &EmitSettings<'_>,
        last: &mut u64,
        push: &mut impl FnMut(&str),
    ) -> Result<usize> {
        let [first, .., end] = batch.lines else {
            return emit_checked(batch, settings, last, push);
        };
        // One check for all of them: what lies between them are line ends, which are text.
        let start = first.start as usize;
        match std::str::from_utf8(&batch.bytes[start..end.end as usize]) {
            Ok(text) => {
                for range in batch.lines {
                    *last = batch.base + u64::from(range.start);
                    push(&text[range.start as usize - start..range.end as usize - start]);
                }
                Ok(batch.lines.len())
            }
            Err(_) => emit_checked(batch, settings, last, push),
        }
    }
}

/// Line by line, for a batch of one and for a batch with a bad line in it.
fn emit_checked(
    batch: Batch<'_>,
    settings: &EmitSettings<'_>,
    last: &mut u64,
    push: &mut impl FnMut(&str),
) -> Result<usize> {
    let mut count = 0;
    for range in batch.lines {
        *last = batch.base + u64::from(range.start);
        let bytes = batch.line(range);
        match std::str::from_utf8(bytes) {
            Ok(text) => push(text),
            Err(error) => {
                if settings.settings.invalid_text == InvalidText::Fail {
                    return Err(Error::invalid(format_args!(
                        "{} at byte {}: not UTF-8; say what to do with such lines (replace or skip), or read bytes",
                        settings.path.display(),
                        *last + error.valid_up_to() as u64
                    )));
                }
                settings.settings.invalid_lines.fetch_add(1, Ordering::Relaxed);
                if settings.settings.invalid_text == InvalidText::Skip {
                    continue;
                }
                push(&String::from_utf8_lossy(bytes));
            }
        }
        count += 1;
    }
    Ok(count)
}
