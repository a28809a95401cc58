//! What a derive is applied to, with its attributes read and misuse refused.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use std::collections::HashMap;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{
    Attribute, Data, DeriveInput, Expr, Fields, Generics, Ident, LitInt, LitStr, Member, Result, Type, Visibility,
};

/// A tag is one byte.
const VARIANTS_MAX: usize = 256;

/// A struct or an enum.
pub(crate) struct Input {
    /// Path of the crate `millstream_state`.
    pub(crate) state: TokenStream,
    pub(crate) vis: Visibility,
    pub(crate) ident: Ident,
    pub(crate) generics: Generics,
    /// Name in the schema.
    pub(crate) name: String,
    /// Whether the type is its own view.
    pub(crate) is_copy: bool,
    pub(crate) is_enum: bool,
    /// The variants of an enum; of a struct the one it is.
    pub(crate) variants: Vec<Variant>,
}

/// A variant, or a whole struct.
pub(crate) struct Variant {
    pub(crate) ident: Ident,
    pub(crate) name: String,
    pub(crate) id: Option<u32>,
    pub(crate) docs: Vec<Attribute>,
    pub(crate) style: Style,
    pub(crate) fields: Vec<Field>,
}

/// How fields are declared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Named,
    Tuple,
    Unit,
}

/// A field.
pub(crate) struct Field {
    pub(crate) vis: Visibility,
    pub(crate) member: Member,
    pub(crate) ty: Type,
    pub(crate) name: String,
    pub(crate) id: Option<u32>,
    pub(crate) default: Option<TokenStream>,
    pub(crate) docs: Vec<Attribute>,
    /// What the field is called in generated code.
    pub(crate) local: Ident,
}

impl Input {
    pub(crate) fn parse(item: &DeriveInput) -> Result<Self> {
        let options = Options::parse(&item.attrs, Place::Type)?;
        if let Some(lifetime) = item.generics.lifetimes().next() {
            return Err(borrows(lifetime.span()));
        }
        let (is_enum, variants) = match &item.data {
            Data::Struct(data) => (false, vec![Variant::parse(&item.ident, &data.fields, Options::default(), &[])?]),
            Data::Enum(data) => {
                let variant = |v: &syn::Variant| {
                    Variant::parse(&v.ident, &v.fields, Options::parse(&v.attrs, Place::Variant)?, &v.attrs)
                };
                (true, data.variants.iter().map(variant).collect::<Result<Vec<_>>>()?)
            }
            Data::Union(data) => {
                let message = "a union does not say which of its fields is valid; use an enum";
                return Err(syn::Error::new(data.union_token.span, message));
            }
        };
        if variants.is_empty() {
            return Err(syn::Error::new(item.ident.span(), "an enum without variants has no values"));
        }
        if variants.len() > VARIANTS_MAX {
            let message = format!("{} variants are more than the {VARIANTS_MAX} a tag can tell apart", variants.len());
            return Err(syn::Error::new(item.ident.span(), message));
        }
        refuse_twins(variants.iter().map(|v| (v.id, v.name.as_str(), v.ident.span())))?;
        let state = options.state.map_or_else(|| quote!(::millstream::__private::state), |path| quote!(#path));
        Ok(Self {
            state,
            vis: item.vis.clone(),
            ident: item.ident.clone(),
            generics: item.generics.clone(),
            name: options.rename.unwrap_or_else(|| plain(&item.ident)),
            is_copy: options.is_copy,
            is_enum,
            variants,
        })
    }

    /// Whether a type says the same whatever the parameters are.
    pub(crate) fn is_concrete(&self, ty: &Type) -> bool {
        let mut search = Mentions { generics: &self.generics, found: false };
        search.visit_type(ty);
        !search.found
    }

    /// All fields of all variants.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &Field> {
        self.variants.iter().flat_map(|variant| &variant.fields)
    }
}

impl Variant {
    fn parse(ident: &Ident, fields: &Fields, options: Options, attrs: &[Attribute]) -> Result<Self> {
        let style = match fields {
            Fields::Named(_) => Style::Named,
            Fields::Unnamed(_) => Style::Tuple,
            Fields::Unit => Style::Unit,
        };
        let fields = fields.iter().enumerate().map(|(i, field)| Field::parse(i, field)).collect::<Result<Vec<_>>>()?;
        refuse_twins(fields.iter().map(|f| (f.id, f.name.as_str(), f.member.span())))?;
        let name = options.rename.unwrap_or_else(|| plain(ident));
        Ok(Self { ident: ident.clone(), name, id: options.id, docs: docs(attrs), style, fields })
    }
}

impl Field {
    fn parse(at: usize, field: &syn::Field) -> Result<Self> {
        let options = Options::parse(&field.attrs, Place::Field)?;
        let mut references = References(None);
        references.visit_type(&field.ty);
        if let Some(span) = references.0 {
            return Err(borrows(span));
        }
        let index = u32::try_from(at).expect("few fields");
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(syn::Index { index, span: field.ty.span() }),
        };
        Ok(Self {
            vis: field.vis.clone(),
            member,
            ty: field.ty.clone(),
            name: options.rename.unwrap_or_else(|| field.ident.as_ref().map_or_else(|| at.to_string(), plain)),
            id: options.id,
            default: options.default,
            docs: docs(&field.attrs),
            local: format_ident!("field_{at}", span = Span::mixed_site()),
        })
    }
}

/// Where an attribute stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Type,
    Variant,
    Field,
}

/// What the `#[record(..)]` attributes of one place say.
#[derive(Default)]
struct Options {
    state: Option<syn::Path>,
    is_copy: bool,
    rename: Option<String>,
    id: Option<u32>,
    default: Option<TokenStream>,
}

impl Options {
    fn parse(attrs: &[Attribute], place: Place) -> Result<Self> {
        let mut options = Self::default();
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("record")) {
            attr.parse_nested_meta(|meta| {
                let is = |name: &str, places: &[Place]| meta.path.is_ident(name) && places.contains(&place);
                if is("crate", &[Place::Type]) {
                    options.state = Some(meta.value()?.parse()?);
                } else if is("copy", &[Place::Type]) {
                    options.is_copy = true;
                } else if is("rename", &[Place::Type, Place::Variant, Place::Field]) {
                    options.rename = Some(meta.value()?.parse::<LitStr>()?.value());
                } else if is("id", &[Place::Variant, Place::Field]) {
                    options.id = Some(meta.value()?.parse::<LitInt>()?.base10_parse()?);
                } else if is("default", &[Place::Field]) {
                    options.default = Some(match meta.value() {
                        Ok(value) => {
                            let value: Expr = value.parse()?;
                            quote!(#value)
                        }
                        Err(_) => quote!(::core::default::Default::default()),
                    });
                } else {
                    return Err(meta.error(match place {
                        Place::Type => "a type takes `copy`, `rename = \"..\"` and `crate = path`",
                        Place::Variant => "a variant takes `id = 3` and `rename = \"..\"`",
                        Place::Field => "a field takes `id = 3`, `rename = \"..\"`, `default` and `default = value`",
                    }));
                }
                Ok(())
            })?;
        }
        Ok(options)
    }
}

/// Finds the first reference in a type.
struct References(Option<Span>);

impl<'ast> Visit<'ast> for References {
    fn visit_type_reference(&mut self, reference: &'ast syn::TypeReference) {
        self.0.get_or_insert(reference.span());
    }
}

/// Looks for parameters in a type.
struct Mentions<'g> {
    generics: &'g Generics,
    found: bool,
}

impl<'ast> Visit<'ast> for Mentions<'_> {
    fn visit_ident(&mut self, ident: &'ast Ident) {
        self.found |= self.generics.type_params().any(|param| param.ident == *ident)
            || self.generics.const_params().any(|param| param.ident == *ident);
    }
}

fn borrows(span: Span) -> syn::Error {
    let message = "what is stored or sent owns what it holds: use `String` or `Text` instead of `&str`, \
                   `Vec<u8>` or `Bytes` instead of `&[u8]`";
    syn::Error::new(span, message)
}

/// Refuses two of one id or one name.
fn refuse_twins<'a>(items: impl Iterator<Item = (Option<u32>, &'a str, Span)>) -> Result<()> {
    let (mut ids, mut names) = (HashMap::new(), HashMap::new());
    for (id, name, span) in items {
        if let Some(id) = id
            && let Some(other) = ids.insert(id, name)
        {
            return Err(syn::Error::new(span, format!("id {id} is already that of `{other}`")));
        }
        if names.insert(name, ()).is_some() {
            return Err(syn::Error::new(span, format!("there is already a `{name}`")));
        }
    }
    Ok(())
}

fn docs(attrs: &[Attribute]) -> Vec<Attribute> {
    attrs.iter().filter(|attr| attr.path().is_ident("doc")).cloned().collect()
}

/// The name without `r#`.
fn plain(ident: &Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map_or(name.clone(), str::to_owned)
}

/// Commas between tokens.
pub(crate) fn list(tokens: impl IntoIterator<Item = TokenStream>) -> TokenStream {
    let list: Punctuated<TokenStream, syn::Token![,]> = tokens.into_iter().collect();
    quote!(#list)
}
