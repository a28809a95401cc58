//! Calls on the wrong kind of stream, so that the compiler says what to write instead of what it cannot find.
//!
//! A keyed stream has the methods that use the key and a plain one those that do not; each has the names of the other here,
//! behind a bound that never holds.

use super::{KeyedStream, Stream};

/// Holds for keyed streams only.
#[diagnostic::on_unimplemented(
    message = "this stream has no key",
    label = "key it first: `.key_by(|item| ..)` or `.key_by_ref(|item| ..)`",
    note = "`count`, `reduce` and `process` work on all items of one key, on the shard that owns the key"
)]
pub trait Keyed {}

impl<H, C, N> Keyed for KeyedStream<H, C, N> {}

/// Holds for streams without a key only.
#[diagnostic::on_unimplemented(
    message = "a keyed stream goes on with an operator that uses the key",
    label = "add `.count(name)`, `.reduce(name, ..)` or `.process(name, ..)` first",
    note = "operators that need no key, such as `map`, `filter` and `sink`, belong in front of `key_by` or behind such an operator"
)]
pub trait Plain {}

impl<H, C> Plain for Stream<H, C> {}

macro_rules! only_on {
    ($kind:ident: $($name:ident($($argument:ident),*);)*) => {
        $(
            #[doc(hidden)]
            pub fn $name<$($argument),*>(self, $(_: $argument),*) -> Self
            where
                Self: $kind,
            {
                self
            }
        )*
    };
}

#[expect(non_camel_case_types, reason = "the type parameters are named like the arguments that they stand for")]
impl<H, C> Stream<H, C> {
    only_on! { Keyed:
        count(name);
        count_emitting(name, emit);
        reduce(name, emit, user);
        process(name, process);
        process_with(name, state, user);
    }
}

#[expect(non_camel_case_types, reason = "the type parameters are named like the arguments that they stand for")]
impl<H, C, N> KeyedStream<H, C, N> {
    only_on! { Plain:
        map(user);
        filter(user);
        flat_map(user);
        try_map(policy, user);
        try_flat_map(policy, user);
        inspect(user);
        key_by(user);
        key_by_ref(user);
        union(other);
        sink(sink);
    }
}
