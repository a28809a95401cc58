//! `#[derive(Record, State, Key)]`: encoding, schema, check and in-place view of your own types.
//!
//! What is generated are calls of `millstream_state::value`; the encoding is written down there. A struct of fixed-size
//! fields is itself fixed-size; whether a field is, the macro cannot see, so the code branches on constants of the
//! fields' types. It has no `unsafe` and raises no warnings.
//!
//! For `Payment` the derive of `Record` also declares `PaymentView<'a>`, and that of `Key` `PaymentRef<'a>`: the same
//! fields or variants, each as its view (`&'a str` for a `String`). Types that are `Copy` can do without by
//! `#[record(copy)]`: they are their own view.
//!
//! ```
//! use millstream::{Key, Record, State};
//!
//! #[derive(Record, State)]
//! struct Payment {
//!     account: u64,
//!     note: String,
//!     #[record(default)] // a payment of a schema without currencies has none
//!     currency: Option<[u8; 3]>,
//! }
//!
//! let payment = Payment { account: 7, note: "rent".into(), currency: Some(*b"EUR") };
//! let mut bytes = Vec::new();
//! payment.encode(&mut bytes);
//! let view: PaymentView<'_> = Payment::view(&bytes);
//! assert_eq!((view.account, view.note, view.currency), (7, "rent", Some(*b"EUR")));
//! assert_eq!(Payment::schema().describe(), "Payment {account: u64, note: text, currency: optional [u8; 3]}");
//!
//! #[derive(Key)]
//! struct Place {
//!     city: String,
//!     floor: u8,
//! }
//!
//! let place = Place { city: "Ulm".into(), floor: 2 };
//! assert_eq!(Place::hash_ref(PlaceRef { city: "Ulm", floor: 2 }), place.stable_hash());
//! ```
//!
//! | attribute | on | meaning |
//! |---|---|---|
//! | `#[record(id = 3)]` | field, variant | identity across schemas; otherwise the name is |
//! | `#[record(rename = "cents")]` | type, field, variant | name in the schema, and the identity that goes with it |
//! | `#[record(default)]`, `#[record(default = expr)]` | field | what a value of a schema without the field gets when it is migrated |
//! | `#[record(copy)]` | type | views are the type itself, which is `Copy + Debug + PartialEq` |
//! | `#[record(crate = path)]` | type | where `millstream_state` is, for crates that do not use `millstream` |
//!
//! **A restore migrates nothing**: a job is refused, with the state's name, when the schema of a stored key or value is not the
//! present one, whatever the attributes say. `id`, `rename` and `default` are what `millstream_state::value::Migration`
//! goes by, which turns the bytes of one value into those of another schema.

mod generate;
mod input;

use generate::Trait;
use input::Input;
use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Encoding, schema and in-place view, as `millstream::Record` wants them.
#[proc_macro_derive(Record, attributes(record))]
pub fn derive_record(item: TokenStream) -> TokenStream {
    expand(&parse_macro_input!(item as DeriveInput), |input| generate::implement(input, &Trait::RECORD))
}

/// Says that a `Record` may be kept as state.
#[proc_macro_derive(State, attributes(record))]
pub fn derive_state(item: TokenStream) -> TokenStream {
    expand(&parse_macro_input!(item as DeriveInput), generate::implement_state)
}

/// Canonical encoding, stable hash and borrowed form, as `millstream::Key` wants them.
#[proc_macro_derive(Key, attributes(record))]
pub fn derive_key(item: TokenStream) -> TokenStream {
    expand(&parse_macro_input!(item as DeriveInput), |input| generate::implement(input, &Trait::KEY))
}

fn expand(item: &DeriveInput, generate: impl FnOnce(&Input) -> proc_macro2::TokenStream) -> TokenStream {
    Input::parse(item).map_or_else(|error| error.into_compile_error(), |input| generate(&input)).into()
}
