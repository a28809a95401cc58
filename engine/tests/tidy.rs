//! What keeps the code base in shape, held by a test: layers, where `unsafe` and the runtime may stand, a `//!` on every file,
//! documents that quote what is compiled and run.
//!
//! * Layers: a crate's `lib.rs` names its modules in an order; a module names only modules before it. A crate without such
//!   a list has no cycles between its modules. Crates depend on each other in the order of [`CRATES`] only.
//! * `glommio` is named in [`RUNTIME`] only, `unsafe` in [`UNSAFE`] only, and each of those files has some.
//!
//! Sources are read as tokens, so that comments and texts do not count. Each check is a function from made-up or real
//! sources to complaints, and is shown below to find what it looks for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The crates, lowest first, with their directories: each depends only on those before it.
const CRATES: [(&str, &str); 5] = [
    ("millstream-derive", "derive"),
    ("millstream-state", "state-store"),
    ("millstream", "engine"),
    ("millstream-bench", "benches"),
    ("millstream-cli", "cli"),
];

/// Where glommio may be named: files, and directories that end in a slash.
const RUNTIME: [&str; 3] = ["engine/src/runtime/", "state-store/src/io/buffer.rs", "state-store/src/io/dma.rs"];

/// Where `unsafe` may stand.
const UNSAFE: [&str; 6] = [
    "benches/src/prefetch.rs",         // one instruction
    "cli/tests/allocations.rs",        // a counting allocator
    "engine/src/text.rs",              // inline bytes as text
    "state-store/benches/table.rs",    // its allocator
    "state-store/src/index/bucket.rs", // SIMD, prefetch
    "state-store/src/log/mapping.rs",  // the arena
];

/// Documents, and the example that each quotes.
const QUOTES: [(&str, &str); 2] =
    [("README.md", "engine/examples/word_count.rs"), ("docs/EMBEDDING.md", "engine/examples/overdraft.rs")];

/// A file of ours: its path from the root of the repository, and what stands in it.
struct Source {
    path: String,
    text: String,
}

/// A token that matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'a> {
    Word(&'a str),
    /// `::`
    Path,
    Other(u8),
}

/// The tokens of a source, without comments, texts, characters and lifetimes.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += match rest {
            [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => block_comment_bytes(rest),
            [b'"', ..] => text_bytes(rest),
            [b'b' | b'c', b'"', ..] => 1 + text_bytes(&rest[1..]),
            [b'r', b'"' | b'#', ..] if raw_text_bytes(rest).is_some() => raw_text_bytes(rest).unwrap_or(1),
            [b'b' | b'c', b'r', b'"' | b'#', ..] if raw_text_bytes(&rest[1..]).is_some() => {
                1 + raw_text_bytes(&rest[1..]).unwrap_or(1)
            }
            [b'\'', ..] => character_bytes(rest),
            [b':', b':', ..] => {
                tokens.push(Token::Path);
                2
            }
            [first, ..] if is_word(*first) => {
                let length = rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len());
                tokens.push(Token::Word(&source[at..at + length]));
                length
            }
            [first, ..] => {
                if !first.is_ascii_whitespace() {
                    tokens.push(Token::Other(*first));
                }
                1
            }
            [] => unreachable!("checked by the loop"),
        };
    }
    tokens
}

fn block_comment_bytes(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn text_bytes(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Bytes of a raw text that begins with `r`, if it is one (and no raw word).
fn raw_text_bytes(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = 2 + hashes;
    let length = rest[body..].windows(end.len()).position(|window| window == end)?;
    Some(body + length + end.len())
}

/// Bytes of a character, or of the quote alone when it begins a lifetime.
fn character_bytes(rest: &[u8]) -> usize {
    match rest {
        [_, b'\\', ..] => 3 + rest[3..].iter().position(|byte| *byte == b'\'').unwrap_or(0) + 1,
        _ => {
            let width = std::str::from_utf8(&rest[1..rest.len().min(5)])
                .or_else(|error| std::str::from_utf8(&rest[1..1 + error.valid_up_to()]))
                .ok()
                .and_then(|text| text.chars().next())
                .map_or(1, char::len_utf8);
            if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 1 }
        }
    }
}

/// What a file names of its own crate: first word behind `crate`, with `super` resolved and groups opened.
fn named_in_crate(source: &str, module: &[&str]) -> BTreeSet<String> {
    let tokens = tokens(source);
    let mut names = BTreeSet::new();
    // Inline modules around the place we are at: how many braces were open before each.
    let (mut inline, mut braces) = (Vec::<usize>::new(), 0_usize);
    for at in 0..tokens.len() {
        match tokens[at] {
            Token::Other(b'{') => {
                if at >= 2 && tokens[at - 2] == Token::Word("mod") {
                    inline.push(braces);
                }
                braces += 1;
            }
            Token::Other(b'}') => {
                braces = braces.saturating_sub(1);
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
            }
            Token::Word("crate") if tokens.get(at + 1) == Some(&Token::Path) => roots(&tokens[at + 2..], &mut names),
            Token::Word("super") if tokens.get(at + 1) == Some(&Token::Path) => {
                let is_first = at < 2 || tokens[at - 1] != Token::Path;
                let mut supers = &tokens[at..];
                let mut up = 0;
                while let [Token::Word("super"), Token::Path, rest @ ..] = supers {
                    (supers, up) = (rest, up + 1);
                }
                if is_first && up == module.len() + inline.len() {
                    roots(supers, &mut names);
                }
            }
            _ => {}
        }
    }
    names
}

/// The first words of the paths that begin here: one, or several in braces.
fn roots(tokens: &[Token<'_>], names: &mut BTreeSet<String>) {
    match tokens {
        [Token::Word(word), ..] => {
            names.insert((*word).to_owned());
        }
        [Token::Other(b'{'), rest @ ..] => {
            let mut depth = 0_usize;
            let mut begins = true;
            for token in rest {
                match token {
                    Token::Word(word) if begins && depth == 0 => {
                        names.insert((*word).to_owned());
                        begins = false;
                    }
                    Token::Other(b'{') => depth += 1,
                    Token::Other(b'}') if depth == 0 => break,
                    Token::Other(b'}') => depth -= 1,
                    Token::Other(b',') if depth == 0 => begins = true,
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// Where the crate's root has its public names from: `pub use job::{Job, Stream}` says that `Job` is of `job`.
fn re_exports(root: &str) -> BTreeMap<String, String> {
    let tokens = tokens(root);
    let mut from = BTreeMap::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            Token::Other(b'{') => depth += 1,
            Token::Other(b'}') => depth -= 1,
            Token::Word("use") if depth == 0 => {
                let end = tokens[at..].iter().position(|token| *token == Token::Other(b';')).unwrap_or(0) + at;
                let words = tokens[at + 1..end].iter().filter_map(|token| match token {
                    Token::Word(word) => Some((*word).to_owned()),
                    _ => None,
                });
                let words: Vec<String> = words.collect();
                if let Some((module, names)) = words.split_first() {
                    from.extend(names.iter().map(|name| (name.clone(), module.clone())));
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    from
}

/// The order of modules that the head of a crate's root gives, if it gives one.
fn layers(root: &str) -> Option<Vec<String>> {
    let head: Vec<&str> = root.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let (_, list) = head.join("").split_once("those named before it:").map(|(a, b)| (a.to_owned(), b.to_owned()))?;
    let list = list.split('.').next().unwrap_or_default();
    Some(list.split(['`', '<', ' ']).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// The modules a file is in, from the root of its crate: `src/job/mod.rs` and `src/job.rs` are `[job]`.
fn module_of<'a>(crate_dir: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let inside = path.strip_prefix(crate_dir)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
    let mut module: Vec<&str> = inside.split('/').collect();
    if matches!(module.last(), Some(&"mod" | &"lib" | &"main")) {
        module.pop();
    }
    Some(module)
}

/// Complaints about one crate's modules.
fn check_layers(crate_dir: &str, sources: &[Source]) -> Vec<String> {
    let is_root = |source: &&Source| module_of(crate_dir, &source.path).is_some_and(|module| module.is_empty());
    let Some(root) = sources.iter().find(is_root) else { return vec![format!("{crate_dir}: no root")] };
    let (re_exports, layers) = (re_exports(&root.text), layers(&root.text));
    let modules: BTreeSet<&str> =
        sources.iter().filter_map(|source| module_of(crate_dir, &source.path)?.first().copied()).collect();
    let mut imports = BTreeMap::<&str, BTreeMap<String, &str>>::new();
    for source in sources {
        let Some(module) = module_of(crate_dir, &source.path).filter(|module| !module.is_empty()) else { continue };
        for name in named_in_crate(&source.text, &module) {
            let target = if modules.contains(name.as_str()) { Some(&name) } else { re_exports.get(&name) };
            let target = target.filter(|target| *target != module[0] && modules.contains(target.as_str()));
            if let Some(target) = target {
                imports.entry(module[0]).or_default().insert(target.clone(), &source.path);
            }
        }
    }
    let Some(layers) = layers else { return check_cycles(&imports) };
    let mut complaints = Vec::new();
    let listed: BTreeSet<&str> = layers.iter().map(String::as_str).collect();
    for module in modules.symmetric_difference(&listed) {
        complaints.push(format!("{}: module {module} stands in only one of the list of layers and src/", root.path));
    }
    let height = |module: &str| layers.iter().position(|layer| layer == module);
    for (module, targets) in &imports {
        for (target, path) in targets.iter().filter(|(target, _)| height(target) > height(module)) {
            complaints.push(format!("{path}: {module} names {target}, which lies above it"));
        }
    }
    complaints
}

/// Complaints about modules that reach themselves.
fn check_cycles(imports: &BTreeMap<&str, BTreeMap<String, &str>>) -> Vec<String> {
    let mut open = imports.clone();
    // Whoever names nobody that is left lies on no cycle.
    loop {
        let left: BTreeSet<&str> = open.keys().copied().collect();
        let before = open.len();
        open.retain(|_, targets| targets.keys().any(|target| left.contains(target.as_str())));
        if open.len() == before {
            break;
        }
    }
    let complaint = |module: &&str| format!("module {module} lies on, or above, a cycle of modules");
    open.keys().map(complaint).collect()
}

/// Complaints about one crate's dependencies; tests and examples may use any crate.
fn check_dependencies(name: &str, manifest: &str) -> Vec<String> {
    let rank = |name: &str| CRATES.iter().position(|(other, _)| *other == name);
    let mut in_dependencies = false;
    let mut complaints = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies") && !line.contains("dev-dependencies");
        }
        let dependency = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if in_dependencies && rank(dependency).is_some() && rank(dependency) >= rank(name) {
            complaints.push(format!("{name} depends on {dependency}, which lies above it"));
        }
    }
    complaints
}

/// Complaints about a word in files that are not named for it, and about files that are and do not have it.
fn check_word(word: &str, allowed: &[&str], sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut seen = BTreeSet::new();
    for source in sources.iter().filter(|source| tokens(&source.text).contains(&Token::Word(word))) {
        let place = allowed.iter().find(|place| match place.strip_suffix('/') {
            Some(_) => source.path.starts_with(*place),
            None => source.path == **place,
        });
        match place {
            Some(place) => drop(seen.insert(*place)),
            None => complaints.push(format!("{}: `{word}` may not stand here", source.path)),
        }
    }
    let exists = |place: &str| sources.iter().any(|source| source.path.starts_with(place));
    let unused = allowed.iter().filter(|place| exists(place) && !seen.contains(*place));
    complaints.extend(unused.map(|place| format!("{place}: named for `{word}` and has none")));
    complaints
}

/// Complaints about files that do not say what they are.
fn check_heads(sources: &[Source]) -> Vec<String> {
    let mute = sources.iter().filter(|source| !source.text.starts_with("//! "));
    mute.map(|source| format!("{}: does not begin with `//! `", source.path)).collect()
}

/// Complaints about a document that does not quote all of an example but its head and its tests.
fn check_quote(document: &str, example: &str) -> Vec<String> {
    let code = example.split_once("\n\n").map_or("", |(_, code)| code);
    let code = code.split("\n#[cfg(test)]\n").next().unwrap_or_default();
    let quoted = !code.is_empty() && document.contains(&format!("\n```rust,no_run\n{code}```\n"));
    if quoted { Vec::new() } else { vec![format!("does not quote this code:\n{code}")] }
}

/// All Rust files of the repository.
fn our_sources() -> Vec<Source> {
    fn collect(root: &Path, dir: &Path, sources: &mut Vec<Source>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    collect(root, &path, sources);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                sources.push(Source { path: path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), text });
            }
        }
    }
    let mut sources = Vec::new();
    for (_, dir) in CRATES {
        collect(root(), &root().join(dir), &mut sources);
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository")
}

#[track_caller]
fn clean(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn modules_name_only_what_lies_below_them() {
    let sources = our_sources();
    clean(&CRATES.iter().flat_map(|(_, dir)| check_layers(dir, &sources)).collect::<Vec<_>>());
}

#[test]
fn crates_depend_only_on_what_lies_below_them() {
    let manifest = |dir: &str| fs::read_to_string(root().join(dir).join("Cargo.toml")).unwrap();
    clean(&CRATES.iter().flat_map(|(name, dir)| check_dependencies(name, &manifest(dir))).collect::<Vec<_>>());
}

#[test]
fn glommio_is_named_by_the_runtime_and_the_disk_only() {
    clean(&check_word("glommio", &RUNTIME, &our_sources()));
}

#[test]
fn unsafe_stands_in_the_files_named_for_it_only() {
    clean(&check_word("unsafe", &UNSAFE, &our_sources()));
}

#[test]
fn every_file_says_what_it_is() {
    clean(&check_heads(&our_sources()));
}

#[test]
fn documents_quote_examples_word_by_word() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    for (document, example) in QUOTES {
        clean(
            &check_quote(&read(document), &read(example))
                .iter()
                .map(|what| format!("{document} {what}"))
                .collect::<Vec<_>>(),
        );
    }
}

// The checks find what they look for.

const ROOT: &str = "//! A crate. A module imports only from those named before it:\n//! `low other` < `high`.\n\npub use high::Thing;\n";

/// Complaints about a crate `c` of the modules low, other and high, of which `path` has `text`.
fn layered(root: &str, path: &str, text: &str) -> usize {
    let files = ["c/src/lib.rs", "c/src/low.rs", "c/src/other.rs", "c/src/high/mod.rs", "c/src/high/deep.rs"];
    let texts = files.map(|file| match file {
        "c/src/lib.rs" => root,
        _ if file == path => text,
        _ => "use crate::low::A;",
    });
    let sources =
        files.into_iter().zip(texts).map(|(path, text)| Source { path: path.to_owned(), text: text.to_owned() });
    check_layers("c", &sources.collect::<Vec<_>>()).len()
}

#[test]
fn upward_imports_are_found_however_they_are_written() {
    for (path, text, complaints) in [
        ("c/src/low.rs", "use std::fmt;", 0),
        ("c/src/high/deep.rs", "use crate::low::A; use super::B;", 0),
        ("c/src/low.rs", "use crate::high::A;", 1),
        ("c/src/low.rs", "use crate::{low::B, high::{A, C}};", 1),
        ("c/src/low.rs", "use crate::{other::A, high};", 2),
        ("c/src/low.rs", "use super::high::A;", 1),
        ("c/src/low.rs", "mod tests { use super::high; }", 0),
        ("c/src/low.rs", "mod tests { use super::super::high; }", 1),
        ("c/src/low.rs", "fn f() { crate::high::deep::g() }", 1),
        ("c/src/low.rs", "use crate::Thing;", 1),
        ("c/src/low.rs", "// use crate::high;\nconst A: &str = \"crate::high\";", 0),
        ("c/src/low.rs", "const A: char = '\"'; use crate::high; const B: char = '\"';", 1),
        ("c/src/low.rs", "const A: &str = r#\"\"crate::high\"#;", 0),
        ("c/src/low.rs", "fn f<'a>(x: &'a str) { /* /* */ crate::high */ }", 0),
        ("c/src/high/deep.rs", "use super::super::low;", 0),
    ] {
        assert_eq!(layered(ROOT, path, text), complaints, "{path}: {text}");
    }
}

#[test]
fn a_module_missing_from_the_list_is_found() {
    assert_eq!(layered(&ROOT.replace(" other", ""), "", ""), 2, "missing, and without a height");
    assert_eq!(layered(&ROOT.replace(" other", " other more"), "", ""), 1);
}

#[test]
fn cycles_are_found_where_there_is_no_list() {
    assert_eq!(layered("//! A crate.", "", ""), 0);
    assert_eq!(layered("//! A crate.", "c/src/low.rs", "use crate::other::A;"), 3, "low, other, and high above them");
}

#[test]
fn upward_dependencies_are_found() {
    for (name, manifest, complaints) in [
        ("millstream", "[dependencies]\nmillstream-state.workspace = true", 0),
        ("millstream", "[package]\nname = \"millstream\"", 0),
        ("millstream-state", "[dependencies]\nmillstream.workspace = true", 1),
        ("millstream", "[target.'cfg(unix)'.dependencies]\nmillstream-cli = { path = \"../cli\" }", 1),
        ("millstream-derive", "[dev-dependencies]\nmillstream.workspace = true", 0),
    ] {
        assert_eq!(check_dependencies(name, manifest).len(), complaints, "{name}: {manifest}");
    }
}

#[test]
fn words_out_of_place_are_found() {
    for (path, text, complaints) in [
        ("a.rs", "unsafe { f() }", 0),
        ("a.rs", "safe()", 1),
        ("b.rs", "unsafe { f() }", 1),
        ("b.rs", "#![forbid(unsafe_code)] // unsafe", 0),
    ] {
        let sources = [Source { path: path.to_owned(), text: text.to_owned() }];
        assert_eq!(check_word("unsafe", &["a.rs"], &sources).len(), complaints, "{path}: {text}");
    }
}

#[test]
fn files_without_a_head_are_found() {
    for (text, complaints) in [("//! What.", 0), ("use a;\n//! What.", 1), ("// What.", 1), ("", 1)] {
        let sources = [Source { path: "a.rs".to_owned(), text: text.to_owned() }];
        assert_eq!(check_heads(&sources).len(), complaints, "{text}");
    }
}

#[test]
fn a_quote_that_differs_is_found() {
    let example = "//! Head.\n\nfn main() {}\n\n#[cfg(test)]\nmod tests {}\n";
    for (document, complaints) in [
        ("Text:\n\n```rust,no_run\nfn main() {}\n```\n", 0),
        ("Text:\n\n```rust,no_run\nfn main() { }\n```\n", 1),
        ("Text:\n\n```rust,no_run\nfn main() {}\nmore();\n```\n", 1),
        ("", 1),
    ] {
        assert_eq!(check_quote(document, example).len(), complaints, "{document}");
    }
}
