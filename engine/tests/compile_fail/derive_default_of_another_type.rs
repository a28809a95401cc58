//! A default is a value of the field.
use millstream::Record;

#[derive(Record)]
struct Payment {
    #[record(default = "none")]
    cents: i64,
}

fn main() {}
