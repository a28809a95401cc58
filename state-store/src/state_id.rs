//! What tells one state from another of the same job: drawn when a state begins, kept for its life.

use serde::{Serialize, Serializer};
use std::fmt;

/// Id of a state, written with 8 hexadecimal digits. Copies of a state directory have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StateId(pub u32);

impl StateId {
    /// Reads what [`Display`](fmt::Display) writes, and nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let id = Self(u32::from_str_radix(text, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl Serialize for StateId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written_and_in_no_other_way() {
        for id in [0, 1, 0x0a0b_0c0d, u32::MAX] {
            assert_eq!(StateId::parse(&StateId(id).to_string()), Some(StateId(id)));
        }
        for text in ["", "0", "0000000A", "+000000a", "00000000a", "0000000g"] {
            assert_eq!(StateId::parse(text), None, "{text}");
        }
    }
}
