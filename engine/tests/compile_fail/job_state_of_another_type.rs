//! A state has the type of its constant.
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
        _: u64,
        sum: &Self::Handles,
        key: &mut KeyContext<'_, u64>,
        out: &mut impl Collector<u64>,
    ) {
        key.set(sum, &"nine".to_owned());
        out.push(9);
    }
}

fn main() {}
