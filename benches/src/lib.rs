//! Workloads, load generators and reports: how fast Millstream is, beside the limit of the machine it ran on.

pub mod ceiling;
pub mod keys;

mod prefetch;
mod slots;
