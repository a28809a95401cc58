//! What flows through a stage: a family of item types, so that an item may borrow from the batch it came in.
//!
//! The first stage passes lines as `&str` without an allocation each; a keyed operator passes `(&key, value)`. Between
//! two exchanges an item needs no trait at all; what crosses one implements [`Record`](crate::Record).

use millstream_state::Key;
use std::marker::PhantomData;

/// A family of items: for every lifetime the type that an operator receives.
#[diagnostic::on_unimplemented(message = "`{Self}` is no family of items", label = "use `Own<{Self}>` for owned items")]
pub trait Items: 'static {
    /// The item within a batch that lives for `'a`.
    type Of<'a>;
}

/// Items that own what they are.
pub struct Own<T>(PhantomData<fn() -> T>);

impl<T: 'static> Items for Own<T> {
    type Of<'a> = T;
}

/// Lines of text, borrowed from the block they were read in.
pub struct Lines;

impl Items for Lines {
    type Of<'a> = &'a str;
}

/// Lines of any bytes, borrowed from the block they were read in.
pub struct ByteLines;

impl Items for ByteLines {
    type Of<'a> = &'a [u8];
}

/// A stored key and what an operator has to say about it: `(&str, u64)` for a count of words.
pub struct Pairs<K: ?Sized, V>(PhantomData<fn(&K) -> V>);

impl<K: Key + ?Sized, V: 'static> Items for Pairs<K, V> {
    type Of<'a> = (K::Ref<'a>, V);
}
