//! Nothing says which field of a union is valid.
use millstream::Record;

#[derive(Record)]
union Bits {
    float: f32,
    integer: u32,
}

fn main() {}
