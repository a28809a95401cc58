//! States as typed constants: `const BALANCE: ValueState<i64> = ValueState::named("balance");`

use std::marker::PhantomData;

/// One value of type `V` per key. A constant; operators make a handle of it.
pub struct ValueState<V> {
    name: &'static str,
    value: PhantomData<fn() -> V>,
}

impl<V> Clone for ValueState<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for ValueState<V> {}

impl<V> ValueState<V> {
    /// A state with this name, which together with its operator's name is its identity in snapshots.
    ///
    /// # Panics
    /// At compile time, when the name is not `[A-Za-z0-9_-]{1,64}`.
    pub const fn named(name: &'static str) -> Self {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty() && bytes.len() <= 64, "a state's name has 1 to 64 characters");
        let mut at = 0;
        while at < bytes.len() {
            let ok = bytes[at].is_ascii_alphanumeric() || bytes[at] == b'-' || bytes[at] == b'_';
            assert!(ok, "a state's name is made of letters, digits, - and _");
            at += 1;
        }
        Self { name, value: PhantomData }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}
