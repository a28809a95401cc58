//! Where a split is to be read on, as bytes that only its source understands.

use crate::text::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// See the module. Up to 23 bytes take no allocation, so that a cut of many splits stays short.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position(Bytes);

impl Position {
    /// A position of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(Bytes::new(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The number it was made from, if it was made from one.
    pub fn to_u64(&self) -> Option<u64> {
        self.as_bytes().try_into().ok().map(u64::from_le_bytes)
    }
}

impl From<u64> for Position {
    fn from(number: u64) -> Self {
        Self::new(&number.to_le_bytes())
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_u64() {
            Some(number) => number.fmt(f),
            None => write!(f, "{:02x?}", self.as_bytes()),
        }
    }
}

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(|bytes: Vec<u8>| Self::new(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back_from_a_manifest() {
        for position in [Position::from(7), Position::new(b""), Position::new(&[0xff; 100])] {
            let text = serde_json::to_string(&position).unwrap();
            assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position, "{text}");
        }
        assert_eq!((Position::from(7).to_u64(), Position::new(b"seven").to_u64()), (Some(7), None));
        assert_eq!(Position::from(258).to_string(), "258");
    }
}
