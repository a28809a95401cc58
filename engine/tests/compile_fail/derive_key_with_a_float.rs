//! Floats are no keys: -0 equals 0 and NaN nothing.
use millstream::Key;

#[derive(Key)]
struct Place {
    latitude: f64,
}

fn keyed_by<K: Key>() {}

fn main() {
    keyed_by::<f64>();
}
