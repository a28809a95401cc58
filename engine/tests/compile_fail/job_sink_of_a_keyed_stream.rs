//! A key is there to be used.
use millstream::prelude::*;
use millstream::source::iter;

fn main() {
    let _ = Job::named("job").source(iter(|| 0..9u64)).key_by(|n| *n).sink(Discard::counting());
}
