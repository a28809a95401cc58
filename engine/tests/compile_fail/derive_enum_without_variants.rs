//! There is no value to encode.
use millstream::{Key, Record};

#[derive(Record, Key)]
enum Never {}

fn main() {}
