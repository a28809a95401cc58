//! Where two schemas differ, in the words of whoever wrote the types: the first field or variant that is not what it was.
//!
//! Invariants
//! * I1. There is a difference exactly when the schemas are not equal.

use super::{Field, Schema};

/// The first difference below `path`, which is empty at the top.
pub(super) fn first(path: &str, old: &Schema, new: &Schema) -> Option<String> {
    if old == new {
        return None;
    }
    let within = match (old, new) {
        (Schema::Optional(old), Schema::Optional(new)) => first(&join(path, "some"), old, new),
        (Schema::List(old), Schema::List(new)) => first(&join(path, "item"), old, new),
        (Schema::Array(old, count), Schema::Array(new, new_count)) if count == new_count => {
            first(&join(path, "item"), old, new)
        }
        (Schema::Tuple(old), Schema::Tuple(new)) if old.len() == new.len() => {
            let mut parts = old.iter().zip(new).enumerate();
            parts.find_map(|(at, (old, new))| first(&join(path, &at.to_string()), old, new))
        }
        (Schema::Struct { name: was, fields: old }, Schema::Struct { name: is, fields: new }) => {
            of_named(path, old, new).or_else(|| renamed(path, was, is))
        }
        (Schema::Enum { name: was, variants: old }, Schema::Enum { name: is, variants: new }) => {
            of_named(path, old, new).or_else(|| renamed(path, was, is))
        }
        _ => None,
    };
    Some(within.unwrap_or_else(|| format!("{} was {old} and is now {new}", place(path))))
}

/// Of fields or variants, which are known by their ids.
fn of_named(path: &str, old: &[Field], new: &[Field]) -> Option<String> {
    let is_in = |fields: &[Field], id: u32| fields.iter().any(|field| field.id == id);
    let quoted = |field: &Field| format!("`{}: {}`", join(path, &field.name), field.schema);
    let added = || new.iter().find(|field| !is_in(old, field.id)).map(|field| format!("{} is new", quoted(field)));
    let gone = || old.iter().find(|field| !is_in(new, field.id)).map(|field| format!("{} is gone", quoted(field)));
    let changed = || {
        old.iter().find_map(|old| {
            let new = new.iter().find(|new| new.id == old.id)?;
            let path = join(path, &old.name);
            first(&path, &old.schema, &new.schema)
                .or_else(|| (old.name != new.name).then(|| format!("`{path}` is now called `{}`", new.name)))
        })
    };
    let moved = || old.iter().zip(new).find(|(old, new)| old.id != new.id);
    let order = || moved().map(|(_, new)| format!("`{}` stands in another place", join(path, &new.name)));
    changed().or_else(added).or_else(gone).or_else(order)
}

fn renamed(path: &str, was: &str, is: &str) -> Option<String> {
    (was != is).then(|| format!("{} was called {was} and is now called {is}", place(path)))
}

fn place(path: &str) -> String {
    if path.is_empty() { "the type".into() } else { format!("`{path}`") }
}

fn join(path: &str, part: &str) -> String {
    if path.is_empty() { part.into() } else { format!("{path}.{part}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const U64: Schema = Schema::Unsigned(8);

    fn payment(fields: &[(u32, &str, Schema)]) -> Schema {
        let field = |(id, name, schema): &(u32, &str, Schema)| Field::new(*id, name, schema.clone());
        Schema::structure("Payment", fields.iter().map(field).collect())
    }

    #[track_caller]
    fn check(old: &Schema, new: &Schema, expected: Option<&str>) {
        assert_eq!(Schema::difference(old, new).as_deref(), expected);
        assert_eq!(old == new, expected.is_none(), "I1");
    }

    #[test]
    fn the_field_that_differs_is_named_with_both_types() {
        let old = payment(&[(1, "account", U64), (2, "note", Schema::Text)]);
        let note = |name| (2, name, Schema::Text);
        check(&old, &old, None);
        check(&old, &payment(&[(1, "account", Schema::Text), note("note")]), Some("`account` was u64 and is now text"));
        check(&old, &payment(&[(1, "account", U64), note("note"), (3, "cents", U64)]), Some("`cents: u64` is new"));
        check(&old, &payment(&[(1, "account", U64)]), Some("`note: text` is gone"));
        check(&old, &payment(&[(1, "account", U64), note("memo")]), Some("`note` is now called `memo`"));
        check(&old, &payment(&[note("note"), (1, "account", U64)]), Some("`note` stands in another place"));
        check(&old, &U64, Some("the type was Payment {account: u64, note: text} and is now u64"));
        let Schema::Struct { fields, .. } = old.clone() else { unreachable!("it is one") };
        let other = Schema::structure("Order", fields);
        check(&old, &other, Some("the type was called Payment and is now called Order"));
    }

    #[test]
    fn a_difference_is_found_however_deep_it_lies() {
        let deep = |inner: Schema| {
            let tuple = Schema::Tuple(vec![Schema::Array(Box::new(inner), 3), U64]);
            payment(&[(1, "lines", Schema::List(Box::new(Schema::Optional(Box::new(tuple)))))])
        };
        check(&deep(Schema::Bool), &deep(Schema::Text), Some("`lines.item.some.0.item` was bool and is now text"));
        let array = |count| Schema::Array(Box::new(U64), count);
        check(&array(2), &array(3), Some("the type was [u64; 2] and is now [u64; 3]"));
    }

    #[test]
    fn a_variant_more_or_less_is_a_difference() {
        let kind = |names: &[&str]| {
            let variant = |name: &&str| Field::named(name, Schema::structure(name, vec![]));
            Schema::enumeration("Kind", names.iter().map(variant).collect())
        };
        check(&kind(&["A"]), &kind(&["A", "B"]), Some("`B: B` is new"));
        check(&kind(&["A", "B"]), &kind(&["B"]), Some("`A: A` is gone"));
    }

    #[test]
    fn a_default_is_no_difference() {
        let old = Schema::structure("Payment", vec![Field::named("cents", U64)]);
        check(&old, &Schema::structure("Payment", vec![Field::named("cents", U64).or(vec![0; 8])]), None);
    }
}
