//! A key has one encoding and an order that every machine agrees on.
use millstream::prelude::*;
use millstream::source::iter;

fn main() {
    let _ = Job::named("job").source(iter(|| 0..9u64)).key_by(|n| *n as f64).count("counts").sink(Discard::counting());
}
