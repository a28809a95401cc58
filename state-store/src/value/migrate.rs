//! From the bytes of an older version of a type to those of the present one, by the two schemas alone.
//!
//! Fields and variants are matched by id: they may be renamed, reordered and removed, and fields added when they have a
//! default. Everything else is refused when the migration is planned, before a byte is read, by naming the field and
//! both types. A removed variant is refused too, because values of it may be stored.
//!
//! A restore does not migrate: a stored state whose schema is not the present one is refused, also where a migration could
//! be planned.
//!
//! Invariants
//! * I1. What [`Migration::apply`] appends for checked bytes is an encoding of the new type.
//! * I2. Where the bytes of a part stay the same they are copied without being looked at.

use super::parts::{Layout, Reader, check_variant, unknown_tag};
use super::*;

/// How to rewrite values of an old schema.
///
/// ```
/// use millstream_state::Schema;
/// use millstream_state::value::{Field, Migration};
///
/// let u16 = || Schema::Unsigned(2);
/// let old = Schema::structure("Point", vec![Field::named("x", u16()), Field::named("y", u16())]);
/// let new = Schema::structure("Point", vec![Field::named("z", u16()).or(vec![9, 0]), Field::named("x", u16())]);
///
/// let migration = Migration::plan(&old, &new).unwrap().expect("other bytes");
/// let mut out = Vec::new();
/// migration.apply(&[1, 0, 2, 0], &mut out).unwrap();
/// assert_eq!(out, [9, 0, 1, 0]);
/// ```
#[derive(Clone, Debug)]
pub struct Migration(Step);

impl Migration {
    /// Plans how values of `old` become values of `new`; `None` when their bytes are the same.
    ///
    /// # Errors
    /// Why they cannot: the field and both types.
    pub fn plan(old: &Schema, new: &Schema) -> Result<Option<Self>, String> {
        match Step::plan("", old, new)? {
            Step::Keep => Ok(None),
            step => Ok(Some(Self(step))),
        }
    }

    /// Appends to `out` the new encoding of the value that `bytes` hold in the old one.
    ///
    /// # Errors
    /// [`BadBytes`] when they cannot be taken apart; `out` then ends in a part of a value.
    pub fn apply(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), BadBytes> {
        self.0.apply(bytes, out)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Keep,
    Fields(Fields),
    /// By old tag: the new one, and the fields.
    Variants {
        old_size: Option<usize>,
        new_size: Option<usize>,
        variants: Vec<(u8, Fields)>,
    },
    Items {
        old_size: Option<usize>,
        new_size: Option<usize>,
        step: Box<Step>,
    },
}

/// How to put new fields together.
#[derive(Clone, Debug, Default)]
struct Fields {
    old_sizes: Vec<Option<usize>>,
    new_sizes: Vec<Option<usize>>,
    /// For each new field.
    sources: Vec<Source>,
}

#[derive(Clone, Debug)]
enum Source {
    Old(usize, Step),
    Default(Vec<u8>),
}

impl Step {
    fn plan(path: &str, old: &Schema, new: &Schema) -> Result<Self, String> {
        let variants = |variants: Vec<(u8, Fields)>| {
            let (old_size, new_size) = (old.fixed_size(), new.fixed_size());
            let keep = |(tag, (new_tag, fields)): (usize, &(u8, Fields))| tag == usize::from(*new_tag) && fields.keep();
            if old_size == new_size && variants.iter().enumerate().all(keep) {
                return Self::Keep;
            }
            Self::Variants { old_size, new_size, variants }
        };
        Ok(match (old, new) {
            (Schema::Optional(old), Schema::Optional(new)) => {
                let some = Self::plan(&join(path, "some"), old, new)?;
                variants(vec![(0, Fields::default()), (1, Fields::in_place(&[old], &[new], vec![some]))])
            }
            (Schema::List(old), Schema::List(new)) => match Self::plan(&join(path, "item"), old, new)? {
                Self::Keep => Self::Keep,
                step => Self::Items { old_size: old.fixed_size(), new_size: new.fixed_size(), step: Box::new(step) },
            },
            (Schema::Array(old, count), Schema::Array(new, new_count)) if count == new_count => {
                match Self::plan(&join(path, "item"), old, new)? {
                    Self::Keep => Self::Keep,
                    step => {
                        let count = *count as usize;
                        Self::Fields(Fields::in_place(&vec![&**old; count], &vec![&**new; count], vec![step; count]))
                    }
                }
            }
            (Schema::Tuple(old), Schema::Tuple(new)) if old.len() == new.len() => {
                let step = |(at, (old, new)): (usize, (_, _))| Self::plan(&join(path, &at.to_string()), old, new);
                let steps = old.iter().zip(new).enumerate().map(step).collect::<Result<_, _>>()?;
                Fields::in_place(&Vec::from_iter(old), &Vec::from_iter(new), steps).step()
            }
            (Schema::Struct { fields: old, .. }, Schema::Struct { fields: new, .. }) => {
                Fields::by_id(path, old, new)?.step()
            }
            (Schema::Enum { variants: olds, .. }, Schema::Enum { variants: news, .. }) => {
                variants(olds.iter().map(|old| plan_variant(path, old, news)).collect::<Result<_, _>>()?)
            }
            _ if old == new => Self::Keep,
            _ => {
                let what = if path.is_empty() { "the type".into() } else { format!("`{path}`") };
                return Err(format!("{what} was {old} and is now {new}"));
            }
        })
    }

    fn apply(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), BadBytes> {
        match self {
            Self::Keep => out.extend_from_slice(bytes),
            Self::Fields(fields) => {
                let reader = Layout::of(&fields.old_sizes).check_and_read(bytes)?;
                fields.apply(reader, out)?;
            }
            Self::Variants { old_size, new_size, variants } => {
                let (new_tag, fields) = bytes
                    .first()
                    .and_then(|&tag| variants.get(usize::from(tag)))
                    .ok_or_else(|| unknown_tag(bytes, variants.len()))?;
                let reader = check_variant(bytes, *old_size, Layout::of(&fields.old_sizes))?;
                let start = out.len();
                out.push(*new_tag);
                fields.apply(reader, out)?;
                if let Some(size) = new_size {
                    out.resize(start + size, 0);
                }
            }
            Self::Items { old_size, new_size, step } => {
                let items = list::items(*old_size, bytes)?;
                list::append(*new_size, items.len(), out, |i, out| step.apply(items[i], out))?;
            }
        }
        Ok(())
    }
}

impl Fields {
    fn by_id(path: &str, old: &[Field], new: &[Field]) -> Result<Self, String> {
        let source = |field: &Field| {
            let path = join(path, &field.name);
            match (old.iter().position(|known| known.id == field.id), &field.default) {
                (Some(at), _) => Ok(Source::Old(at, Step::plan(&path, &old[at].schema, &field.schema)?)),
                (None, Some(default)) => Ok(Source::Default(default.clone())),
                (None, None) => Err(format!("`{path}: {}` is new and has no `#[record(default)]`", field.schema)),
            }
        };
        let sizes = |fields: &[Field]| fields.iter().map(|field| field.schema.fixed_size()).collect();
        let sources = new.iter().map(source).collect::<Result<_, _>>()?;
        Ok(Self { old_sizes: sizes(old), new_sizes: sizes(new), sources })
    }

    /// Fields that stay where they are, each changed by its step.
    fn in_place(old: &[&Schema], new: &[&Schema], steps: Vec<Step>) -> Self {
        let sizes = |parts: &[&Schema]| parts.iter().map(|part| part.fixed_size()).collect();
        let sources = steps.into_iter().enumerate().map(|(at, step)| Source::Old(at, step)).collect();
        Self { old_sizes: sizes(old), new_sizes: sizes(new), sources }
    }

    /// Whether old and new bytes are the same.
    fn keep(&self) -> bool {
        let in_place = |(at, source): (usize, &Source)| matches!(source, Source::Old(from, Step::Keep) if *from == at);
        self.sources.len() == self.old_sizes.len() && self.sources.iter().enumerate().all(in_place)
    }

    fn step(self) -> Step {
        if self.keep() { Step::Keep } else { Step::Fields(self) }
    }

    fn apply(&self, mut reader: Reader<'_>, out: &mut Vec<u8>) -> Result<(), BadBytes> {
        let old: Vec<&[u8]> = self.old_sizes.iter().map(|size| reader.next(*size)).collect();
        let mut writer = Layout::of(&self.new_sizes).write(out);
        let mut field = Vec::new();
        for (source, size) in self.sources.iter().zip(&self.new_sizes) {
            match source {
                Source::Default(bytes) => writer.encoded(*size, bytes),
                Source::Old(at, Step::Keep) => writer.encoded(*size, old[*at]),
                Source::Old(at, step) => {
                    field.clear();
                    step.apply(old[*at], &mut field)?;
                    writer.encoded(*size, &field);
                }
            }
        }
        Ok(())
    }
}

/// The new tag and the fields of an old variant.
fn plan_variant(path: &str, old: &Field, news: &[Field]) -> Result<(u8, Fields), String> {
    let path = join(path, &old.name);
    let gone = || format!("variant `{path}` is gone, but values of it may be stored");
    let tag = news.iter().position(|new| new.id == old.id).ok_or_else(gone)?;
    match (&old.schema, &news[tag].schema) {
        (Schema::Struct { fields: old, .. }, Schema::Struct { fields: new, .. }) => {
            Ok((u8::try_from(tag).map_err(|_| gone())?, Fields::by_id(&path, old, new)?))
        }
        _ => Err(format!("variant `{path}` is no struct")),
    }
}

fn join(path: &str, part: &str) -> String {
    if path.is_empty() { part.into() } else { format!("{path}.{part}") }
}
