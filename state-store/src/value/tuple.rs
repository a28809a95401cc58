//! Tuples of up to eight records (six keys) and arrays, laid out as [`parts`] says.

use super::parts::{Layout, hash_encoded, hash_fixed, put_key, put_record};
use super::*;

macro_rules! tuple_record {
    ($($type:ident $at:tt),+) => {
        impl<$($type: Record),+> Record for ($($type,)+) {
            const FIXED_SIZE: Option<usize> = Layout::of(&[$($type::FIXED_SIZE),+]).fixed_size();
            type View<'a> = ($($type::View<'a>,)+);
            fn schema() -> Schema {
                Schema::Tuple(vec![$($type::schema()),+])
            }
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                let mut writer = const { Layout::of(&[$($type::FIXED_SIZE),+]) }.write(out);
                $(writer.record(&self.$at);)+
            }
            #[inline(always)]
            fn encode_fixed(&self, out: &mut [u8]) {
                $(let out = put_record(&self.$at, out);)+
                debug_assert!(out.is_empty());
            }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> {
                let mut reader = const { Layout::of(&[$($type::FIXED_SIZE),+]) }.check_and_read(bytes)?;
                $(reader.check_record::<$type>($at)?;)+
                Ok(())
            }
            #[inline(always)]
            fn view(bytes: &[u8]) -> Self::View<'_> {
                let mut reader = const { Layout::of(&[$($type::FIXED_SIZE),+]) }.read(bytes);
                ($(reader.view::<$type>(),)+)
            }
            #[inline(always)]
            fn decode(bytes: &[u8]) -> Self {
                let mut reader = const { Layout::of(&[$($type::FIXED_SIZE),+]) }.read(bytes);
                ($(reader.decode::<$type>(),)+)
            }
        }
        impl<$($type: Record),+> State for ($($type,)+) {}
    };
}

macro_rules! tuple_key {
    ($($type:ident $at:tt),+) => {
        impl<$($type: Key + Sized),+> Key for ($($type,)+) {
            const FIXED_SIZE: Option<usize> = Layout::of(&[$($type::FIXED_SIZE),+]).fixed_size();
            type Ref<'a> = ($($type::Ref<'a>,)+);
            fn schema() -> Schema {
                Schema::Tuple(vec![$($type::schema()),+])
            }
            #[inline]
            fn encode_ref(key: Self::Ref<'_>, out: &mut Vec<u8>) {
                let mut writer = const { Layout::of(&[$($type::FIXED_SIZE),+]) }.write(out);
                $(writer.key::<$type>(key.$at);)+
            }
            #[inline(always)]
            fn encode_ref_fixed(key: Self::Ref<'_>, out: &mut [u8]) {
                $(let out = put_key::<$type>(key.$at, out);)+
                debug_assert!(out.is_empty());
            }
            #[inline]
            fn hash_ref(key: Self::Ref<'_>) -> u64 {
                match Self::FIXED_SIZE {
                    Some(size) => hash_fixed(size, |out| Self::encode_ref_fixed(key, out)),
                    None => hash_encoded(|out| Self::encode_ref(key, out)),
                }
            }
            fn check(bytes: &[u8]) -> Result<(), BadBytes> {
                let mut reader = const { Layout::of(&[$($type::FIXED_SIZE),+]) }.check_and_read(bytes)?;
                $(reader.check_key::<$type>($at)?;)+
                Ok(())
            }
            #[inline(always)]
            fn view(bytes: &[u8]) -> Self::Ref<'_> {
                let mut reader = const { Layout::of(&[$($type::FIXED_SIZE),+]) }.read(bytes);
                ($(reader.key::<$type>(),)+)
            }
            #[inline(always)]
            fn to_ref(&self) -> Self::Ref<'_> {
                ($(self.$at.to_ref(),)+)
            }
        }
    };
}

tuple_record!(A 0);
tuple_record!(A 0, B 1);
tuple_record!(A 0, B 1, C 2);
tuple_record!(A 0, B 1, C 2, D 3);
tuple_record!(A 0, B 1, C 2, D 3, E 4);
tuple_record!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple_record!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple_record!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

tuple_key!(A 0);
tuple_key!(A 0, B 1);
tuple_key!(A 0, B 1, C 2);
tuple_key!(A 0, B 1, C 2, D 3);
tuple_key!(A 0, B 1, C 2, D 3, E 4);
tuple_key!(A 0, B 1, C 2, D 3, E 4, F 5);

impl<T: Record, const N: usize> Record for [T; N] {
    const FIXED_SIZE: Option<usize> = Layout::repeat(T::FIXED_SIZE, N).fixed_size();
    type View<'a> = [T::View<'a>; N];

    fn schema() -> Schema {
        Schema::Array(Box::new(T::schema()), parts::offset(N))
    }

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = const { Layout::repeat(T::FIXED_SIZE, N) }.write(out);
        self.iter().for_each(|item| writer.record(item));
    }

    #[inline(always)]
    fn encode_fixed(&self, mut out: &mut [u8]) {
        for item in self {
            out = put_record(item, out);
        }
    }

    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        let mut reader = const { Layout::repeat(T::FIXED_SIZE, N) }.check_and_read(bytes)?;
        (0..N).try_for_each(|i| reader.check_record::<T>(i))
    }

    #[inline]
    fn view(bytes: &[u8]) -> Self::View<'_> {
        let mut reader = const { Layout::repeat(T::FIXED_SIZE, N) }.read(bytes);
        std::array::from_fn(|_| reader.view::<T>())
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Self {
        let mut reader = const { Layout::repeat(T::FIXED_SIZE, N) }.read(bytes);
        std::array::from_fn(|_| reader.decode::<T>())
    }
}

impl<T: Record, const N: usize> State for [T; N] {}

impl<K: Key + Sized, const N: usize> Key for [K; N] {
    const FIXED_SIZE: Option<usize> = Layout::repeat(K::FIXED_SIZE, N).fixed_size();
    type Ref<'a> = [K::Ref<'a>; N];

    fn schema() -> Schema {
        Schema::Array(Box::new(K::schema()), parts::offset(N))
    }

    #[inline]
    fn encode_ref(key: Self::Ref<'_>, out: &mut Vec<u8>) {
        let mut writer = const { Layout::repeat(K::FIXED_SIZE, N) }.write(out);
        key.into_iter().for_each(|part| writer.key::<K>(part));
    }

    #[inline(always)]
    fn encode_ref_fixed(key: Self::Ref<'_>, mut out: &mut [u8]) {
        for part in key {
            out = put_key::<K>(part, out);
        }
    }

    #[inline]
    fn hash_ref(key: Self::Ref<'_>) -> u64 {
        match Self::FIXED_SIZE {
            Some(size) => hash_fixed(size, |out| Self::encode_ref_fixed(key, out)),
            None => hash_encoded(|out| Self::encode_ref(key, out)),
        }
    }

    fn check(bytes: &[u8]) -> Result<(), BadBytes> {
        let mut reader = const { Layout::repeat(K::FIXED_SIZE, N) }.check_and_read(bytes)?;
        (0..N).try_for_each(|i| reader.check_key::<K>(i))
    }

    #[inline]
    fn view(bytes: &[u8]) -> Self::Ref<'_> {
        let mut reader = const { Layout::repeat(K::FIXED_SIZE, N) }.read(bytes);
        std::array::from_fn(|_| reader.key::<K>())
    }

    #[inline]
    fn to_ref(&self) -> Self::Ref<'_> {
        self.each_ref().map(K::to_ref)
    }
}
