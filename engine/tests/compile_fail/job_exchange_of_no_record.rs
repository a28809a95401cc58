//! What crosses an exchange may be logged with a snapshot.
use millstream::prelude::*;
use millstream::source::iter;

#[derive(Clone)]
struct Payment {
    account: u64,
    cents: u64,
}

fn main() {
    let payments = iter(|| (0..9u64).map(|n| Payment { account: n, cents: 1 }));
    let keyed = Job::named("job").source(payments).key_by(|payment| payment.account);
    let _ = keyed.reduce("sums", Emit::Updates, |sum, payment| sum.cents += payment.cents).sink(Discard::counting());
}
