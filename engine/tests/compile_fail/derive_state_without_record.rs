//! State is a record first.
use millstream::State;

#[derive(State)]
struct Balance {
    cents: i64,
}

fn main() {}
