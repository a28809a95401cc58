//! Counting is by key.
use millstream::prelude::*;
use millstream::source::iter;

fn main() {
    let _ = Job::named("job").source(iter(|| 0..9u64)).count("counts").sink(Discard::counting());
}
