//! Derived records, states and keys hold the invariants of the built-in ones.

#![deny(warnings, missing_docs, unused)]

use super::tests::{canonical, encoded, golden, hold, key_bytes, refused};
use super::*;
use millstream_derive::{Key, Record, State};
use proptest::prelude::*;

/// Only fixed-size fields.
#[derive(Record, State, Clone, Copy, PartialEq, Debug)]
#[record(crate = crate)]
pub(super) struct Point {
    /// To the right.
    x: i32,
    y: i32,
}

#[derive(Record, State, Clone, PartialEq, Debug)]
#[record(crate = crate)]
struct Payment {
    account: u64,
    note: String,
    at: Option<Point>,
    lines: Vec<Line>,
    cents: i64,
}

#[derive(Record, Clone, PartialEq, Debug)]
#[record(crate = crate)]
struct Line(String, u32);

#[derive(Record, Key, Clone, PartialEq, Debug)]
#[record(crate = crate)]
struct Wrapper(u64);

#[derive(Record, Key, Clone, Copy, PartialEq, Debug)]
#[record(crate = crate)]
struct Nothing;

/// All variants are fixed-size, so the enum is.
#[derive(Record, State, Clone, PartialEq, Debug)]
#[record(crate = crate)]
enum Shape {
    Empty,
    Dot(Point),
    Circle {
        /// In the middle.
        center: Point,
        radius: f32,
    },
}

#[derive(Record, Key, Clone, PartialEq, Debug)]
#[record(crate = crate)]
enum Name {
    Anonymous,
    Number(u16),
    Full { first: String, last: String, r#type: u8 },
}

#[derive(Record, Key, Clone, Copy, PartialEq, Eq, Debug)]
#[record(crate = crate, copy)]
enum Color {
    Red,
    Green,
}

#[derive(Record, State, Clone, PartialEq, Debug)]
#[record(crate = crate)]
struct Pair<A, B: Clone, const N: usize> {
    first: A,
    second: B,
    rest: [u8; N],
}

#[derive(Key, Clone, PartialEq, Eq, Debug, Record)]
#[record(crate = crate)]
struct Place<K> {
    city: K,
    floor: u8,
    color: Color,
}

#[derive(Key, Record, Clone, Copy, PartialEq, Eq, Debug)]
#[record(crate = crate, copy)]
struct Cell {
    row: u32,
    column: u32,
}

fn point() -> impl Strategy<Value = Point> + Clone {
    (any::<i32>(), any::<i32>()).prop_map(|(x, y)| Point { x, y })
}

fn payment() -> impl Strategy<Value = Payment> {
    let lines = proptest::collection::vec(("[a-c]{0,3}", any::<u32>()).prop_map(|(a, b)| Line(a, b)), 0..4);
    let fields = (any::<u64>(), ".{0,6}", proptest::option::of(point()), lines, any::<i64>());
    fields.prop_map(|(account, note, at, lines, cents)| Payment { account, note, at, lines, cents })
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Empty),
        point().prop_map(Shape::Dot),
        (point(), any::<f32>()).prop_map(|(center, radius)| Shape::Circle { center, radius }),
    ]
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        Just(Name::Anonymous),
        (0u16..3).prop_map(Name::Number),
        ("[ab]{0,2}", "[ab]{0,2}", 0u8..2).prop_map(|(first, last, r#type)| Name::Full { first, last, r#type }),
    ]
}

fn color() -> impl Strategy<Value = Color> {
    prop_oneof![Just(Color::Red), Just(Color::Green)]
}

fn place() -> impl Strategy<Value = Place<String>> {
    ("[ab]{0,2}", 0u8..2, color()).prop_map(|(city, floor, color)| Place { city, floor, color })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn derived_records_keep_their_bytes(
        payment in payment(), shape in shape(), name in name(), color in color(), place in place(), noise: Vec<u8>,
    ) {
        hold(&payment, &noise)?;
        hold(&shape, &noise)?;
        hold(&name, &noise)?;
        hold(&color, &noise)?;
        hold(&place, &noise)?;
        hold(&Wrapper(payment.account), &noise)?;
        hold(&Nothing, &noise)?;
        hold(&Pair { first: payment.clone(), second: shape.clone(), rest: [7, 8] }, &noise)?;
        hold(&vec![(payment.at, Some(payment))], &noise)?;
        hold(&[shape.clone(), shape], &noise)?;
    }

    #[test]
    fn derived_keys_are_canonical(
        names in (name(), name()), places in (place(), place()), colors in (color(), color()), numbers: (u64, u64),
    ) {
        canonical(&names.0, &names.1)?;
        canonical(&places.0, &places.1)?;
        canonical(&colors.0, &colors.1)?;
        canonical(&Wrapper(numbers.0), &Wrapper(numbers.1))?;
        canonical(&Nothing, &Nothing)?;
        canonical(&(names.0, colors.0), &(names.1, colors.1))?;
    }
}

#[test]
fn whether_a_derived_type_is_fixed_size_follows_from_its_fields() {
    assert_eq!(<Point as Record>::FIXED_SIZE, Some(8));
    assert_eq!(<Payment as Record>::FIXED_SIZE, None);
    assert_eq!(<Shape as Record>::FIXED_SIZE, Some(13));
    assert_eq!(<Name as Key>::FIXED_SIZE, None);
    assert_eq!(<Color as Key>::FIXED_SIZE, Some(1));
    assert_eq!(<Pair<u8, Point, 3> as Record>::FIXED_SIZE, Some(12));
    assert_eq!(<Pair<String, Point, 3> as Record>::FIXED_SIZE, None);
    assert_eq!(<Nothing as Record>::FIXED_SIZE, Some(0));
}

#[test]
fn a_view_has_the_fields_of_its_type() {
    let payment = Payment {
        account: 7,
        note: "rent".into(),
        at: Some(Point { x: 1, y: -1 }),
        lines: vec![Line("a".into(), 1), Line("bc".into(), 2)],
        cents: -5,
    };
    let bytes = encoded(&payment);
    let view: PaymentView<'_> = Payment::view(&bytes);
    assert_eq!((view.account, view.note, view.cents), (7, "rent", -5));
    assert_eq!(view.at, Some(PointView { x: 1, y: -1 }));
    assert_eq!(view.lines.get(1), Some(LineView("bc", 2)));
    let shown = r#"PaymentView { account: 7, note: "rent", at: Some(PointView { x: 1, y: -1 }), lines: [LineView("a", 1), LineView("bc", 2)], cents: -5 }"#;
    assert_eq!(format!("{view:?}"), shown);

    let bytes = encoded(&Name::Full { first: "Ada".into(), last: "L".into(), r#type: 3 });
    let NameView::Full { first, last, r#type } = <Name as Record>::view(&bytes) else { panic!("another variant") };
    assert_eq!((first, last, r#type), ("Ada", "L", 3));
    assert!(matches!(Shape::view(&encoded(&Shape::Empty)), ShapeView::Empty));
    assert_eq!(<Color as Record>::view(&encoded(&Color::Green)), Color::Green);
}

#[test]
fn a_derived_key_is_looked_up_by_its_borrowed_form() {
    let owned = Place { city: String::from("Ulm"), floor: 2, color: Color::Green };
    let borrowed = PlaceRef { city: "Ulm", floor: 2, color: Color::Green };
    let mut bytes = Vec::new();
    <Place<String>>::encode_ref(borrowed, &mut bytes);
    assert_eq!(bytes, key_bytes(&owned));
    assert_eq!(<Place<String>>::hash_ref(borrowed), owned.stable_hash());
    assert_eq!(<Place<String> as Key>::view(&bytes), borrowed);
    assert_eq!(Cell { row: 7, column: 1 }.stable_hash(), (1u64 << 32 | 7).stable_hash());
    assert_eq!(NameRef::Number(7), Name::Number(7).to_ref());
}

#[derive(Record, PartialEq, Debug, Clone)]
#[record(crate = crate, rename = "Account")]
struct AccountV1 {
    #[record(id = 1)]
    number: u64,
    #[record(id = 2)]
    name: String,
    closed: bool,
}

#[derive(Record, PartialEq, Debug, Clone)]
#[record(crate = crate, rename = "Account")]
struct AccountV2 {
    #[record(id = 2)]
    owner: String,
    #[record(id = 1)]
    number: u64,
    #[record(default)]
    tags: Vec<String>,
    #[record(default = 12 * 100)]
    limit: i64,
    #[record(rename = "closed")]
    is_closed: bool,
}

#[test]
fn attributes_name_fields_across_versions() {
    let fields = |schema: Schema| match schema {
        Schema::Struct { name, fields } => {
            (name, fields.into_iter().map(|f| (f.id, f.name, f.default)).collect::<Vec<_>>())
        }
        other => panic!("{other} is no struct"),
    };
    let closed = Field::id_of("closed");
    let v1 = vec![(1, "number".into(), None), (2, "name".into(), None), (closed, "closed".into(), None)];
    assert_eq!(fields(AccountV1::schema()), ("Account".into(), v1));
    let v2 = vec![
        (2, "owner".into(), None),
        (1, "number".into(), None),
        (Field::id_of("tags"), "tags".into(), Some(vec![0; 4])),
        (Field::id_of("limit"), "limit".into(), Some(1200i64.to_le_bytes().to_vec())),
        (closed, "closed".into(), None),
    ];
    assert_eq!(fields(AccountV2::schema()), ("Account".into(), v2));
    assert!(matches!(Migration::plan(&AccountV1::schema(), &AccountV2::schema()), Ok(Some(_))));
    assert!(matches!(Migration::plan(&AccountV1::schema(), &AccountV1::schema()), Ok(None)));
    let back = Migration::plan(&AccountV2::schema(), &AccountV1::schema());
    assert!(back.is_ok(), "what was added may be dropped again");
}

#[test]
fn derived_bytes_and_fingerprints_are_those_of_format_version_1() {
    golden(
        Point { x: 1, y: -1 },
        &[1, 0, 0, 0, 255, 255, 255, 255],
        r#"{"x":1,"y":-1}"#,
        "Point {x: i32, y: i32}",
        0x2df5_c3cf_ab97_4960,
    );
    golden(
        AccountV1 { number: 7, name: "Ada".into(), closed: true },
        &[7, 0, 0, 0, 0, 0, 0, 0, 1, b'A', b'd', b'a'],
        r#"{"closed":true,"name":"Ada","number":7}"#,
        "Account {number: u64, name: text, closed: bool}",
        0x25c8_55f1_0f85_d124,
    );
    golden(Wrapper(7), &[7, 0, 0, 0, 0, 0, 0, 0], "7", "Wrapper {0: u64}", 0x14c5_6f0d_6a80_e3d2);
    golden(Line("a".into(), 1), &[1, 0, 0, 0, b'a'], r#"["a",1]"#, "Line {0: text, 1: u32}", 0x68ef_c240_103d_c002);
    golden(Nothing, &[], "[]", "Nothing", 0xd9f7_dd68_223f_c07f);
    let shape =
        "Shape {Empty | Dot {0: Point {x: i32, y: i32}} | Circle {center: Point {x: i32, y: i32}, radius: f32}}";
    golden(Shape::Empty, &[0; 13], "\"Empty\"", shape, 0xc094_c203_9415_2b5d);
    let dot = [1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    golden(Shape::Dot(Point { x: 1, y: 2 }), &dot, r#"{"Dot":{"x":1,"y":2}}"#, shape, 0xc094_c203_9415_2b5d);
    golden(Color::Green, &[1], "\"Green\"", "Color {Red | Green}", 0x242f_b404_a4b8_6608);
    let name = Name::Full { first: "Ada".into(), last: "L".into(), r#type: 3 };
    golden(
        name,
        &[2, 3, 3, 0, 0, 0, b'A', b'd', b'a', b'L'],
        r#"{"Full":{"first":"Ada","last":"L","type":3}}"#,
        "Name {Anonymous | Number {0: u16} | Full {first: text, last: text, type: u8}}",
        0x60cf_440d_0074_aef9,
    );
}

#[test]
fn what_is_wrong_with_a_derived_type_is_said_by_field() {
    refused::<AccountV1>(&[0, 0, 0, 0, 0, 0, 0, 0, 9], "closed: bool 9 is neither 0 nor 1");
    refused::<Color>(&[2], "tag 2 is not below 2");
    refused::<Color>(&[], "a tag is missing");
    refused::<Name>(&[1, 7], "fields of 1 bytes, not 2");
    refused::<Name>(&[2, 0, 1, 0, 0, 0, 0xff], "Full: first: no text: invalid utf-8 sequence of 1 bytes from index 0");
    refused::<Shape>(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], "bytes after the fields of variant 0 are not zero");
    refused::<Shape>(&[0; 12], "a tag with fields of 12 bytes, not 13");
}

#[derive(Record, PartialEq, Debug, Clone)]
#[record(crate = crate, rename = "Event")]
enum EventV1 {
    Opened(AccountV1),
    Paid { cents: i64 },
    Closed,
}

#[derive(Record, PartialEq, Debug, Clone)]
#[record(crate = crate, rename = "Event")]
enum EventV2 {
    Closed,
    #[record(rename = "Paid")]
    Transferred {
        #[record(default = 'e')]
        currency: char,
        cents: i64,
    },
    Opened(AccountV2),
    Frozen([u64; 4]),
}

/// An enum that stays fixed-size and grows, inside everything that depends on its size.
#[derive(Record, PartialEq, Debug, Clone)]
#[record(crate = crate, rename = "Level")]
enum LevelV1 {
    Low(u8),
    High,
}

#[derive(Record, PartialEq, Debug, Clone)]
#[record(crate = crate, rename = "Level")]
enum LevelV2 {
    Low(u8),
    High,
    Exact(u64),
}

impl AccountV1 {
    fn migrated(self) -> AccountV2 {
        AccountV2 { owner: self.name, number: self.number, tags: vec![], limit: 1200, is_closed: self.closed }
    }
}

impl EventV1 {
    fn migrated(self) -> EventV2 {
        match self {
            Self::Opened(account) => EventV2::Opened(account.migrated()),
            Self::Paid { cents } => EventV2::Transferred { currency: 'e', cents },
            Self::Closed => EventV2::Closed,
        }
    }
}

impl LevelV1 {
    fn migrated(self) -> LevelV2 {
        match self {
            Self::Low(n) => LevelV2::Low(n),
            Self::High => LevelV2::High,
        }
    }
}

fn event() -> impl Strategy<Value = EventV1> {
    let account = (any::<u64>(), ".{0,4}", any::<bool>());
    prop_oneof![
        account.prop_map(|(number, name, closed)| EventV1::Opened(AccountV1 { number, name, closed })),
        any::<i64>().prop_map(|cents| EventV1::Paid { cents }),
        Just(EventV1::Closed),
    ]
}

fn level() -> impl Strategy<Value = LevelV1> {
    prop_oneof![any::<u8>().prop_map(LevelV1::Low), Just(LevelV1::High)]
}

fn migrate<Old: Record, New: Record + PartialEq + fmt::Debug>(old: &Old, new: &New) -> Result<(), TestCaseError> {
    let migration = Migration::plan(&Old::schema(), &New::schema()).unwrap().expect("other bytes");
    let bytes = encoded(old);
    let mut out = Vec::new();
    prop_assert_eq!(migration.apply(&bytes, &mut out), Ok(()));
    prop_assert_eq!(&New::decode(&out), new);
    prop_assert_eq!(out, encoded(new));
    for end in 0..bytes.len().min(40) {
        let _ = migration.apply(&bytes[..end], &mut Vec::new());
        let mut wrong = bytes.clone();
        wrong[end] ^= 0x81;
        let _ = migration.apply(&wrong, &mut Vec::new());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn an_old_value_migrates_to_what_its_fields_say(
        events in proptest::collection::vec(event(), 0..4), levels in [level(), level()], level in level(), n: u16,
    ) {
        let (event, new) = (events.first().cloned(), events.first().cloned().map(EventV1::migrated));
        migrate(&event, &new)?;
        migrate(&(n, event), &(n, new))?;
        migrate(&events, &events.iter().cloned().map(EventV1::migrated).collect::<Vec<_>>())?;
        migrate(&level, &level.clone().migrated())?;
        migrate(&(n, level.clone()), &(n, level.clone().migrated()))?;
        migrate(&Some(level.clone()), &Some(level.clone().migrated()))?;
        migrate(&None::<LevelV1>, &None::<LevelV2>)?;
        migrate(&levels, &levels.clone().map(LevelV1::migrated))?;
        migrate(&levels.to_vec(), &levels.iter().cloned().map(LevelV1::migrated).collect::<Vec<_>>())?;
        migrate(&vec![vec![level.clone()]], &vec![vec![level.migrated()]])?;
    }
}
