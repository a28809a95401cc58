//! Only what is `Copy` can be its own view.
use millstream::Record;

#[derive(Record, Debug, PartialEq)]
#[record(copy)]
struct Point {
    x: i32,
}

fn main() {}
