//! Every field needs an encoding.
use millstream::Record;

struct Point {
    x: i32,
}

#[derive(Record)]
struct Shape {
    name: String,
    center: Point,
}

fn main() {}
