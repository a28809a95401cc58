//! `usize` has another size on another machine.
use millstream::Record;

#[derive(Record)]
struct Size(usize);

fn main() {}
