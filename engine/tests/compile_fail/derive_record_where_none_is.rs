//! What is kept or sent needs the traits.
use millstream::{Record, State};

struct Plain;

#[derive(Record)]
struct Sent(u32);

fn sent<T: Record>() {}
fn kept<T: State>() {}

fn main() {
    sent::<Plain>();
    kept::<Sent>();
}
