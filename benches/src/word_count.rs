//! Word count: the job that people try first, over real text, and an independent answer to check it against.
//!
//! A word is a maximal run of ASCII letters, ASCII digits and bytes above 0x7f; only `A` to `Z` are lower-cased. So
//! every file has words, whatever its encoding, and nothing is refused.
//!
//! Cost: one table look-up per byte; a word of up to 23 bytes is copied inline ([`Bytes`]), a longer one takes one
//! allocation, freed when it has been handed to the exchange.

mod check;

pub use check::{Counts, count_files, count_text};

use millstream::items::{ByteLines, Pairs};
use millstream::prelude::*;
use std::path::PathBuf;

/// Which bytes belong to words.
const IN_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = u8::MAX;
    loop {
        table[byte as usize] = byte > 0x7f || byte.is_ascii_alphanumeric();
        match byte.checked_sub(1) {
            Some(below) => byte = below,
            None => break table,
        }
    }
};

/// Calls `each` with every word of `text`, in order, as it is written there.
///
/// ```
/// let mut words = Vec::new();
/// millstream_bench::word_count::for_each_word("The café, no. 7".as_bytes(), |word| words.push(word));
/// assert_eq!(words, ["The".as_bytes(), "café".as_bytes(), b"no", b"7"]);
/// ```
#[inline]
pub fn for_each_word<'a>(text: &'a [u8], mut each: impl FnMut(&'a [u8])) {
    let mut rest = text;
    while let Some(start) = rest.iter().position(|&byte| IN_WORD[byte as usize]) {
        rest = &rest[start..];
        let end = rest.iter().position(|&byte| !IN_WORD[byte as usize]).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        each(word);
        rest = behind;
    }
}

/// A word count to run.
#[derive(Clone, Debug)]
pub struct WordCount {
    /// Pattern of the text files.
    pub input: String,
    /// Directory for files of `word<TAB>count`.
    pub output: PathBuf,
    /// Every word once at the end, or every occurrence with its number.
    pub emit: Emit,
    /// Most lines per second, all shards together.
    pub rate: Option<f64>,
    /// Large files are cut into pieces of this many bytes, the unit that is dealt to shards.
    pub split_bytes: u64,
}

impl WordCount {
    /// The job. Its name tells the two ways to emit apart, so that a state directory of one refuses the other.
    ///
    /// # Panics
    /// When the rate is not a positive number, or the split size zero.
    pub fn job(&self) -> Job {
        match self.rate {
            None => self.over(self.source()),
            Some(rate) => self.over(self.source().rate(rate)),
        }
    }

    fn over(&self, lines: impl Source<Items = ByteLines>) -> Job {
        self.between(lines, self.sink())
    }

    /// The same from any source of lines into any sink of counts.
    pub fn between(&self, lines: impl Source<Items = ByteLines>, counts: impl Sink<Pairs<[u8], u64>>) -> Job {
        let name = match self.emit {
            Emit::AtEnd => "word-count",
            Emit::Updates => "word-count-updates",
        };
        Job::named(name)
            .source(lines)
            .flat_map(|line: &[u8], words: &mut Out<Bytes>| {
                for_each_word(line, |word| words.push(Bytes::lowercased(word)));
            })
            .key_by_ref(|word: &Bytes| word.as_bytes())
            .count_emitting("counts", self.emit)
            .sink(counts)
    }

    /// Where the job reads from, without its rate.
    pub fn source(&self) -> FileSource<ByteLines> {
        FileSource::byte_lines(self.input.as_str()).split_bytes(self.split_bytes)
    }

    /// Where the job writes to: lines of the word's bytes, a tab, and the count.
    pub fn sink(&self) -> impl Sink<Pairs<[u8], u64>> + use<> {
        FileSink::lines(&self.output, |(word, n): (&[u8], u64), line: &mut Line| {
            line.push_bytes(word);
            line.push_bytes(b"\t");
            line.push_integer(n);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &[u8], expected: &[&[u8]]) {
        let mut words = Vec::new();
        for_each_word(text, |word| words.push(word));
        assert_eq!(words, expected, "{}", text.escape_ascii());
    }

    #[test]
    fn a_word_is_a_maximal_run_of_letters_digits_and_bytes_above_ascii() {
        check(b"", &[]);
        check(b" \t.,-_", &[]);
        check(b"one", &[b"one"]);
        check(b"one two", &[b"one", b"two"]);
        check(b"--x86_64--", &[b"x86", b"64"]);
        check(b"don't", &[b"don", b"t"]);
        check(b"a\xff\x80b \xc3\xa9", &[b"a\xff\x80b", b"\xc3\xa9"]);
        check(b"\x00A\x7fB", &[b"A", b"B"]);
    }

    #[test]
    fn the_independent_count_agrees_on_every_pair_of_bytes() {
        for pair in 0..=u16::MAX {
            let [a, b] = pair.to_le_bytes();
            let text = [b'x', a, b'Y', b, b'x'];
            let mut words = Vec::new();
            for_each_word(&text, |word| words.push(Bytes::lowercased(word).as_bytes().to_vec()));
            let counts = count_text(&text);
            assert_eq!(words.len() as u64, counts.total(), "{}", text.escape_ascii());
            assert!(words.iter().all(|word| counts.of(word) > 0), "{}", text.escape_ascii());
        }
    }
}
