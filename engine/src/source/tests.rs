//! Sources stop anywhere and go on from their position as if they had not stopped.

use super::*;
use crate::items::Own;
use millstream_state::io::BlockingDisk;
use proptest::prelude::*;

/// What a reader said and handed out, polled at these times.
fn poll<T: 'static>(reader: &mut impl Reader<Items = Own<T>>, now_ns: u64, max: usize, out: &mut Vec<T>) -> Polled {
    let mut disk = BlockingDisk::new();
    let mut cx = ReadContext { disk: &mut disk, now_ns };
    reader.poll(&mut cx, max, &mut |item| out.push(item)).unwrap()
}

fn drain<T: 'static>(reader: &mut impl Reader<Items = Own<T>>, max: usize) -> Vec<T> {
    let mut out = Vec::new();
    while poll(reader, 0, max, &mut out) != Polled::Ended {}
    out
}

fn splits_of(reader: &impl Reader) -> Vec<Split> {
    let mut splits = Vec::new();
    reader.splits(&mut splits);
    splits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_generator_makes_every_index_once_on_any_shards_from_any_position(
        seed in 0..u64::MAX, count in 0..500_u64, slices in 1..20_u32, shards in 1..5_u32, max in 1..40_usize, stop in 0..20_usize,
    ) {
        let source = Generator::new(seed, |index, random| (index, random.next_u64())).count(count).slices(slices);
        let mut made = Vec::new();
        let mut positions = Vec::new();
        for shard in 0..shards {
            let dealt = source.splits(shards).unwrap().into_iter().skip(shard as usize).step_by(shards as usize).collect();
            let mut reader = source.open(shard, shards, dealt).unwrap();
            for _ in 0..stop {
                poll(&mut reader, 0, max, &mut made);
            }
            positions.extend(splits_of(&reader));
        }
        prop_assert!(source.new_splits(1, &positions).unwrap().is_empty());
        let mut reader = source.open(0, 1, positions).unwrap();
        prop_assert_eq!(reader.remaining(), Some(count - made.len() as u64));
        made.extend(drain(&mut reader, max));
        prop_assert!(splits_of(&reader).iter().all(|split| split.ended));
        made.sort_unstable();
        let expected: Vec<(u64, u64)> = (0..count).map(|index| (index, Random::at(seed, index).next_u64())).collect();
        prop_assert_eq!(made, expected);
    }
}

#[test]
fn a_generator_takes_its_slices_in_turn() {
    let source = Generator::new(1, |index, _| index).slices(3);
    let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
    let mut out = Vec::new();
    for _ in 0..4 {
        poll(&mut reader, 0, 2, &mut out);
    }
    assert_eq!(out, [0, 3, 1, 4, 2, 5, 6, 9]);
    assert_eq!(reader.remaining(), None);
    assert_eq!(reader.place(), "generator at index 9");
}

#[test]
fn splits_of_another_generator_are_refused() {
    let source = |seed, splits| Generator::new(seed, |index, _| index).slices(splits);
    let known = source(7, 4).splits(1).unwrap();
    for other in [source(8, 4), source(7, 5)] {
        assert!(other.new_splits(1, &known).unwrap_err().message().contains("slices"));
        assert!(other.open(0, 1, known.clone()).is_err());
    }
    let mut moved = known;
    moved[1].position = 2_u64.into();
    assert!(source(7, 4).open(0, 1, moved).is_err(), "index 2 is of slice 2");
}

#[test]
fn random_numbers_are_spread_and_neighbours_share_none() {
    let mut ones = [0_u32; 64];
    let mut seen = std::collections::HashSet::new();
    for index in 0..10_000 {
        let mut random = Random::at(3, index);
        for _ in 0..4 {
            let number = random.next_u64();
            assert!(seen.insert(number));
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += u32::from(number >> bit & 1 == 1);
            }
        }
    }
    // 40,000 fair coins: 20,000 with a deviation of 100.
    assert!(ones.iter().all(|count| (19_400..20_600).contains(count)), "{ones:?}");
    let mut random = Random::at(3, 0);
    assert_eq!(random.below(0), 0);
    assert!((0..1000).all(|_| random.below(3) < 3 && random.unit() < 1.0 && !random.chance(0.0) && random.chance(1.0)));
}

#[test]
fn a_rate_is_kept_by_due_times_and_made_up_after_a_stall() {
    // 1000 per second over two readers: every 2 ms.
    let source = Generator::timed(1, |index, _, due_ns| (index, due_ns)).slices(1).rate(1000.0);
    let mut reader = source.open(0, 2, source.splits(2).unwrap()).unwrap();
    let mut out = Vec::new();
    let ms = 1_000_000;
    assert_eq!(poll(&mut reader, 5 * ms, 10, &mut out), Polled::Records(1));
    assert_eq!(poll(&mut reader, 5 * ms, 10, &mut out), Polled::Pending { due_ns: Some(7 * ms) });
    assert_eq!(poll(&mut reader, 7 * ms, 10, &mut out), Polled::Records(1));
    assert_eq!(poll(&mut reader, 12 * ms, 10, &mut out), Polled::Records(2), "two are late");
    assert_eq!(poll(&mut reader, 12 * ms, 10, &mut out), Polled::Pending { due_ns: Some(13 * ms) });
    assert_eq!(out, [(0, 5 * ms), (1, 7 * ms), (2, 9 * ms), (3, 11 * ms)], "due times, not when they were made");
}

#[test]
fn a_rate_beyond_every_clock_holds_nothing_back() {
    let source = iter(|| 0..5_u64).rate(1e308);
    let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
    let mut out = Vec::new();
    for now_ns in [1_000, 2_000, u64::MAX] {
        poll(&mut reader, now_ns, 2, &mut out);
    }
    assert_eq!(out, [0, 1, 2, 3, 4]);
}

#[test]
fn any_source_can_be_held_to_a_rate() {
    let source = iter(|| 0..5_u64).rate(100.0);
    assert!(source.describe().contains("100 records/s"));
    let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
    let mut out = Vec::new();
    assert_eq!(poll(&mut reader, 0, 10, &mut out), Polled::Records(1));
    assert_eq!(poll(&mut reader, 9_999_999, 10, &mut out), Polled::Pending { due_ns: Some(10_000_000) });
    assert_eq!(poll(&mut reader, 25_000_000, 10, &mut out), Polled::Records(2));
    assert_eq!(poll(&mut reader, 1_000_000_000, 10, &mut out), Polled::Records(2));
    assert_eq!(poll(&mut reader, 1_000_000_000, 10, &mut out), Polled::Ended);
    assert_eq!(out, [0, 1, 2, 3, 4]);
}

#[test]
fn an_iterator_resumes_behind_what_was_handed_out() {
    let source = iter(|| (0..100_u64).map(|n| n * n));
    let expected: Vec<u64> = (0..100).map(|n| n * n).collect();
    for stop in [0, 1, 7, 99, 100] {
        let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
        let mut out = Vec::new();
        while out.len() < stop {
            poll(&mut reader, 0, 1, &mut out);
        }
        let mut restored = source.open(0, 1, splits_of(&reader)).unwrap();
        out.extend(drain(&mut restored, 8));
        assert_eq!(out, expected, "resumed at {stop}");
        assert!(splits_of(&restored)[0].ended);
        assert!(drain(&mut source.open(0, 1, splits_of(&restored)).unwrap(), 8).is_empty(), "an end is kept");
    }
    assert!(drain(&mut source.open(1, 1, Vec::new()).unwrap(), 8).is_empty(), "a shard without the split has nothing");
}

#[test]
fn a_channel_holds_senders_back_and_ends_with_the_last_of_them() {
    let (sender, source) = channel::<u64>(2);
    assert!(!source.replayable() && source.describe().contains("not replayable"));
    let mut reader = source.open(0, 1, source.splits(1).unwrap()).unwrap();
    assert!(source.open(0, 1, source.splits(1).unwrap()).is_err(), "it is read once");
    let mut out = Vec::new();
    assert!(matches!(poll(&mut reader, 3, 10, &mut out), Polled::Pending { due_ns: Some(due_ns) } if due_ns > 3));
    sender.send(1).unwrap();
    sender.send(2).unwrap();
    assert_eq!(sender.try_send(3), Err(SendError::Full(3)));
    assert_eq!(poll(&mut reader, 0, 1, &mut out), Polled::Records(1));
    let other = sender.clone();
    other.try_send(3).unwrap();
    drop(sender);
    assert_eq!(poll(&mut reader, 0, 10, &mut out), Polled::Records(2));
    assert!(matches!(poll(&mut reader, 0, 10, &mut out), Polled::Pending { .. }));
    drop(other);
    assert_eq!(poll(&mut reader, 0, 10, &mut out), Polled::Ended);
    assert_eq!(out, [1, 2, 3]);
    assert!(splits_of(&reader)[0].ended);

    let (sender, source) = channel::<u64>(2);
    drop(source);
    assert_eq!(sender.send(1), Err(SendError::Stopped(1)));
}
