//! Every shape of type, in a crate that shadows what it can and forbids what it may.
#![forbid(unsafe_code, missing_docs, unused, nonstandard_style)]
#![deny(warnings, clippy::all, clippy::pedantic)]

pub mod shapes {
    //! Names of the standard library that mean something else here.

    /// Not an option.
    pub struct Option;
    /// Not a vector.
    pub struct Vec;
    /// Not a result.
    pub enum Result {
        /// Not an error.
        Err,
    }
    /// Not a string.
    pub struct String;
    /// Not a macro of the standard library.
    #[macro_export]
    macro_rules! vec {
        () => {};
    }

    /// A payment.
    #[derive(millstream::Record, millstream::State)]
    pub struct Payment {
        /// From where.
        pub account: u64,
        /// Why.
        #[record(id = 7, default)]
        pub(crate) note: std::string::String,
        #[record(rename = "type", default = 1 + 1)]
        r#type: u8,
    }

    /// Generic, with a bound and a default.
    #[derive(millstream::Record, millstream::State, millstream::Key)]
    pub struct Pair<A: Clone, B = u8, const N: usize = 2>(pub A, pub [B; N])
    where
        B: Clone;

    /// Any of these.
    #[derive(millstream::Record, millstream::Key, Clone)]
    pub enum Kind {
        /// Nothing.
        None,
        /// A number and a text.
        Some(u32, std::string::String),
        /// Named.
        Full {
            /// A pair.
            pair: (u8, std::string::String),
            /// Maybe.
            maybe: std::option::Option<bool>,
        },
    }

    /// Its own view.
    #[derive(millstream::Record, millstream::State, millstream::Key, Clone, Copy, PartialEq, Eq, Debug)]
    #[record(copy)]
    pub struct Cell {
        /// Down.
        pub row: u32,
        /// Right.
        pub column: u32,
    }

    #[derive(millstream::Record, millstream::Key, Clone, Copy, PartialEq, Eq, Debug)]
    struct Hidden(u8);

    /// With a private type in it.
    #[derive(millstream::Record, millstream::State, millstream::Key)]
    pub struct Hiding {
        hidden: Hidden,
        list: [Hidden; 2],
    }

    /// No fields at all.
    #[derive(millstream::Record, millstream::State, millstream::Key)]
    pub struct Nothing;

    /// No fields at all either.
    #[derive(millstream::Record, millstream::State, millstream::Key)]
    pub enum One {
        /// The only one.
        A,
    }
}

mod private {
    use millstream::{Key, Record, State};

    #[derive(Record, State)]
    struct Unread {
        a: u8,
        b: millstream::text::Text,
    }

    #[derive(Record, State, Key)]
    enum Choice {
        A,
        B(u8),
    }

    pub(super) fn use_them() {
        let value = Unread { a: 1, b: "x".into() };
        let mut out = Vec::new();
        Record::encode(&value, &mut out);
        Record::encode(&Choice::A, &mut out);
        Record::encode(&Choice::B(1), &mut out);
        assert_eq!(out, [1, b'x', 0, 0, 1, 1]);
    }
}

fn keyed_by<K: millstream::Key + ?Sized>() {}
fn kept<T: millstream::State>() {}

fn main() {
    keyed_by::<str>();
    keyed_by::<[u8]>();
    keyed_by::<u64>();
    keyed_by::<(String, u32)>();
    keyed_by::<shapes::Kind>();
    keyed_by::<shapes::Cell>();
    keyed_by::<shapes::Pair<String, u16, 3>>();
    kept::<shapes::Payment>();
    kept::<shapes::Pair<u8>>();
    kept::<Vec<(shapes::Nothing, Option<shapes::Cell>)>>();
    private::use_them();
}
