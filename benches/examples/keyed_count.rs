//! The keyed count from the command line, as JSON: `keyed_count CORES KEYS DISTRIBUTION SECONDS [RATE | with-ceiling]`.

use millstream::{Error, Result};
use millstream_bench::keyed_count::KeyedCount;
use millstream_bench::keys::Distribution;
use std::time::Duration;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, default: &str| words.get(at).map_or_else(|| default.to_owned(), String::clone);
    let number = |text: &str| {
        text.parse::<f64>().map_err(|why| Error::invalid(format_args!("`{text}` where a number has to stand: {why}")))
    };
    let distribution: Distribution = word(2, "uniform").parse()?;
    let count = word(1, "1000000").parse().map_err(|why| Error::invalid(format_args!("count of keys: {why}")))?;
    let last = word(4, "");
    let run = KeyedCount {
        cores: word(0, "2").parse()?,
        keys: distribution.over(count)?,
        duration: Duration::from_secs_f64(number(&word(3, "5"))?),
        with_ceiling: last == "with-ceiling",
        rate: if last.is_empty() || last == "with-ceiling" { None } else { Some(number(&last)?) },
        ..KeyedCount::default()
    };
    let report = run.run()?;
    println!("{}", serde_json::to_string_pretty(&report).expect("a report is plain data"));
    eprintln!("{}", report.table());
    Ok(())
}
