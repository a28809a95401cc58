//! Misuse of `#[derive(Record, State, Key)]` and of jobs does not compile and says what to do; good use compiles without a
//! warning.
//!
//! `TRYBUILD=overwrite cargo test -p millstream --test misuse` writes the messages anew.

#[test]
fn misuse_is_a_readable_error() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
    cases.pass("tests/compile_pass/*.rs");
}
