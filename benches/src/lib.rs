//! Workloads, load generators and reports: how fast Millstream is, beside the limit of the machine it ran on.

pub mod ceiling;
pub mod gaps;
pub mod keyed_count;
pub mod keys;
pub mod machine;
pub mod onlooker;
pub mod report;
pub mod word_count;

mod latency;
mod prefetch;
mod slots;
