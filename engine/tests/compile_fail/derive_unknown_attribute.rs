//! Attributes are checked.
use millstream::Record;

#[derive(Record)]
struct Payment {
    #[record(ID = 3)]
    account: u64,
}

#[derive(Record)]
#[record(default)]
struct Other(u8);

#[derive(Record)]
enum Kind {
    #[record(default)]
    A,
}

fn main() {}
