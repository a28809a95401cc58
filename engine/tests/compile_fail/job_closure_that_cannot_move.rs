//! Each shard runs its own copy of a closure, on its own thread.
use millstream::prelude::*;
use millstream::source::iter;
use std::rc::Rc;

fn main() {
    let seen = Rc::new(());
    let _ = Job::named("job").source(iter(|| 0..9u64)).inspect(move |_| drop(seen.clone())).sink(Discard::counting());
}
