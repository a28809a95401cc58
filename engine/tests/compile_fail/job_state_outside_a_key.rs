//! State is under a key; a handle alone reads nothing.
use millstream::prelude::*;

const SUM: ValueState<u64> = ValueState::named("sum");

#[derive(Clone)]
struct Sum;

impl KeyedProcess<u64, u64> for Sum {
    type Handles = ValueHandle<u64, u64>;
    type Out = u64;

    fn open(&self, states: &mut ProcessState<'_, u64>) -> Self::Handles {
        states.value(SUM)
    }

    fn on_record(
        &self,
        n: u64,
        sum: &Self::Handles,
        _: &mut KeyContext<'_, u64>,
        out: &mut impl Collector<u64>,
    ) {
        out.push(sum.get().unwrap_or(0) + n);
    }
}

fn main() {}
