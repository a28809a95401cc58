//! How the key of an item is found: `key_by` makes one, `key_by_ref` borrows it.

use crate::items::Items;
use millstream_state::Key;
use std::marker::PhantomData;

/// Finds the key of an item.
pub trait KeyOf<I: Items>: Clone + Send + 'static {
    /// The key.
    type Key: Key + ?Sized;

    /// Hands the key of `item` to `use_key`.
    fn with_key<R>(&mut self, item: &I::Of<'_>, use_key: impl FnOnce(&Self::Key) -> R) -> R;
}

/// A key made from the item.
pub struct ByValue<F, K>(F, PhantomData<fn() -> K>);

impl<F, K> ByValue<F, K> {
    pub(crate) fn new(user: F) -> Self {
        Self(user, PhantomData)
    }
}

impl<F: Clone, K> Clone for ByValue<F, K> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<I: Items, K: Key, F> KeyOf<I> for ByValue<F, K>
where
    F: for<'a, 'b> FnMut(&'b I::Of<'a>) -> K + Clone + Send + 'static,
{
    type Key = K;
    #[inline(always)]
    fn with_key<R>(&mut self, item: &I::Of<'_>, use_key: impl FnOnce(&K) -> R) -> R {
        use_key(&(self.0)(item))
    }
}

/// A key borrowed from the item.
pub struct ByRef<F, K: ?Sized>(F, PhantomData<fn(&K)>);

impl<F, K: ?Sized> ByRef<F, K> {
    pub(crate) fn new(user: F) -> Self {
        Self(user, PhantomData)
    }
}

impl<F: Clone, K: ?Sized> Clone for ByRef<F, K> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<I: Items, K: Key + ?Sized, F> KeyOf<I> for ByRef<F, K>
where
    F: for<'a, 'b> FnMut(&'b I::Of<'a>) -> &'b K + Clone + Send + 'static,
{
    type Key = K;
    #[inline(always)]
    fn with_key<R>(&mut self, item: &I::Of<'_>, use_key: impl FnOnce(&K) -> R) -> R {
        use_key((self.0)(item))
    }
}
