//! A record outlives the batch it came in, so it cannot borrow.
use millstream::Record;

#[derive(Record)]
struct Line<'a> {
    text: &'a str,
}

#[derive(Record)]
struct Static {
    texts: Vec<&'static str>,
}

fn main() {}
