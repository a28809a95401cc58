//! An epoch that has begun and is not complete.

use crate::shard::ShardCut;
use millstream_state::Epoch;

/// See the module.
pub(crate) struct InFlight {
    pub epoch: Epoch,
    pub is_final: bool,
    pub begun_ns: u64,
    /// Its manifest may or may not be there; a later one decides.
    pub in_doubt: bool,
    pub manifest_bytes: u64,
    /// By shard.
    acknowledged: Vec<Option<ShardCut>>,
}

impl InFlight {
    pub(super) fn begin(epoch: Epoch, is_final: bool, now_ns: u64, shards: u32) -> Self {
        let acknowledged = (0..shards).map(|_| None).collect();
        Self { epoch, is_final, begun_ns: now_ns, in_doubt: false, manifest_bytes: 0, acknowledged }
    }

    pub(super) fn acknowledge(&mut self, shard: u32, cut: ShardCut) {
        self.acknowledged[shard as usize] = Some(cut);
    }

    pub(super) fn is_acknowledged(&self) -> bool {
        self.acknowledged.iter().all(Option::is_some)
    }

    /// Shards that have not acknowledged.
    pub(super) fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        self.acknowledged.iter().enumerate().filter(|(_, cut)| cut.is_none()).map(|(shard, _)| shard)
    }

    /// What the shards have acknowledged, in order.
    pub(super) fn cuts(&self) -> impl Iterator<Item = &ShardCut> {
        self.acknowledged.iter().flatten()
    }
}
