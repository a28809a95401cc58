//! What a word count must come to, found without anything of the engine, and whether an output is that.
//!
//! Deliberately another way than the job's: byte by byte, one growing word, a standard map. Memory: the distinct words,
//! and one bit per occurrence while an output of updates is checked.

use millstream::operator::Emit;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// How often each word occurs.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    words: HashMap<Vec<u8>, u64>,
    total: u64,
}

/// Counts the words of one text.
pub fn count_text(text: &[u8]) -> Counts {
    let mut counts = Counts::default();
    counts.add(text).expect("a slice can be read");
    counts
}

/// Counts the words of files.
///
/// # Errors
/// When one cannot be read.
pub fn count_files<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> io::Result<Counts> {
    let mut counts = Counts::default();
    for path in paths {
        counts.add(BufReader::with_capacity(1 << 20, File::open(path)?))?;
    }
    Ok(counts)
}

impl Counts {
    fn add(&mut self, mut text: impl BufRead) -> io::Result<()> {
        let mut word = Vec::new();
        loop {
            let block = text.fill_buf()?;
            if block.is_empty() {
                break;
            }
            for &byte in block {
                match byte {
                    b'A'..=b'Z' => word.push(byte + 32),
                    b'a'..=b'z' | b'0'..=b'9' | 128..=255 => word.push(byte),
                    _ => self.end_word(&mut word),
                }
            }
            let read = block.len();
            text.consume(read);
        }
        self.end_word(&mut word);
        Ok(())
    }

    fn end_word(&mut self, word: &mut Vec<u8>) {
        if word.is_empty() {
            return;
        }
        match self.words.get_mut(word.as_slice()) {
            Some(count) => *count += 1,
            None => drop(self.words.insert(word.clone(), 1)),
        }
        self.total += 1;
        word.clear();
    }

    /// The same text `times` over.
    #[must_use]
    pub fn repeated(mut self, times: u64) -> Self {
        self.words.values_mut().for_each(|count| *count *= times);
        self.total *= times;
        self
    }

    /// Occurrences of one word.
    pub fn of(&self, word: &[u8]) -> u64 {
        self.words.get(word).copied().unwrap_or(0)
    }

    /// Occurrences of all words.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Distinct words.
    pub fn distinct(&self) -> usize {
        self.words.len()
    }

    /// Compares the files of an output directory with these counts: with [`Emit::AtEnd`] every word stands there once
    /// with its count, with [`Emit::Updates`] once with every number from 1 to its count. Nothing else may be there,
    /// hidden files least of all.
    ///
    /// # Errors
    /// Says the first difference.
    pub fn compare(&self, output: &Path, emit: Emit) -> Result<(), String> {
        let failed = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
        let mut seen: HashMap<&[u8], Seen> = HashMap::with_capacity(self.words.len());
        let mut lines = 0;
        let mut entries = Vec::new();
        for entry in output.read_dir().map_err(|error| failed(output, &error))? {
            entries.push(entry.map_err(|error| failed(output, &error))?.path());
        }
        entries.sort();
        for path in entries {
            if path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b".")) {
                return Err(format!("{} was left behind", path.display()));
            }
            let file = File::open(&path).map_err(|error| failed(&path, &error))?;
            let mut file = BufReader::with_capacity(1 << 20, file);
            let mut line = Vec::new();
            loop {
                line.clear();
                if file.by_ref().read_until(b'\n', &mut line).map_err(|error| failed(&path, &error))? == 0 {
                    break;
                }
                lines += 1;
                self.note(&line, emit, &mut seen)
                    .map_err(|what| format!("{}: {what}: {}", path.display(), line.escape_ascii()))?;
            }
        }
        let expected = match emit {
            Emit::AtEnd => self.words.len() as u64,
            Emit::Updates => self.total,
        };
        if lines == expected {
            return Ok(());
        }
        let missing = self.words.keys().find(|word| !seen.contains_key(word.as_slice()));
        let example = missing.map_or_else(String::new, |word| format!("; missing is {}", word.escape_ascii()));
        Err(format!("{lines} lines, {expected} were expected{example}"))
    }

    /// Takes one line. As no pair may stand twice and none that is not expected, their number says the rest.
    fn note<'a>(&'a self, line: &[u8], emit: Emit, seen: &mut HashMap<&'a [u8], Seen>) -> Result<(), &'static str> {
        let line = line.strip_suffix(b"\n").ok_or("a line without an end")?;
        let tab = line.iter().rposition(|&byte| byte == b'\t').ok_or("a line without a tab")?;
        let (word, n) = (&line[..tab], &line[tab + 1..]);
        let n: u64 = std::str::from_utf8(n).ok().and_then(|n| n.parse().ok()).ok_or("not a number")?;
        let (word, &count) = self.words.get_key_value(word).ok_or("no word of the text")?;
        match emit {
            Emit::AtEnd if n != count => return Err("a wrong count"),
            Emit::Updates if n == 0 || n > count => return Err("a number that no occurrence has"),
            _ => {}
        }
        if seen.entry(word).or_default().insert(n) { Ok(()) } else { Err("a line that stands twice") }
    }
}

impl std::ops::AddAssign for Counts {
    /// As if the texts stood in different files.
    fn add_assign(&mut self, other: Self) {
        for (word, count) in other.words {
            *self.words.entry(word).or_default() += count;
        }
        self.total += other.total;
    }
}

/// The numbers seen with a word, a bit each.
#[derive(Default)]
struct Seen(Vec<u64>);

impl Seen {
    fn insert(&mut self, n: u64) -> bool {
        let at = usize::try_from(n / 64).expect("fewer occurrences than bytes");
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        let is_new = self.0[at] & 1 << (n % 64) == 0;
        self.0[at] |= 1 << (n % 64);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(emit: Emit, output: &str, expected: Result<(), &str>) {
        let dir = tempfile::tempdir().unwrap();
        let halves = output.len() / 2;
        let cut = output[halves..].find('\n').map_or(output.len(), |at| halves + at + 1);
        std::fs::write(dir.path().join("part-1"), &output[..cut]).unwrap();
        std::fs::write(dir.path().join("part-2"), &output[cut..]).unwrap();
        let result = count_text("the cat, The dog".as_bytes()).compare(dir.path(), emit);
        match (&result, expected) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(part)) if error.contains(part) => {}
            _ => panic!("{output:?}: {result:?}"),
        }
    }

    #[test]
    fn an_output_is_right_in_any_order_and_else_its_fault_is_named() {
        let end = Emit::AtEnd;
        check(end, "dog\t1\nthe\t2\ncat\t1\n", Ok(()));
        check(end, "dog\t1\nthe\t2\n", Err("missing is cat"));
        check(end, "dog\t1\nthe\t1\ncat\t1\n", Err("a wrong count"));
        check(end, "dog\t1\nthe\t2\ncat\t1\ncat\t1\n", Err("stands twice"));
        check(end, "dog\t1\nthe\t2\ncow\t1\n", Err("no word of the text"));
        check(end, "dog\t1\nthe\t2\ncat\t1", Err("without an end"));
        let updates = Emit::Updates;
        check(updates, "the\t2\ndog\t1\nthe\t1\ncat\t1\n", Ok(()));
        check(updates, "the\t2\ndog\t1\ncat\t1\n", Err("3 lines, 4 were expected"));
        check(updates, "the\t3\ndog\t1\ncat\t1\n", Err("a number that no occurrence has"));
        check(updates, "the\t2\nthe\t2\ndog\t1\ncat\t1\n", Err("stands twice"));
    }

    #[test]
    fn a_hidden_file_is_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".staged"), "").unwrap();
        assert!(Counts::default().compare(dir.path(), Emit::AtEnd).unwrap_err().contains("left behind"));
    }
}
