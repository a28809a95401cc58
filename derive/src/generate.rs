//! The implementations. `Record` and `Key` differ in the names of what they call and in that a key is taken apart in its
//! borrowed form; [`Trait`] holds the difference.
//!
//! A struct is treated as an enum of one variant without a tag. Everything is named by its full path and every local by
//! an identifier of the macro's own, so nothing in the scope of the derive can get in between.

use crate::input::{Field, Input, Style, Variant, list};
use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericParam, Generics, parse_quote};

/// What is implemented.
pub(crate) struct Trait {
    name: &'static str,
    /// The associated type by which values are read.
    view: &'static str,
    /// Methods of the reader and the writer.
    read: &'static str,
    write: &'static str,
    check: &'static str,
    put: &'static str,
}

impl Trait {
    pub(crate) const RECORD: Self =
        Self { name: "Record", view: "View", read: "view", write: "record", check: "check_record", put: "put_record" };
    pub(crate) const KEY: Self =
        Self { name: "Key", view: "Ref", read: "key", write: "key", check: "check_key", put: "put_key" };

    fn is_key(&self) -> bool {
        self.name == "Key"
    }
}

/// `impl State`.
pub(crate) fn implement_state(input: &Input) -> TokenStream {
    let (state, ident) = (&input.state, &input.ident);
    let generics = bounded(&input.generics, &quote!(#state::value::Record));
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics #state::value::State for #ident #ty_generics #where_clause {}
    }
}

/// `impl Record` or `impl Key`, and the type of the view.
pub(crate) fn implement(input: &Input, of: &Trait) -> TokenStream {
    let generator = Generator::new(input, of);
    let (state, ident, name) = (&input.state, &input.ident, &generator.name);
    let (impl_generics, ty_generics, where_clause) = generator.generics.split_for_impl();
    let (view_type, view_declaration) = generator.view_type();
    let view = format_ident!("{}", of.view);
    let (fixed_size, schema, check) = (generator.fixed_size(), generator.schema(), generator.check());
    let (encode, encode_fixed) = (generator.encode(), generator.encode_fixed());
    let read = generator.read(&generator.view_path, &format_ident!("{}", of.read));
    let methods = if of.is_key() {
        let to_ref = generator.to_ref();
        quote! {
            #[inline]
            fn encode_ref(key: Self::Ref<'_>, out: &mut ::std::vec::Vec<u8>) { #encode }
            #[inline(always)]
            fn encode_ref_fixed(key: Self::Ref<'_>, out: &mut [u8]) { #encode_fixed }
            #[inline]
            fn hash_ref(key: Self::Ref<'_>) -> u64 {
                match <Self as #name>::FIXED_SIZE {
                    ::core::option::Option::Some(size) => #state::value::parts::hash_fixed(
                        size,
                        |out| <Self as #name>::encode_ref_fixed(key, out),
                    ),
                    ::core::option::Option::None => #state::value::parts::hash_encoded(
                        |out| <Self as #name>::encode_ref(key, out),
                    ),
                }
            }
            #[inline]
            fn view(bytes: &[u8]) -> Self::Ref<'_> { #read }
            #[inline(always)]
            fn to_ref(&self) -> Self::Ref<'_> { #to_ref }
        }
    } else {
        let decode = generator.read(&quote!(Self), &format_ident!("decode"));
        let read = if input.is_copy { quote!(<Self as #name>::decode(bytes)) } else { read };
        quote! {
            #[inline]
            fn encode(&self, out: &mut ::std::vec::Vec<u8>) { #encode }
            #[inline(always)]
            fn encode_fixed(&self, out: &mut [u8]) { #encode_fixed }
            #[inline]
            fn view(bytes: &[u8]) -> Self::View<'_> { #read }
            #[inline]
            fn decode(bytes: &[u8]) -> Self { #decode }
        }
    };
    quote! {
        #[automatically_derived]
        impl #impl_generics #name for #ident #ty_generics #where_clause {
            const FIXED_SIZE: ::core::option::Option<usize> = #fixed_size;
            type #view<'a> = #view_type;
            fn schema() -> #state::value::Schema { #schema }
            fn check(bytes: &[u8]) -> ::core::result::Result<(), #state::value::BadBytes> { #check }
            #methods
        }
        #view_declaration
    }
}

struct Generator<'i> {
    input: &'i Input,
    of: &'i Trait,
    /// Path of the trait.
    name: TokenStream,
    /// Those of the type, with bounds.
    generics: Generics,
    /// What views are constructed and taken apart by.
    view_path: TokenStream,
    view_ident: Ident,
}

impl<'i> Generator<'i> {
    fn new(input: &'i Input, of: &'i Trait) -> Self {
        let (state, trait_ident) = (&input.state, format_ident!("{}", of.name));
        let name = quote!(#state::value::#trait_ident);
        let mut generics = bounded(&input.generics, &name);
        // Bounds that hold or are an error at the field, and once: what is generated may rely on them.
        let bounds = &mut generics.make_where_clause().predicates;
        for ty in input.fields().map(|field| &field.ty).filter(|ty| input.is_concrete(ty)) {
            let (ty, name) = (at(quote!(#ty), ty.span()), at(name.clone(), ty.span()));
            bounds.push(parse_quote!(#ty: #name));
        }
        let view_ident = format_ident!("{}{}", input.ident, of.view, span = input.ident.span());
        let view_path = if input.is_copy { quote!(Self) } else { quote!(#view_ident) };
        Self { input, of, name, generics, view_path, view_ident }
    }

    fn parts(&self) -> TokenStream {
        let state = &self.input.state;
        quote!(#state::value::parts)
    }

    /// `<Field as Record>::FIXED_SIZE`, its errors pointing at the field's type.
    fn size_of(&self, field: &Field) -> TokenStream {
        let (ty, name) = (&field.ty, &self.name);
        quote_spanned!(ty.span()=> <#ty as #name>::FIXED_SIZE)
    }

    /// The layout of the fields of a variant, as a constant expression.
    fn layout(&self, variant: &Variant) -> TokenStream {
        let (parts, sizes) = (self.parts(), list(variant.fields.iter().map(|field| self.size_of(field))));
        quote!(#parts::Layout::of(&[#sizes]))
    }

    /// `FIXED_SIZE` of this type.
    fn self_size(&self) -> TokenStream {
        let name = &self.name;
        quote!(<Self as #name>::FIXED_SIZE)
    }

    fn fixed_size(&self) -> TokenStream {
        let layouts = self.input.variants.iter().map(|variant| self.layout(variant));
        if !self.input.is_enum {
            return quote!(#(#layouts)*.fixed_size());
        }
        let (parts, layouts) = (self.parts(), list(layouts));
        quote!(#parts::enum_size(&[#layouts]))
    }

    fn schema(&self) -> TokenStream {
        let (state, name) = (&self.input.state, &self.input.name);
        let field_type = quote!(#state::value::Field);
        let new = |id: Option<u32>, name: &str, schema: TokenStream| match id {
            Some(id) => quote!(#field_type::new(#id, #name, #schema)),
            None => quote!(#field_type::named(#name, #schema)),
        };
        let structure = |variant: &Variant, name: &str| {
            let fields = list(variant.fields.iter().map(|field| {
                let (ty, trait_name, parts) = (&field.ty, &self.name, self.parts());
                let schema = quote_spanned!(ty.span()=> <#ty as #trait_name>::schema());
                let schema = new(field.id, &field.name, schema);
                match &field.default {
                    Some(default) if !self.of.is_key() => quote!(#schema.or(#parts::encoded::<#ty>(#default))),
                    _ => schema,
                }
            }));
            quote!(#state::value::Schema::structure(#name, ::std::vec![#fields]))
        };
        if !self.input.is_enum {
            return structure(&self.input.variants[0], name);
        }
        let variants = list(self.input.variants.iter().map(|v| new(v.id, &v.name, structure(v, &v.name))));
        quote!(#state::value::Schema::enumeration(#name, ::std::vec![#variants]))
    }

    /// Path of a variant of `owner`, or of the struct it is.
    fn path(&self, owner: &TokenStream, variant: &Variant) -> TokenStream {
        let ident = &variant.ident;
        if self.input.is_enum { quote!(#owner::#ident) } else { quote!(#owner) }
    }

    /// Takes apart what is encoded, `self` or the borrowed key: one arm per variant, its fields bound to their locals.
    fn take_apart(&self, body: impl Fn(usize, &Variant) -> TokenStream) -> TokenStream {
        let (value, owner) =
            if self.of.is_key() { (quote!(key), &self.view_path) } else { (quote!(self), &quote!(Self)) };
        let arms = self.input.variants.iter().enumerate().map(|(tag, variant)| {
            let (pattern, body) = (self.pattern(owner, variant), body(tag, variant));
            quote!(#pattern => { #body })
        });
        quote!(match #value { #(#arms)* })
    }

    fn pattern(&self, owner: &TokenStream, variant: &Variant) -> TokenStream {
        let path = self.path(owner, variant);
        let bindings = list(variant.fields.iter().map(|Field { member, local, .. }| quote!(#member: #local)));
        quote!(#path { #bindings })
    }

    /// The fields handed on by their locals, with their types.
    fn each(&self, variant: &Variant, call: impl Fn(&TokenStream, &Ident) -> TokenStream) -> TokenStream {
        variant.fields.iter().map(|Field { ty, local, .. }| call(&quote_spanned!(ty.span()=> #ty), local)).collect()
    }

    fn encode(&self) -> TokenStream {
        let (parts, name, size) = (self.parts(), &self.name, self.self_size());
        let write = format_ident!("{}", self.of.write);
        let append = self.take_apart(|tag, variant| {
            let layout = self.layout(variant);
            let tag = self.input.is_enum.then(|| {
                let tag = tag_of(tag);
                quote!(out.push(#tag);)
            });
            if variant.fields.is_empty() {
                return quote!(#tag);
            }
            let writes = self.each(variant, |ty, local| quote!(writer.#write::<#ty>(#local);));
            quote!(#tag let mut writer = const { #layout }.write(out); #writes)
        });
        if !self.input.is_enum {
            let unused = self.input.variants[0].fields.is_empty().then(|| quote!(let _ = out;));
            return quote!(#unused #append);
        }
        let encode_fixed = if self.of.is_key() {
            quote!(<Self as #name>::encode_ref_fixed(key, out))
        } else {
            quote!(<Self as #name>::encode_fixed(self, out))
        };
        quote! {
            if let ::core::option::Option::Some(size) = #size {
                return #parts::append_fixed(size, out, |out| #encode_fixed);
            }
            #append
        }
    }

    fn encode_fixed(&self) -> TokenStream {
        let (parts, size) = (self.parts(), self.self_size());
        let put = format_ident!("{}", self.of.put);
        let writes = self.take_apart(|tag, variant| {
            let tag = self.input.is_enum.then(|| {
                let tag = tag_of(tag);
                quote!(let out = #parts::put_tag(#tag, out);)
            });
            let puts = self.each(variant, |ty, local| quote!(let out = #parts::#put::<#ty>(#local, out);));
            quote!(#tag #puts out.fill(0);)
        });
        quote! {
            ::core::assert!(#size.is_some(), "no fixed size");
            #writes
        }
    }

    fn check(&self) -> TokenStream {
        let (parts, size, check) = (self.parts(), self.self_size(), format_ident!("{}", self.of.check));
        let fields = |variant: &Variant| {
            let checks = variant.fields.iter().map(|field| {
                let ty = &field.ty;
                let name =
                    if self.input.is_enum { format!("{}: {}", variant.name, field.name) } else { field.name.clone() };
                quote_spanned!(ty.span()=> reader.#check::<#ty>(#name)?;)
            });
            let layout = self.layout(variant);
            let cut = if self.input.is_enum {
                quote!(#parts::check_variant(bytes, #size, const { #layout })?)
            } else {
                quote!(const { #layout }.check_and_read(bytes)?)
            };
            if variant.fields.is_empty() {
                return quote!(#cut; ::core::result::Result::Ok(()));
            }
            quote!(let mut reader = #cut; #(#checks)* ::core::result::Result::Ok(()))
        };
        if !self.input.is_enum {
            return fields(&self.input.variants[0]);
        }
        let count = self.input.variants.len();
        let arms = self.input.variants.iter().enumerate().map(|(tag, variant)| {
            let (tag, body) = (tag_of(tag), fields(variant));
            quote!(::core::option::Option::Some(#tag) => { #body })
        });
        let unknown = quote!(_ => ::core::result::Result::Err(#parts::unknown_tag(bytes, #count)),);
        quote!(match bytes.first() { #(#arms)* #unknown })
    }

    /// Puts together a value of `owner` from the bytes, each field by the reader's method `read`.
    fn read(&self, owner: &TokenStream, read: &Ident) -> TokenStream {
        let (parts, size) = (self.parts(), self.self_size());
        let construct = |variant: &Variant| {
            let (path, layout) = (self.path(owner, variant), self.layout(variant));
            if variant.fields.is_empty() {
                return quote!(#path {});
            }
            let fields = list(
                variant
                    .fields
                    .iter()
                    .map(|Field { member, ty, .. }| quote_spanned!(ty.span()=> #member: reader.#read::<#ty>())),
            );
            let reader = if self.input.is_enum {
                quote!(#parts::read_variant(bytes, #size, const { #layout }))
            } else {
                quote!(const { #layout }.read(bytes))
            };
            quote!(let mut reader = #reader; #path { #fields })
        };
        if !self.input.is_enum {
            let variant = &self.input.variants[0];
            let unused = variant.fields.is_empty().then(|| quote!(let _ = bytes;));
            let construct = construct(variant);
            return quote!(#unused #construct);
        }
        let count = self.input.variants.len();
        let arms = self.input.variants.iter().enumerate().map(|(tag, variant)| {
            let (tag, body) = (tag_of(tag), construct(variant));
            quote!(::core::option::Option::Some(#tag) => { #body })
        });
        quote!(match bytes.first() {
            #(#arms)*
            _ => ::core::panic!("{}", #parts::unknown_tag(bytes, #count)),
        })
    }

    /// The borrowed form of `self`.
    fn to_ref(&self) -> TokenStream {
        if self.input.is_copy {
            return quote!(*self);
        }
        let name = &self.name;
        let arms = self.input.variants.iter().map(|variant| {
            let (pattern, path) = (self.pattern(&quote!(Self), variant), self.path(&self.view_path, variant));
            let fields = list(variant.fields.iter().map(
                |Field { member, ty, local, .. }| quote_spanned!(ty.span()=> #member: <#ty as #name>::to_ref(#local)),
            ));
            quote!(#pattern => #path { #fields },)
        });
        quote!(match self { #(#arms)* })
    }

    /// The type that values are read as, as the trait names it, and its declaration.
    fn view_type(&self) -> (TokenStream, TokenStream) {
        if self.input.is_copy {
            return (quote!(Self), quote!());
        }
        let (input, view) = (self.input, &self.view_ident);
        let mut generics = self.generics.clone();
        for param in &mut generics.params {
            match param {
                GenericParam::Type(param) => (param.eq_token, param.default) = (None, None),
                GenericParam::Const(param) => (param.eq_token, param.default) = (None, None),
                GenericParam::Lifetime(_) => {}
            }
        }
        // Without fields there is nothing to borrow, and an unused lifetime is an error.
        if input.fields().next().is_some() {
            generics.params.insert(0, parse_quote!('a));
        }
        let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
        let declaration = self.declaration(&generics);
        let arms = |body: &dyn Fn(&Variant) -> TokenStream| -> TokenStream {
            input
                .variants
                .iter()
                .map(|variant| {
                    let (pattern, body) = (self.pattern(&quote!(Self), variant), body(variant));
                    quote!(#pattern => { #body })
                })
                .collect()
        };
        let debug =
            arms(&|variant| {
                let shown = if input.is_enum { variant.ident.to_string() } else { view.to_string() };
                let (start, named) = match variant.style {
                    Style::Named => (quote!(debug_struct), true),
                    Style::Tuple | Style::Unit => (quote!(debug_tuple), false),
                };
                let fields = variant.fields.iter().map(|Field { local, name, .. }| {
                    if named { quote!(.field(#name, #local)) } else { quote!(.field(#local)) }
                });
                quote!(f.#start(#shown)#(#fields)*.finish())
            });
        let equal = input.variants.iter().map(|variant| {
            let pattern = self.pattern(&quote!(Self), variant);
            let path = self.path(&quote!(Self), variant);
            let others = variant.fields.iter().map(|Field { local, .. }| format_ident!("other_{local}"));
            let bindings = list(
                variant.fields.iter().zip(others.clone()).map(|(Field { member, .. }, other)| quote!(#member: #other)),
            );
            let equal =
                variant.fields.iter().zip(others).map(|(Field { local, .. }, other)| quote!(&& *#local == *#other));
            quote!((#pattern, #path { #bindings }) => true #(#equal)*,)
        });
        let unequal = (input.variants.len() > 1).then(|| quote!(_ => false,));
        let eq = self.of.is_key().then(|| {
            quote! {
                #[automatically_derived]
                impl #impl_generics ::core::cmp::Eq for #view #ty_generics #where_clause {}
            }
        });
        let declaration = quote! {
            #declaration
            #[automatically_derived]
            impl #impl_generics ::core::marker::Copy for #view #ty_generics #where_clause {}
            #[automatically_derived]
            impl #impl_generics ::core::clone::Clone for #view #ty_generics #where_clause {
                #[inline]
                fn clone(&self) -> Self { *self }
            }
            #[automatically_derived]
            impl #impl_generics ::core::fmt::Debug for #view #ty_generics #where_clause {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result { match self { #debug } }
            }
            #[automatically_derived]
            impl #impl_generics ::core::cmp::PartialEq for #view #ty_generics #where_clause {
                fn eq(&self, other: &Self) -> bool { match (self, other) { #(#equal)* #unequal } }
            }
            #eq
        };
        (quote!(#view #ty_generics), declaration)
    }

    /// The view as a type: what was declared, every field as its view, documented as it was.
    fn declaration(&self, generics: &Generics) -> TokenStream {
        let (Input { vis, ident, is_enum, .. }, view, name) = (self.input, &self.view_ident, &self.name);
        let assoc = format_ident!("{}", self.of.view);
        let body = |variant: &Variant| {
            let fields = list(variant.fields.iter().map(|field| {
                let Field { vis, member, ty, .. } = field;
                let docs = docs_or(&field.docs, || format!("`{}` of [`{ident}`].", field.name));
                let label = (variant.style == Style::Named).then(|| quote!(#member:));
                let vis = (!is_enum).then(|| quote!(#vis));
                quote!(#docs #vis #label <#ty as #name>::#assoc<'a>)
            }));
            match variant.style {
                Style::Named => quote!({ #fields }),
                Style::Tuple => quote!((#fields)),
                Style::Unit => quote!(),
            }
        };
        let purpose = if self.of.is_key() { "in its borrowed form" } else { "as it is read in place" };
        let doc = format!("[`{ident}`] {purpose}.");
        let (impl_generics, _, where_clause) = generics.split_for_impl();
        if *is_enum {
            let variants = list(self.input.variants.iter().map(|variant| {
                let docs = docs_or(&variant.docs, || format!("`{}` of [`{ident}`].", variant.name));
                let (ident, body) = (&variant.ident, body(variant));
                quote!(#docs #ident #body)
            }));
            return quote!(#[doc = #doc] #vis enum #view #impl_generics #where_clause { #variants });
        }
        let (variant, body) = (&self.input.variants[0], body(&self.input.variants[0]));
        match variant.style {
            Style::Named => quote!(#[doc = #doc] #vis struct #view #impl_generics #where_clause #body),
            Style::Tuple | Style::Unit => quote!(#[doc = #doc] #vis struct #view #impl_generics #body #where_clause;),
        }
    }
}

/// The type parameters bounded by the trait.
fn bounded(generics: &Generics, name: &TokenStream) -> Generics {
    let mut generics = generics.clone();
    generics.type_params_mut().for_each(|param| param.bounds.push(parse_quote!(#name)));
    generics
}

/// The same tokens, errors about which point to `span`.
fn at(tokens: TokenStream, span: Span) -> TokenStream {
    let respan = |mut token: TokenTree| {
        if let TokenTree::Group(group) = &token {
            token = Group::new(group.delimiter(), at(group.stream(), span)).into();
        }
        token.set_span(token.span().located_at(span));
        token
    };
    tokens.into_iter().map(respan).collect()
}

fn docs_or(docs: &[syn::Attribute], default: impl FnOnce() -> String) -> TokenStream {
    if docs.is_empty() {
        let default = default();
        return quote!(#[doc = #default]);
    }
    quote!(#(#docs)*)
}

fn tag_of(at: usize) -> u8 {
    u8::try_from(at).expect("at most 256 variants")
}
