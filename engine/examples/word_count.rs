//! Counts the words of text files: the code of the README.

use millstream::prelude::*;

fn main() -> millstream::Result<()> {
    let job = Job::named("word-count")
        .source(FileSource::lines("examples/text/*.txt"))
        .flat_map(|line, words| {
            line.split(|c: char| c.is_ascii() && !c.is_ascii_alphanumeric())
                .filter(|word| !word.is_empty())
                .for_each(|word| words.push(Text::lowercased(word)));
        })
        .key_by_ref(|word: &Text| word.as_str())
        .count_emitting("counts", Emit::AtEnd)
        .sink(FileSink::lines("out/counts", |(word, n), line| write!(line, "{word}\t{n}")));
    println!("{}", job.explain());

    let config = EngineConfig::new().cores("2".parse()?).state_dir("out/state");
    let report = Engine::start(config, job)?.join()?;
    println!("{} words, {:?}", report.records_keyed, report.outcome);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_example_counts_words_as_its_document_says() {
        let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/text");
        let dir = tempfile::tempdir().unwrap();
        // The only test of this process: nobody else depends on where it is.
        std::env::set_current_dir(&dir).unwrap();
        fs::create_dir_all("examples/text").unwrap();
        let mut expected = BTreeMap::<String, u64>::new();
        for entry in fs::read_dir(texts).unwrap().map(Result::unwrap) {
            let text = fs::read(entry.path()).unwrap();
            fs::write(Path::new("examples/text").join(entry.file_name()), &text).unwrap();
            let is_text = entry.path().extension().is_some_and(|extension| extension == "txt");
            let words = text.split(|byte| byte.is_ascii() && !byte.is_ascii_alphanumeric());
            for word in words.filter(|word| is_text && !word.is_empty()) {
                *expected.entry(str::from_utf8(word).unwrap().to_ascii_lowercase()).or_default() += 1;
            }
        }
        super::main().unwrap();
        let mut counts = BTreeMap::new();
        for part in fs::read_dir("out/counts").unwrap() {
            for line in fs::read_to_string(part.unwrap().path()).unwrap().lines() {
                let (word, n) = line.split_once('\t').unwrap();
                assert_eq!(counts.insert(word.to_owned(), n.parse().unwrap()), None, "{word} stands there twice");
            }
        }
        assert!(counts.len() > 1000 && counts == expected, "{} words, {} expected", counts.len(), expected.len());
    }
}
