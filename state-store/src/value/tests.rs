//! The invariants of the value layer, held by every built-in type, and the bytes, hashes and fingerprints as they are.

use super::*;
use crate::hash::{hash_bytes, hash_u64};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::rc::Rc;
use std::time::Duration;

pub(super) fn encoded<T: Record>(value: &T) -> Vec<u8> {
    let mut out = b"in front".to_vec();
    value.encode(&mut out);
    out.split_off(b"in front".len())
}

pub(super) fn key_bytes<K: Key + ?Sized>(key: &K) -> Vec<u8> {
    let mut out = b"in front".to_vec();
    key.encode(&mut out);
    out.split_off(b"in front".len())
}

/// Bytes that `check` lets through are exactly the encodings; nothing panics on others.
fn judge<T: Record>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if T::check(bytes).is_ok() {
        prop_assert_eq!(encoded(&T::decode(bytes)), bytes, "a second encoding of one value");
        prop_assert!(T::schema().to_json(bytes).is_ok());
        let _ = format!("{:?}", T::view(bytes));
    }
    let _ = T::schema().to_json(bytes);
    Ok(())
}

/// The first positions and some of the others: all of them would take quadratic time.
fn some_of(count: usize) -> impl Iterator<Item = usize> {
    (0..count.min(12)).chain((12..count).step_by(1 + count / 8))
}

/// I2, I3 and I5 for one value and what is near it.
pub(super) fn hold<T: Record + PartialEq + fmt::Debug>(value: &T, noise: &[u8]) -> Result<(), TestCaseError> {
    let bytes = encoded(value);
    prop_assert_eq!(T::check(&bytes), Ok(()));
    prop_assert_eq!(&T::decode(&bytes), value);
    prop_assert!(T::view(&bytes) == T::view(&bytes.clone()));
    prop_assert_eq!(T::schema().fixed_size(), T::FIXED_SIZE);
    if let Some(size) = T::FIXED_SIZE {
        let mut slot = vec![0xaa; size];
        value.encode_fixed(&mut slot);
        prop_assert_eq!(&slot, &bytes);
    }
    prop_assert!(T::schema().to_json(&bytes).is_ok());
    for at in some_of(bytes.len()) {
        judge::<T>(&bytes[..at])?;
        for bit in [1, 0x80] {
            let mut wrong = bytes.clone();
            wrong[at] ^= bit;
            judge::<T>(&wrong)?;
        }
    }
    judge::<T>(&[&bytes, noise].concat())?;
    judge::<T>(noise)
}

/// A value, or two keys, and what must hold of them; a type apart, so that the runner is compiled once for all types.
trait Fact: fmt::Debug {
    fn hold(&self) -> Result<(), TestCaseError>;
}

fn run<F: Fact + 'static>(cases: u32, facts: impl Strategy<Value = F> + 'static) {
    let facts = facts.prop_map(|fact| Rc::new(fact) as Rc<dyn Fact>).boxed();
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    runner.run(&facts, |fact| fact.hold()).unwrap();
}

#[derive(Debug)]
struct Near<T>(T, Vec<u8>);

impl<T: Record + PartialEq + fmt::Debug> Fact for Near<T> {
    fn hold(&self) -> Result<(), TestCaseError> {
        hold(&self.0, &self.1)
    }
}

fn check<T: Record + Arbitrary + PartialEq>() {
    run(48, (any::<T>().boxed(), any::<Vec<u8>>().boxed()).prop_map(|(value, noise)| Near(value, noise)));
}

#[test]
fn numbers_keep_their_bytes() {
    check::<(u8, u16, u32, u64, u128)>();
    check::<(i8, i16, i32, i64, i128)>();
    check::<(f32, f64)>();
    check::<u64>();
    check::<(bool, char, ())>();
    check::<char>();
    check::<Duration>();
}

#[test]
fn text_and_bytes_keep_their_bytes() {
    check::<String>();
    check::<Box<str>>();
    check::<Vec<u8>>();
}

#[test]
fn lists_keep_their_bytes() {
    check::<Vec<u32>>();
    check::<Vec<()>>();
    check::<Vec<String>>();
    check::<Vec<Vec<u16>>>();
    check::<Vec<(u8, String, String)>>();
    check::<[u16; 5]>();
    check::<[String; 3]>();
    check::<[(); 4]>();
}

#[test]
fn options_keep_their_bytes() {
    check::<Option<u64>>();
    check::<Option<String>>();
    check::<Option<Option<bool>>>();
    check::<Option<()>>();
    check::<Option<(String, Vec<u32>)>>();
}

#[test]
fn tuples_keep_their_bytes() {
    check::<(u8,)>();
    check::<(String,)>();
    check::<(u32, String)>();
    check::<(String, u8, Vec<String>, i64)>();
    check::<(u8, String, Option<u32>, Option<String>, bool, [u8; 3], f32, Vec<u64>)>();
}

/// I1 and I4 for two keys.
pub(super) fn canonical<K: Key + Record + PartialEq + fmt::Debug>(a: &K, b: &K) -> Result<(), TestCaseError> {
    let (bytes, others) = (key_bytes(a), key_bytes(b));
    prop_assert_eq!(a == b, bytes == others);
    prop_assert_eq!(a.to_ref() == b.to_ref(), bytes == others);
    prop_assert_eq!(&bytes, &encoded(a));
    prop_assert_eq!(a.stable_hash(), hash_bytes(&bytes));
    prop_assert_eq!(<K as Key>::check(&bytes), Ok(()));
    prop_assert_eq!(<K as Key>::view(&bytes), a.to_ref());
    prop_assert_eq!(<K as Key>::schema(), <K as Record>::schema());
    prop_assert_eq!(<K as Key>::FIXED_SIZE, <K as Record>::FIXED_SIZE);
    if let Some(size) = <K as Key>::FIXED_SIZE {
        let mut slot = vec![0xaa; size];
        Key::encode_fixed(a, &mut slot);
        prop_assert_eq!(&slot, &bytes);
    }
    for end in some_of(bytes.len()) {
        prop_assert_eq!(<K as Key>::check(&bytes[..end]).is_ok(), <K as Record>::check(&bytes[..end]).is_ok());
    }
    Ok(())
}

#[derive(Debug)]
struct Two<K>(K, K);

impl<K: Key + Record + PartialEq + fmt::Debug> Fact for Two<K> {
    fn hold(&self) -> Result<(), TestCaseError> {
        canonical(&self.0, &self.1)?;
        canonical(&self.0, &self.0)
    }
}

/// `near` makes keys that are often equal.
fn check_key<K: Key + Record + Arbitrary + PartialEq>(near: impl Strategy<Value = K> + 'static) {
    let near = near.boxed();
    run(128, (near.clone(), near.clone()).prop_map(|(a, b)| Two(a, b)));
    run(128, (near, any::<K>().boxed()).prop_map(|(a, b)| Two(a, b)));
}

#[test]
fn equal_keys_and_only_they_have_equal_bytes_and_hash_by_them() {
    check_key(any::<u64>());
    check_key(any::<i32>());
    check_key(any::<i128>());
    check_key(any::<(bool, u8, char)>());
    check_key(any::<()>());
    check_key("[ab]{0,3}");
    check_key(any::<Vec<u8>>());
    check_key(("[ab]{0,3}", "[ab]{0,3}"));
    check_key(("[ab]{0,2}", 0u32..2, proptest::option::of("[ab]{0,2}")));
    check_key([0u8..3, 0..3, 0..3]);
    check_key(proptest::option::of(0u8..2));
    check_key(any::<[u64; 12]>());
}

#[test]
fn a_key_has_the_bytes_and_the_hash_of_its_borrowed_form() {
    assert_eq!(key_bytes("lemon"), b"lemon");
    assert_eq!(key_bytes(&String::from("lemon")), b"lemon");
    assert_eq!(String::from("lemon").stable_hash(), "lemon".stable_hash());
    assert_eq!(vec![7u8, 8].stable_hash(), [7u8, 8][..].stable_hash());
    assert_eq!(<(String, u32)>::hash_ref(("lemon", 7)), (String::from("lemon"), 7u32).stable_hash());
}

#[test]
fn eight_bytes_of_fixed_key_hash_like_their_integer() {
    assert_eq!(7u64.stable_hash(), hash_u64(7));
    assert_eq!((-7i64).stable_hash(), hash_u64(u64::MAX - 6));
    assert_eq!((7u32, 1u32).stable_hash(), hash_u64(1 << 32 | 7));
    assert_eq!([1u8, 2, 3, 4, 5, 6, 7, 8].stable_hash(), hash_u64(0x0807_0605_0403_0201));
}

#[track_caller]
pub(super) fn golden<T: Record>(value: T, bytes: &[u8], json: &str, description: &str, fingerprint: u64) {
    assert_eq!(encoded(&value), bytes);
    assert_eq!(T::schema().to_json(bytes).unwrap().to_string(), json);
    assert_eq!(T::schema().describe(), description);
    assert_eq!(T::schema().fingerprint(), fingerprint, "{description}");
    let stored = serde_json::to_string(&T::schema()).unwrap();
    assert_eq!(serde_json::from_str::<Schema>(&stored).unwrap(), T::schema());
}

#[test]
fn bytes_and_fingerprints_are_those_of_format_version_1() {
    golden(0x0102_0304u32, &[4, 3, 2, 1], "16909060", "u32", 0xbeec_36eb_b29b_f3c6);
    golden(-2i64, &[254, 255, 255, 255, 255, 255, 255, 255], "-2", "i64", 0x4e20_df93_a6ba_26ed);
    golden(1.5f64, &[0, 0, 0, 0, 0, 0, 0xf8, 0x3f], "1.5", "f64", 0xcd60_763d_88d7_b5ae);
    golden(0.1f32, &[0xcd, 0xcc, 0xcc, 0x3d], "0.1", "f32", 0xf584_9e85_f358_c988);
    golden(u128::MAX, &[255; 16], "\"340282366920938463463374607431768211455\"", "u128", 0x61d7_932f_ab7a_ae1c);
    golden('a', &[97, 0, 0, 0], "\"a\"", "char", 0x962c_788b_7b98_41e4);
    golden(String::from("ab"), b"ab", "\"ab\"", "text", 0x5dc6_e05e_3b58_daa9);
    golden(vec![1u8, 0xff], &[1, 255], r#"{"hex":"01ff"}"#, "bytes", 0xd9ca_d4ec_c2a6_e8b5);
    golden(vec![1u16, 2], &[1, 0, 2, 0], "[1,2]", "[u16]", 0x4a79_8213_b7f0_403d);
    golden(vec![(), ()], &[0, 0], "[[],[]]", "[()]", 0x3298_e0af_8cc2_0969);
    golden(
        vec![String::from("a"), String::new(), String::from("bc")],
        &[3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c'],
        r#"["a","","bc"]"#,
        "[text]",
        0x058a_aee5_3b3c_f311,
    );
    golden((1u8, 2u32), &[1, 2, 0, 0, 0], "[1,2]", "(u8, u32)", 0x2485_0653_94b4_f252);
    golden(
        (String::from("ab"), 7u16, String::from("c")),
        &[7, 0, 2, 0, 0, 0, b'a', b'b', b'c'],
        r#"["ab",7,"c"]"#,
        "(text, u16, text)",
        0xdbe8_0ed7_d201_a6f9,
    );
    golden([1u8, 2], &[1, 2], "[1,2]", "[u8; 2]", 0xf494_0737_4a61_5df3);
    golden(
        [String::from("a"), String::from("b")],
        &[1, 0, 0, 0, b'a', b'b'],
        r#"["a","b"]"#,
        "[text; 2]",
        0xe692_f0ae_3244_e2b2,
    );
    golden(Some(7u16), &[1, 7, 0], "7", "optional u16", 0x0eb9_3018_2c4c_afb0);
    golden(None::<u16>, &[0, 0, 0], "null", "optional u16", 0x0eb9_3018_2c4c_afb0);
    golden(Some(String::from("a")), b"\x01a", "\"a\"", "optional text", 0xb85c_2ec2_7e5d_c23e);
    golden(None::<String>, &[0], "null", "optional text", 0xb85c_2ec2_7e5d_c23e);
    golden(
        Duration::new(1, 2),
        &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0],
        r#"{"nanoseconds":2,"seconds":1}"#,
        "Duration {seconds: u64, nanoseconds: u32}",
        0xa1a0_fd2f_c7cd_0fe8,
    );
}

#[test]
fn hashes_are_those_of_format_version_1() {
    let hashes = [
        7u64.stable_hash(),
        7u32.stable_hash(),
        7u8.stable_hash(),
        true.stable_hash(),
        "lemon".stable_hash(),
        (String::from("lemon"), 7u32).stable_hash(),
        Some(7u16).stable_hash(),
        ().stable_hash(),
    ];
    assert_eq!(
        hashes,
        [
            0xb283_e8b1_3c1a_905f,
            0xd322_adfc_4a47_485e,
            0x58fa_8928_96a8_0c89,
            0xe96d_d2e0_0f55_05d6,
            0x96ed_f10d_e959_b29b,
            0x67bb_c792_10bb_8261,
            0x48d4_64aa_2c5b_5b40,
            0x4b24_d35c_ba4a_63b0,
        ]
    );
}

#[track_caller]
pub(super) fn refused<T: Record>(bytes: &[u8], message: &str) {
    assert_eq!(T::check(bytes).unwrap_err().to_string(), message);
    if T::schema() != Duration::schema() {
        assert_eq!(T::schema().to_json(bytes).unwrap_err().to_string(), message, "by the schema");
    }
}

#[test]
fn what_is_wrong_with_bytes_is_said_by_name() {
    refused::<u32>(&[1, 2, 3], "u32 of 3 bytes, not 4");
    refused::<bool>(&[2], "bool 2 is neither 0 nor 1");
    refused::<char>(&[0, 0xd8, 0, 0], "0xd800 is no char");
    refused::<String>(&[0xff], "no text: invalid utf-8 sequence of 1 bytes from index 0");
    refused::<(u32, String)>(&[1, 2, 3], "3 bytes end within the first 4");
    refused::<(u32, bool)>(&[1, 2, 3, 4, 9], "1: bool 9 is neither 0 nor 1");
    refused::<(u32, bool)>(&[1, 2, 3, 4], "fields of 4 bytes, not 5");
    refused::<(String, String)>(&[9, 0, 0, 0, b'a'], "a part ends at 9, not within 0..=1");
    refused::<Vec<u16>>(&[1, 2, 3], "3 bytes are no whole number of 2");
    refused::<Vec<bool>>(&[0, 1, 2], "2: bool 2 is neither 0 nor 1");
    refused::<Vec<String>>(&[0, 0, 0], "a count is missing");
    refused::<Vec<String>>(&[0xff; 8], "8 bytes cannot hold 4294967295 values");
    refused::<Vec<String>>(&[0, 0, 0, 0, 1], "1 bytes after the last value");
    refused::<Vec<String>>(&[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], "a part ends at 0, not within 1..=1");
    refused::<Option<u16>>(&[0, 1, 0], "bytes after the fields of variant 0 are not zero");
    refused::<Option<u16>>(&[2, 0, 0], "tag 2 is not below 2");
    refused::<Option<String>>(&[], "a tag is missing");
    refused::<Option<bool>>(&[1, 7], "some: bool 7 is neither 0 nor 1");
    refused::<Duration>(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0xca, 0x9a, 0x3b], "1000000000 nanoseconds are over a second");
}

#[test]
fn no_schema_makes_the_decoder_panic_or_run_away() {
    let array = |item, count| Schema::Array(Box::new(item), count);
    let schemas = [
        array(array(array(Schema::Unsigned(16), u32::MAX), u32::MAX), u32::MAX),
        array(Schema::Tuple(vec![]), u32::MAX),
        array(array(Schema::Tuple(vec![]), 1 << 16), u32::MAX),
        array(Schema::Text, u32::MAX),
        Schema::Tuple(vec![array(array(Schema::Bool, u32::MAX), u32::MAX); 3]),
        Schema::List(Box::new(Schema::Unsigned(0))),
        Schema::Unsigned(3),
        Schema::Enum { name: "E".into(), variants: vec![] },
        Schema::Enum { name: "E".into(), variants: vec![Field::named("A", Schema::Bool)] },
        Schema::Optional(Box::new(Schema::Enum { name: "E".into(), variants: vec![] })),
    ];
    for schema in schemas {
        for bytes in [&[][..], &[0], &[1], &[0; 2], &[0; 64], &[0xff; 64]] {
            let _ = schema.to_json(bytes);
        }
    }
}

fn structure(fields: &[(u32, &str, Schema)]) -> Schema {
    Schema::structure(
        "Payment",
        fields.iter().map(|(id, name, schema)| Field::new(*id, name, schema.clone())).collect(),
    )
}

#[test]
fn a_migration_is_refused_where_old_values_cannot_become_new_ones() {
    let refusal = |old: &Schema, new: &Schema| Migration::plan(old, new).err();
    let u64 = || Schema::Unsigned(8);
    let old = structure(&[(1, "account", u64()), (2, "note", Schema::Text)]);
    let rows = [
        (old.clone(), None),
        (structure(&[(2, "memo", Schema::Text), (1, "account", u64())]), None),
        (structure(&[(1, "account", u64())]), None),
        (structure(&[(1, "account", Schema::Text)]), Some("`account` was u64 and is now text")),
        (
            structure(&[(1, "a", u64()), (3, "cents", u64())]),
            Some("`cents: u64` is new and has no `#[record(default)]`"),
        ),
        (u64(), Some("the type was Payment {account: u64, note: text} and is now u64")),
    ];
    for (new, expected) in rows {
        assert_eq!(refusal(&old, &new).as_deref(), expected);
    }
    let with_default = Schema::structure("Payment", vec![Field::named("cents", u64()).or(vec![0; 8])]);
    assert_eq!(refusal(&old, &with_default), None);

    let nested = |inner: Schema| structure(&[(1, "lines", Schema::List(Box::new(Schema::Tuple(vec![inner, u64()]))))]);
    let message = refusal(&nested(Schema::Bool), &nested(Schema::Text));
    assert_eq!(message.as_deref(), Some("`lines.item.0` was bool and is now text"));

    let kind = |names: &[&str]| {
        let variant = |name: &&str| Field::named(name, Schema::structure(name, vec![]));
        Schema::enumeration("Kind", names.iter().map(variant).collect())
    };
    assert_eq!(refusal(&kind(&["A"]), &kind(&["B", "A"])), None);
    let message = refusal(&kind(&["A", "B"]), &kind(&["B"]));
    assert_eq!(message.as_deref(), Some("variant `A` is gone, but values of it may be stored"));
}

#[test]
#[should_panic(
    expected = "`Payment`: `a` and `b` have the same id 1; give one of them another by `#[record(id = ..)]`"
)]
fn two_fields_with_one_id_are_refused() {
    structure(&[(1, "a", Schema::Bool), (1, "b", Schema::Bool)]);
}
