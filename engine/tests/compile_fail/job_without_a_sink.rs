//! A job is whole when every stream has ended in a sink.
use millstream::prelude::*;
use millstream::source::iter;

fn main() {
    let numbers = Job::named("job").source(iter(|| 0..9u64)).map(|n| n + 1);
    let _ = Engine::start(EngineConfig::new(), numbers);
}
