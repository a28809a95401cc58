//! Misuse of `#[derive(Record, State, Key)]` does not compile and says what to do; good use compiles without a warning.
//!
//! `TRYBUILD=overwrite cargo test -p millstream --test derive` writes the messages anew.

#[test]
fn misuse_of_a_derive_is_a_readable_error() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/derive_*.rs");
    cases.pass("tests/compile_pass/derive_*.rs");
}
