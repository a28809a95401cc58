//! An id is the identity of one field.
use millstream::Record;

#[derive(Record)]
struct Payment {
    #[record(id = 3)]
    account: u64,
    #[record(id = 3)]
    cents: i64,
}

#[derive(Record)]
enum Kind {
    A,
    #[record(rename = "A")]
    B,
}

fn main() {}
