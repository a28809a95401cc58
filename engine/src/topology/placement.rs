//! Which shard goes to which core: a pure function of what was asked for and what there is.
//!
//! Order of preference: cores of one NUMA node together, inside it those that share a last-level cache; one logical core
//! per physical one before any sibling. The invariants stand in the module above.

use super::cores::{CoreId, Cores, SHARDS_MAX, Wish, show_list};
use super::host::{Core, MEMLOCK_PER_SHARD_BYTES, Topology};
use millstream_state::{Error, Result};

/// From this many cores on, `auto` leaves one to the threads that are not shards: it costs at most a quarter then.
const CORES_TO_SPARE_ONE: usize = 4;

/// Most shards for each core they share. A shard that waits costs 20 MiB, and every turn of every shard a look at all
/// others: 64 shards on two cores begin in two seconds, 1024 in none that anybody has waited for.
const SHARDS_PER_CORE_MAX: usize = 16;
/// So many are allowed on any host: what a state does on a larger one can be tried on a small one.
const SHARDS_ANYWHERE: usize = 64;

/// Where the shards of a job run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The core of each shard, in shard order; `None`: this shard is not pinned.
    pub shards: Vec<Option<CoreId>>,
    /// The allowed cores that carry no shard: room for the threads that are not shards.
    pub spare: Vec<CoreId>,
    /// What is not as good as it could be, one sentence each, with what to do about it.
    pub warnings: Vec<String>,
}

impl Topology {
    /// Decides how many shards there are and which core each is pinned to.
    ///
    /// `auto` takes the physical cores the process may use, at most its CPU quota, and leaves one of four or more to the
    /// threads that are not shards. A count takes the same cores in the same order, then their SMT siblings, then leaves
    /// shards unpinned. A list is taken as it stands, in its order; isolated cores can be had only that way.
    ///
    /// # Errors
    /// [`Invalid`](millstream_state::ErrorKind::Invalid) when a named core does not exist or is not allowed, when the
    /// process may use no core at all, or when the count is not between 1 and [`SHARDS_MAX`], or above 64 and 16 for each core.
    pub fn plan(&self, cores: &Cores) -> Result<Placement> {
        let mut warnings = Vec::new();
        let shards: Vec<Option<CoreId>> = match cores.wish() {
            Wish::Auto => self.automatic()?.into_iter().map(Some).collect(),
            Wish::Count(count) => self.counted(*count, &mut warnings)?,
            Wish::Named(named) => {
                self.check_named(cores, named)?;
                named.iter().copied().map(Some).collect()
            }
        };
        let used: Vec<&Core> = shards.iter().flatten().filter_map(|&id| self.core(id)).collect();
        warn_of_siblings(&used, &mut warnings);
        warn_of_nodes(&used, &mut warnings);
        self.warn_of_limits(shards.len(), &mut warnings);
        let spare = self.allowed.iter().copied().filter(|&id| !shards.contains(&Some(id))).collect();
        Ok(Placement { shards, spare, warnings })
    }

    /// Allowed cores that are not isolated, best first: physical cores, then their siblings.
    fn ranked(&self) -> (Vec<CoreId>, Vec<CoreId>) {
        let mut usable: Vec<&Core> = self.allowed.iter().filter_map(|&id| self.core(id)).collect();
        usable.retain(|core| !core.isolated);
        usable.sort_by_key(|core| (core.node, core.cache, core.physical, core.id));
        // Siblings are neighbours in this order; the first allowed one stands for the physical core.
        let mut physical: Vec<CoreId> = Vec::new();
        let mut siblings: Vec<CoreId> = Vec::new();
        let mut last = None;
        for core in usable {
            let group = if last == Some(core.physical) { &mut siblings } else { &mut physical };
            group.push(core.id);
            last = Some(core.physical);
        }
        (physical, siblings)
    }

    fn automatic(&self) -> Result<Vec<CoreId>> {
        let (mut physical, _) = self.ranked();
        if physical.is_empty() {
            return Err(Error::invalid(format_args!(
                "this process may use no core that is not isolated (allowed: {}); name the cores to use",
                show_list(&self.allowed)
            )));
        }
        let room = self.quota.map_or(physical.len(), |quota| quota.whole_cores().min(physical.len()));
        physical.truncate(if room >= CORES_TO_SPARE_ONE { room - 1 } else { room });
        Ok(physical)
    }

    fn counted(&self, count: u32, warnings: &mut Vec<String>) -> Result<Vec<Option<CoreId>>> {
        if count == 0 || count > SHARDS_MAX {
            return Err(Error::invalid(format_args!("{count} shards: must be between 1 and {SHARDS_MAX}")));
        }
        let (physical, siblings) = self.ranked();
        let available = physical.len() + siblings.len();
        let most = SHARDS_ANYWHERE.max(SHARDS_PER_CORE_MAX * available);
        if count as usize > most {
            return Err(Error::invalid(format_args!(
                "--cores {count}: {count} shards on {} (allowed: {}) would hardly make progress; at most {most} share them, and \
                 {} of them run at full speed",
                cores_in_words(available),
                show_list(&self.allowed),
                available.max(1)
            )));
        }
        let mut cores = physical.into_iter().chain(siblings);
        let shards: Vec<_> = (0..count).map(|_| cores.next()).collect();
        let unpinned = shards.len().saturating_sub(available);
        if unpinned > 0 {
            warnings.push(format!(
                "{count} shards on {} (allowed: {}): {unpinned} run unpinned and share cores with the \
                 others; ask for {} or allow more cores",
                cores_in_words(available),
                show_list(&self.allowed),
                available.max(1)
            ));
        }
        Ok(shards)
    }

    fn check_named(&self, cores: &Cores, named: &[CoreId]) -> Result<()> {
        let isolated: Vec<CoreId> = self.cores.iter().filter(|core| core.isolated).map(|core| core.id).collect();
        let may_use = |id: &CoreId| self.allowed.contains(id) || isolated.contains(id);
        let refused: Vec<CoreId> = named.iter().copied().filter(|id| !may_use(id)).collect();
        let Some(&first) = refused.first() else { return Ok(()) };
        let which = if refused.len() == 1 { format!("core {first}") } else { format!("cores {}", show_list(&refused)) };
        let why = if refused.iter().all(|&id| self.core(id).is_none()) {
            "not there or not online"
        } else {
            "not among those this process may use (taskset, cpuset)"
        };
        let mut message = format!("--cores {cores}: {which} {why}; allowed: {}", show_list(&self.allowed));
        if !isolated.is_empty() {
            message.push_str(&format!(", isolated: {}", show_list(&isolated)));
        }
        Err(Error::invalid(message))
    }

    fn warn_of_limits(&self, shards: usize, warnings: &mut Vec<String>) {
        if let Some(quota) = self.quota.filter(|quota| shards > quota.whole_cores() || quota.cores() < 1.0) {
            warnings.push(format!(
                "{shards} shards under a CPU quota of {quota}: all of them are stopped for part of every {} ms once it \
                 is used up; run at most {} shards or raise the quota",
                quota.period_us / 1000,
                quota.whole_cores()
            ));
        }
        let wanted = MEMLOCK_PER_SHARD_BYTES * shards as u64;
        if let Some(bytes) = self.memlock_bytes.filter(|&bytes| bytes >= MEMLOCK_PER_SHARD_BYTES && bytes < wanted) {
            warnings.push(format!(
                "the memlock limit of {} KiB is below the {} KiB that {shards} shards want: some do without registered \
                 buffers; raise it with `ulimit -l unlimited`",
                bytes >> 10,
                wanted >> 10
            ));
        }
    }
}

fn cores_in_words(count: usize) -> String {
    format!("{count} {}", if count == 1 { "core" } else { "cores" })
}

/// Two shards that share execution units run at little more than the speed of one.
fn warn_of_siblings(used: &[&Core], warnings: &mut Vec<String>) {
    let pair = used.iter().enumerate().find_map(|(i, core)| {
        let twin = used[..i].iter().find(|other| other.physical == core.physical)?;
        Some((twin.id, core.id))
    });
    if let Some((first, second)) = pair {
        warnings.push(format!(
            "cores {first} and {second} are SMT siblings: shards on both share one physical core and slow each other down"
        ));
    }
}

/// An exchange between nodes crosses the slower link with every chunk.
fn warn_of_nodes(used: &[&Core], warnings: &mut Vec<String>) {
    let mut nodes: Vec<u32> = used.iter().map(|core| core.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() > 1 {
        warnings.push(format!("the shards span {} NUMA nodes: exchanges between them are slower", nodes.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CpuQuota, KernelVersion};
    use super::*;

    /// `cores` lone cores, all allowed.
    fn plain(cores: u32) -> Topology {
        Topology {
            cores: (0..cores).map(|id| Core::lone(CoreId(id))).collect(),
            allowed: (0..cores).map(CoreId).collect(),
            quota: None,
            memlock_bytes: None,
            kernel: KernelVersion::new(6, 1),
        }
    }

    /// Two nodes of four physical cores with two threads each; siblings are 8 apart, as Linux mostly numbers them, and
    /// node 1 has the even cores. Two last-level caches per node.
    fn server() -> Topology {
        let mut host = plain(16);
        for core in &mut host.cores {
            let physical = core.id.0 % 8;
            core.physical = CoreId(physical);
            core.node = 1 - physical % 2;
            core.cache = CoreId(physical % 4);
        }
        host
    }

    fn with_quota(mut host: Topology, percent: u64) -> Topology {
        host.quota = Some(CpuQuota { time_us: percent * 1000, period_us: 100_000 });
        host
    }

    fn shown(shards: &[Option<CoreId>]) -> String {
        let show = |core: &Option<CoreId>| core.map_or("-".to_owned(), |core| core.to_string());
        shards.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    /// `warnings`: one word of each expected warning, in order.
    #[track_caller]
    fn check(host: &Topology, cores: &str, shards: &str, warnings: &[&str]) {
        let placement = host.plan(&cores.parse().unwrap()).unwrap();
        assert_eq!(shown(&placement.shards), shards, "{cores}");
        let hits = placement.warnings.iter().zip(warnings).all(|(found, word)| found.contains(word));
        assert!(hits && placement.warnings.len() == warnings.len(), "{cores}: {:?}", placement.warnings);
        let mut all: Vec<CoreId> = placement.shards.iter().flatten().chain(&placement.spare).copied().collect();
        all.sort();
        let twice = all.windows(2).any(|pair| pair[0] == pair[1]);
        assert!(!twice, "I2: {all:?}");
    }

    #[track_caller]
    fn check_refused(host: &Topology, cores: &str, words: &[&str]) {
        let error = host.plan(&cores.parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), millstream_state::ErrorKind::Invalid);
        assert!(words.iter().all(|word| error.message().contains(word)), "{error}");
    }

    #[test]
    fn auto_takes_every_core_and_spares_one_of_four() {
        check(&plain(1), "auto", "0", &[]);
        check(&plain(2), "auto", "0 1", &[]);
        check(&plain(3), "auto", "0 1 2", &[]);
        check(&plain(4), "auto", "0 1 2", &[]);
        check(&plain(6), "auto", "0 1 2 3 4", &[]);
    }

    #[test]
    fn auto_stays_within_the_quota() {
        check(&with_quota(plain(8), 200), "auto", "0 1", &[]);
        check(&with_quota(plain(8), 290), "auto", "0 1", &[]);
        check(&with_quota(plain(8), 400), "auto", "0 1 2", &[]);
        check(&with_quota(plain(8), 6400), "auto", "0 1 2 3 4 5 6", &[]);
        check(&with_quota(plain(8), 50), "auto", "0", &["quota of 0.50 cores"]);
    }

    #[test]
    fn neighbours_come_first_and_siblings_last() {
        // Node 0 has the odd cores; the caches there are {1, 5} and {3, 7}.
        check(&server(), "2", "1 5", &[]);
        check(&server(), "4", "1 5 3 7", &[]);
        check(&server(), "6", "1 5 3 7 0 4", &["NUMA"]);
        check(&server(), "9", "1 5 3 7 0 4 2 6 9", &["1 and 9 are SMT siblings", "NUMA"]);
        check(&server(), "auto", "1 5 3 7 0 4 2", &["NUMA"]);
    }

    #[test]
    fn a_sibling_stands_for_its_physical_core_when_that_is_not_allowed() {
        let mut host = server();
        host.allowed = [8, 9, 1, 5].map(CoreId).to_vec();
        check(&host, "3", "1 5 8", &["NUMA"]);
        check(&host, "4", "1 5 8 9", &["1 and 9 are SMT siblings", "NUMA"]);
    }

    #[test]
    fn more_shards_than_cores_run_unpinned_with_a_warning() {
        check(&plain(2), "4", "0 1 - -", &["2 run unpinned"]);
        check(&plain(1), "2", "0 -", &["on 1 core (allowed: 0): 1 run unpinned"]);
        check(&with_quota(plain(2), 200), "3", "0 1 -", &["1 run unpinned", "at most 2 shards"]);
    }

    #[test]
    fn more_shards_than_cores_can_drive_are_refused() {
        assert_eq!(plain(2).plan(&Cores::count(64)).unwrap().shards.len(), 64);
        check_refused(
            &plain(2),
            "65",
            &["--cores 65", "on 2 cores (allowed: 0-1)", "at most 64", "2 of them run at full speed"],
        );
        assert_eq!(plain(16).plan(&Cores::count(256)).unwrap().shards.len(), 256);
        check_refused(&plain(16), "257", &["at most 256"]);
        assert_eq!(plain(64).plan(&Cores::count(SHARDS_MAX)).unwrap().shards.len(), 1024);
    }

    #[test]
    fn a_count_above_the_quota_is_kept_with_a_warning() {
        check(&with_quota(plain(4), 250), "4", "0 1 2 3", &["stopped for part of every 100 ms"]);
        check(&with_quota(plain(4), 250), "2", "0 1", &[]);
    }

    #[test]
    fn a_list_is_taken_as_it_stands() {
        check(&plain(4), "3,0-1", "3 0 1", &[]);
        check(&server(), "1,9", "1 9", &["SMT siblings"]);
        check(&plain(2), "1-1", "1", &[]);
    }

    #[test]
    fn cores_that_are_not_there_are_refused_and_the_allowed_ones_named() {
        check_refused(&plain(2), "0-3", &["cores 2-3", "not there", "allowed: 0-1"]);
        let mut host = plain(4);
        host.allowed = vec![CoreId(0), CoreId(2)];
        check_refused(&host, "0-1", &["core 1", "may use", "allowed: 0,2"]);
        check_refused(&host, "2,9", &["core 9", "not there", "allowed: 0,2"]);
    }

    #[test]
    fn isolated_cores_are_used_only_when_named() {
        let mut host = plain(4);
        host.cores[3].isolated = true;
        host.allowed = [0, 1, 2].map(CoreId).to_vec();
        check(&host, "auto", "0 1 2", &[]);
        check(&host, "4", "0 1 2 -", &["unpinned"]);
        check(&host, "2-3", "2 3", &[]);
        check_refused(&host, "4-4", &["allowed: 0-2, isolated: 3"]);
        host.allowed = vec![CoreId(3)];
        check_refused(&host, "auto", &["name the cores"]);
        check(&host, "1", "-", &["unpinned"]);
    }

    #[test]
    fn spare_cores_are_the_allowed_ones_without_a_shard() {
        let placement = plain(4).plan(&Cores::auto()).unwrap();
        assert_eq!(placement.spare, [CoreId(3)]);
        assert_eq!(server().plan(&Cores::count(8)).unwrap().spare.len(), 8);
    }

    #[test]
    fn a_count_outside_its_range_is_refused_also_without_parsing() {
        for count in [0, SHARDS_MAX + 1] {
            let error = plain(2).plan(&Cores::count(count)).unwrap_err();
            assert_eq!(error.kind(), millstream_state::ErrorKind::Invalid);
        }
    }

    #[test]
    fn memlock_for_fewer_executors_than_shards_is_a_warning() {
        let mut host = plain(4);
        host.memlock_bytes = Some(1 << 20);
        check(&host, "2", "0 1", &[]);
        check(&host, "3", "0 1 2", &["1024 KiB is below the 1536 KiB"]);
    }
}
