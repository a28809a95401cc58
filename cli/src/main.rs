//! The `millstream` command.

fn main() {}
