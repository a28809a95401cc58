//! A type is a key by a derive only.
use millstream::{Key, Record};

#[derive(Record)]
struct Account(u64);

fn keyed_by<K: Key>() {}

fn main() {
    keyed_by::<Account>();
}
