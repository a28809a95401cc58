//! Types of [rkyv](::rkyv) as records and states: [`Rkyv`] keeps what rkyv archives, beside the layout of the derives.
//!
//! Invariants
//! * I1. `decode(encode(x)) == x`, wherever the bytes lie: archived types are made of single bytes (checked when compiled)
//!   and pointers in them are relative, so the bytes can be copied, cut out and nested like all others.
//! * I2. No archived value is reached except through rkyv's checks, so no call is undefined on any bytes.
//! * I3. What was encoded passes those checks: a value nested too deeply for them is refused when it is encoded.
//! * I4. Its schema does not tell whether bytes are good ones, so values are checked one by one whenever they come from
//!   disk: those of a state when it is opened, records of a channel log when it is read.
//!
//! The bytes are not canonical: `check` also passes bytes with others in front of the value, and a hash map is archived in
//! the order of its iteration. So this is no key.
//!
//! Cost: every `view` and `decode` checks the whole value, so that reading one field costs time in proportion to its
//! size, which fields of a `#[derive(Record)]` do not; see `docs/DEPENDENCIES.md` for numbers. Encoding checks values of
//! over 1 KiB once (I3), and allocates only where a value needs more scratch space than all before it on this thread.

use super::*;
use ::rkyv::api::low::{LowDeserializer, LowSerializer, LowValidator, deserialize};
use ::rkyv::api::{access_pos_with_context, root_position, serialize_using};
use ::rkyv::bytecheck::CheckBytes;
use ::rkyv::rancor::BoxedError;
use ::rkyv::ser::Serializer;
use ::rkyv::ser::allocator::ArenaHandle;
use ::rkyv::util::with_arena;
use ::rkyv::validation::Validator;
use ::rkyv::validation::archive::ArchiveValidator;
use ::rkyv::{Archive, Deserialize, Portable, Serialize};
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};

/// What rkyv lays out, and by which version of its format.
const ENCODING: &str = "rkyv 0.8";

/// Values within values by pointers, above which bytes are refused: a stack holds this many checks of one another.
const NESTING_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Bytes of the smallest pointer, of which each level but the last has one.
const POINTER_SIZE: usize = 4;

/// A type that [`Rkyv`] can hold; implemented for all that derive rkyv's `Archive`, `Serialize` and `Deserialize` with
/// `#[rkyv(derive(Debug, PartialEq))]`, and own what they point to: shared pointers are not supported.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be archived by rkyv as a record",
    label = "add `#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]` and `#[rkyv(derive(Debug, PartialEq))]` to `{Self}`"
)]
pub trait Archivable:
    Sized
    + Archive<
        Archived: fmt::Debug
                      + PartialEq
                      + Portable
                      + for<'a> CheckBytes<LowValidator<'a, BoxedError>>
                      + Deserialize<Self, LowDeserializer<BoxedError>>,
    > + for<'a, 'b> Serialize<LowSerializer<&'a mut Vec<u8>, ArenaHandle<'b>, BoxedError>>
    + Send
    + 'static
{
}

#[diagnostic::do_not_recommend]
impl<T> Archivable for T where
    T: Archive<
            Archived: fmt::Debug
                          + PartialEq
                          + Portable
                          + for<'a> CheckBytes<LowValidator<'a, BoxedError>>
                          + Deserialize<T, LowDeserializer<BoxedError>>,
        > + for<'a, 'b> Serialize<LowSerializer<&'a mut Vec<u8>, ArenaHandle<'b>, BoxedError>>
        + Send
        + 'static
{
}

/// A record or state kept as rkyv archives it, and read in place as the archived type.
///
/// Which of the two:
///
/// * `#[derive(Record)]` wherever it can be had. A field is read without looking at the rest (7 ns, whatever the size),
///   encoding takes half the time (18 ns against 35), their fields stand in the snapshot's schema, tools show them as JSON.
/// * `Rkyv<T>` for a type that derives rkyv's traits already, or that needs what rkyv has and the derive has not: maps,
///   boxes, recursion, types of other crates through `#[rkyv(with = ..)]`. Every read checks the whole value (20 ns at
///   92 bytes, 259 ns at 812); rebuilding it whole is a little faster than the derive's. So keep large ones where they are
///   rebuilt anyway, and make them a field of a derived struct when only a part of it needs rkyv.
///
/// Such a value is opaque to the engine: tools show it as hex. Its identity in snapshots is the
/// name of the type, without its path, and the size of the archived type. After a change of fields that keeps both, give
/// the type another name: a restore checks all values and refuses those that are none of the type of today, but old bytes
/// that happen to pass are read as if they were new.
///
/// rkyv is re-exported, with the features that the engine needs; a program that names rkyv itself must not ask for others
/// than `unaligned`, `little_endian` and `pointer_width_32`.
///
/// ```
/// use millstream_state::{Record, Rkyv, rkyv};
/// use std::collections::BTreeMap;
///
/// #[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Debug, PartialEq)]
/// #[rkyv(crate = rkyv, derive(Debug, PartialEq))]
/// struct Basket {
///     owner: String,
///     pieces: BTreeMap<String, u32>,
/// }
///
/// let basket = Rkyv(Basket { owner: "ada".into(), pieces: [("lemon".into(), 7)].into() });
/// let mut bytes = Vec::new();
/// basket.encode(&mut bytes);
/// assert_eq!(Rkyv::<Basket>::check(&bytes), Ok(()));
///
/// let archived: &ArchivedBasket = Rkyv::<Basket>::view(&bytes);
/// assert_eq!(archived.owner, "ada");
/// assert_eq!(archived.pieces.get("lemon").map(|n| n.to_native()), Some(7));
/// assert_eq!(Rkyv::decode(&bytes), basket);
/// ```
///
/// # Panics
/// Encoding panics where rkyv cannot archive the value, and on values nested in one another by pointers 256 deep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rkyv<T>(pub T);

impl<T> Rkyv<T> {
    /// The value.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> From<T> for Rkyv<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Rkyv<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Rkyv<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Archivable> Rkyv<T> {
    /// The only way to an archived value (I2).
    #[inline]
    fn access(bytes: &[u8]) -> Result<&T::Archived, BadBytes> {
        const { assert!(align_of::<T::Archived>() == 1, "an archived type must not be aligned") };
        let archive = ArchiveValidator::with_max_depth(bytes, Some(NESTING_MAX));
        let root = root_position::<T::Archived>(bytes.len());
        access_pos_with_context(bytes, root, &mut Validator::new(archive, ())).map_err(bad::<T>)
    }
}

impl<T: Archivable> Record for Rkyv<T> {
    const FIXED_SIZE: Option<usize> = None;
    type View<'a> = &'a T::Archived;

    fn schema() -> Schema {
        Schema::Opaque {
            encoding: ENCODING.into(),
            name: name_of::<T>(),
            size: parts::offset(size_of::<T::Archived>()),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let written: Result<_, BoxedError> = with_arena(|arena| {
            serialize_using(&self.0, &mut Serializer::new(&mut *out, arena.acquire(), ())).map(drop)
        });
        // Shorter values have no room for pointers as deep.
        let may_be_too_deep = out.len() - start >= POINTER_SIZE * (NESTING_MAX.get() - 1);
        if let Err(error) = written {
            panic!("rkyv cannot archive this {}: {error}", name_of::<T>());
        }
        if may_be_too_deep && let Err(bad) = Self::access(&out[start..]) {
            panic!("a value that cannot be read again is not kept, as of one nested over {NESTING_MAX} deep: {bad}");
        }
    }

    fn encode_fixed(&self, _: &mut [u8]) {
        unreachable!("what rkyv archives has no fixed size")
    }

    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        Self::access(bytes).map(drop)
    }

    #[inline]
    fn view(bytes: &[u8]) -> &T::Archived {
        Self::access(bytes).unwrap_or_else(|bad| panic!("unchecked bytes, and {bad}"))
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Self {
        let value: Result<T, BoxedError> = deserialize(Self::view(bytes));
        Self(value.unwrap_or_else(|error| panic!("rkyv cannot rebuild this {}: {error}", name_of::<T>())))
    }
}

impl<T: Archivable> State for Rkyv<T> {}

/// What rkyv says of bytes that are no archive of a `T`.
#[cold]
fn bad<T>(error: BoxedError) -> BadBytes {
    BadBytes(format!("no {} of {ENCODING}: {error}", name_of::<T>()))
}

fn name_of<T>() -> String {
    without_paths(std::any::type_name::<T>())
}

/// `Vec<Payment>` for `alloc::vec::Vec<shop::Payment>`: types stay what they are when they move.
fn without_paths(type_name: &str) -> String {
    let mut short = String::new();
    let mut segment = 0;
    for c in type_name.chars() {
        match c {
            ':' => short.truncate(segment),
            '_' | '{' | '}' => short.push(c),
            c if c.is_alphanumeric() => short.push(c),
            c => {
                short.push(c);
                segment = short.len();
            }
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::super::tests::encoded;
    use super::*;
    use ::rkyv::rancor::Source;
    use ::rkyv::ser::{Allocator, Writer};
    use ::rkyv::validation::ArchiveContext;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(::rkyv::Archive, ::rkyv::Serialize, ::rkyv::Deserialize, Clone, PartialEq, Debug)]
    #[rkyv(derive(Debug, PartialEq))]
    enum Kind {
        Plain,
        Gift { note: Option<String> },
        Split(Vec<u16>, Box<str>),
    }

    #[derive(::rkyv::Archive, ::rkyv::Serialize, ::rkyv::Deserialize, Clone, PartialEq, Debug)]
    #[rkyv(derive(Debug, PartialEq))]
    struct Order {
        id: u64,
        paid: bool,
        letter: char,
        name: String,
        lines: Vec<(String, Option<i32>)>,
        pieces: BTreeMap<String, u32>,
        kind: Option<Kind>,
    }

    /// A list by pointers, as deep as it is long.
    #[derive(::rkyv::Archive, ::rkyv::Serialize, ::rkyv::Deserialize, Clone, PartialEq, Debug)]
    #[rkyv(
        derive(Debug, PartialEq),
        serialize_bounds(__S: Writer + Allocator, __S::Error: Source),
        deserialize_bounds(__D::Error: Source),
        bytecheck(bounds(__C: ArchiveContext, __C::Error: Source))
    )]
    struct Chain(#[rkyv(omit_bounds)] Option<Box<Chain>>);

    impl Chain {
        fn of(links: usize) -> Rkyv<Self> {
            Rkyv((0..links).fold(Self(None), |chain, _| Self(Some(Box::new(chain)))))
        }
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Plain),
            any::<Option<String>>().prop_map(|note| Kind::Gift { note }),
            any::<(Vec<u16>, Box<str>)>().prop_map(|(parts, by)| Kind::Split(parts, by)),
        ]
    }

    fn orders() -> impl Strategy<Value = Rkyv<Order>> {
        let lines = any::<Vec<(String, Option<i32>)>>();
        let pieces = proptest::collection::btree_map(any::<String>(), any::<u32>(), 0..12);
        let parts = (any::<(u64, bool, char, String)>(), lines, pieces, proptest::option::of(kinds()));
        parts.prop_map(|((id, paid, letter, name), lines, pieces, kind)| {
            Rkyv(Order { id, paid, letter, name, lines, pieces, kind })
        })
    }

    /// Nothing panics in `check`, and what it passes can be read as a value that keeps its own bytes.
    fn judge<T: Record + PartialEq + fmt::Debug>(bytes: &[u8]) -> Result<(), TestCaseError> {
        if T::check(bytes).is_ok() {
            let _ = format!("{:?}", T::view(bytes));
            let value = T::decode(bytes);
            prop_assert_eq!(T::decode(&encoded(&value)), value);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_value_keeps_its_bytes_wherever_they_lie(order in orders(), before in any::<Vec<u8>>()) {
            let bytes = encoded(&order);
            let mut out = before.clone();
            order.encode(&mut out);
            prop_assert_eq!(&out[before.len()..], &bytes);
            let moved = &out[before.len()..];
            prop_assert_eq!(Rkyv::<Order>::check(moved), Ok(()));
            prop_assert_eq!(Rkyv::<Order>::view(moved), Rkyv::<Order>::view(&bytes));
            prop_assert_eq!(Rkyv::<Order>::decode(moved), order);
        }

        #[test]
        fn it_stands_in_other_values(orders in proptest::collection::vec(orders(), 0..3), n in any::<u16>()) {
            let value = (n, orders, Some(Chain::of(usize::from(n % 9))));
            let bytes = encoded(&value);
            type Whole = (u16, Vec<Rkyv<Order>>, Option<Rkyv<Chain>>);
            prop_assert_eq!(Whole::check(&bytes), Ok(()));
            prop_assert_eq!(Whole::decode(&bytes), value);
            prop_assert!(Whole::schema().to_json(&bytes).is_ok());
        }

        #[test]
        fn truncated_and_altered_bytes_are_refused_or_are_another_value(
            order in orders(), cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), xor in 1u8..,
        ) {
            let mut bytes = encoded(&order);
            judge::<Rkyv<Order>>(&bytes[..cut.index(bytes.len())])?;
            judge::<Rkyv<Order>>(&bytes[cut.index(bytes.len())..])?;
            let at = at.index(bytes.len());
            bytes[at] ^= xor;
            judge::<Rkyv<Order>>(&bytes)?;
        }

        #[test]
        fn random_bytes_are_refused_or_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            judge::<Rkyv<Order>>(&bytes)?;
            judge::<Rkyv<Kind>>(&bytes)?;
            judge::<Rkyv<Chain>>(&bytes)?;
            judge::<Rkyv<Vec<String>>>(&bytes)?;
        }
    }

    #[test]
    fn every_cut_of_a_value_is_refused() {
        let lines = vec![("a line of text".into(), Some(7))];
        let order = Order { id: 7, paid: true, letter: 'a', name: "n".into(), lines, pieces: [].into(), kind: None };
        let bytes = encoded(&Rkyv(order));
        for end in 0..bytes.len() {
            assert!(Rkyv::<Order>::check(&bytes[..end]).is_err(), "the first {end} of {} bytes", bytes.len());
        }
    }

    #[test]
    fn what_is_wrong_with_bytes_is_said_with_the_type() {
        let said = |result: Result<(), BadBytes>| result.unwrap_err().to_string();
        let rows = [
            (said(Rkyv::<char>::check(&[0xff; 4])), ["no char of rkyv 0.8: ", "out of range for `char`"]),
            (said(Rkyv::<String>::check(&[])), ["no String of rkyv 0.8: ", "overran"]),
            (said(<(u8, Rkyv<Chain>)>::check(&[7, 1, 9, 0, 0, 0])), ["1: no Chain of rkyv 0.8: ", "overran"]),
        ];
        for (said, parts) in rows {
            assert!(parts.iter().all(|part| said.contains(part)), "{parts:?} not in: {said}");
        }
    }

    #[test]
    fn nesting_is_written_as_deep_as_it_can_be_read() {
        let deepest = Chain::of(NESTING_MAX.get() - 2);
        let bytes = encoded(&deepest);
        assert_eq!(Rkyv::<Chain>::check(&bytes), Ok(()));
        assert_eq!(Rkyv::decode(&bytes), deepest);
    }

    #[test]
    #[should_panic(expected = "as of one nested over 256 deep: no Chain of rkyv 0.8")]
    fn deeper_nesting_is_refused_before_it_is_kept() {
        encoded(&Chain::of(NESTING_MAX.get() - 1));
    }

    #[test]
    fn bytes_nested_without_end_are_refused_not_followed() {
        let deep = ::rkyv::api::high::to_bytes::<BoxedError>(&Chain::of(10_000).0).unwrap();
        assert!(Rkyv::<Chain>::check(&deep).is_err());
    }

    #[test]
    #[should_panic(expected = "unchecked bytes, and no String of rkyv 0.8")]
    fn a_view_of_bad_bytes_is_a_panic() {
        Rkyv::<String>::view(&[0; 7]);
    }

    #[test]
    fn bytes_and_fingerprints_are_those_of_format_version_1() {
        let value = Rkyv((7u32, String::from("a text of some length")));
        let bytes = encoded(&value);
        assert_eq!(bytes, b"a text of some length\x07\0\0\0\x95\0\0\0\xe7\xff\xff\xff");
        let schema = <Rkyv<(u32, String)>>::schema();
        assert_eq!(schema.describe(), "(u32, String) (rkyv 0.8, root of 12 bytes)");
        assert_eq!(
            serde_json::to_string(&schema).unwrap(),
            r#"{"opaque":{"encoding":"rkyv 0.8","name":"(u32, String)","size":12}}"#
        );
        assert_eq!(schema.fingerprint(), 3_362_881_070_426_262_613);
        assert_eq!(schema.fixed_size(), None);
        assert_eq!(schema.to_json(&[0x61, 0xff, 0]).unwrap().to_string(), r#"{"hex":"61ff00"}"#);
    }

    #[test]
    fn types_of_one_name_and_size_are_the_same_and_others_differ() {
        mod moved {
            #[derive(::rkyv::Archive, ::rkyv::Serialize, ::rkyv::Deserialize)]
            #[rkyv(derive(Debug, PartialEq))]
            pub(super) struct Chain(Box<str>, bool);

            pub(super) mod further {
                #[derive(::rkyv::Archive, ::rkyv::Serialize, ::rkyv::Deserialize)]
                #[rkyv(derive(Debug, PartialEq))]
                pub(in super::super) struct Chain(u64, bool);
            }
        }
        let one = <Rkyv<moved::Chain>>::schema();
        assert_eq!(Schema::difference(&one, &<Rkyv<moved::further::Chain>>::schema()), None);
        let rows = [
            (<Rkyv<Chain>>::schema(), "is now Chain (rkyv 0.8, root of 5 bytes)"),
            (<Rkyv<String>>::schema(), "is now String (rkyv 0.8, root of 8 bytes)"),
            (Schema::Text, "is now text"),
        ];
        for (new, expected) in rows {
            let expected = format!("the type was Chain (rkyv 0.8, root of 9 bytes) and {expected}");
            assert_eq!(Schema::difference(&one, &new), Some(expected));
        }
    }

    #[test]
    fn a_name_loses_its_paths_and_nothing_else() {
        let rows = [
            ("u32", "u32"),
            ("shop::order::Payment", "Payment"),
            ("alloc::vec::Vec<shop::Payment>", "Vec<Payment>"),
            ("(a::b::C, [d::E; 4], &str)", "(C, [E; 4], &str)"),
            ("shop::main::{{closure}}::Größe_2", "Größe_2"),
            ("std::collections::HashMap<alloc::string::String, a::B>", "HashMap<String, B>"),
        ];
        for (full, short) in rows {
            assert_eq!(without_paths(full), short);
        }
    }
}
