//! What the host offers: cores, their neighbourhoods, quota and limits. Reads, and decides nothing.

use super::cgroup::{self, CpuQuota};
use super::cores::{CoreId, parse_list};
use super::ring::MEMLOCK_FIX;
use millstream_state::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// What a shard's executor wants to lock; below this, once, it does not start at all.
pub const MEMLOCK_PER_SHARD_BYTES: u64 = 512 << 10;

/// One logical core and where it sits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Core {
    /// Its number.
    pub id: CoreId,
    /// The lowest core among those that share its execution units (SMT siblings): itself unless it is a sibling.
    pub physical: CoreId,
    /// The NUMA node it belongs to.
    pub node: u32,
    /// The lowest core among those that share its last-level cache.
    pub cache: CoreId,
    /// Kept free of other work by the kernel (`isolcpus`): used only when named.
    pub isolated: bool,
}

impl Core {
    /// A core with execution units and a last-level cache of its own, on node 0.
    pub const fn lone(id: CoreId) -> Self {
        Self { id, physical: id, node: 0, cache: id, isolated: false }
    }
}

/// What the process may run on. A plain value: tests and tools make their own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Topology {
    /// The cores that are online, by number.
    pub cores: Vec<Core>,
    /// The cores this thread may use (cpuset and affinity mask), by number.
    pub allowed: Vec<CoreId>,
    /// Processor time the control groups grant; `None` when unlimited.
    pub quota: Option<CpuQuota>,
    /// Bytes the process may lock in memory; `None` when unlimited.
    pub memlock_bytes: Option<u64>,
    /// The running kernel.
    pub kernel: KernelVersion,
}

impl Topology {
    /// Looks at the host. To be called before any thread is pinned and from a thread that is not: a pinned thread, and
    /// every thread it starts, sees its own core only.
    ///
    /// What the kernel does not tell (a container without `/sys`) is taken for absent: no siblings, one node, no quota.
    ///
    /// # Errors
    /// [`Unavailable`](millstream_state::ErrorKind::Unavailable) when the affinity mask cannot be read.
    pub fn read() -> Result<Self> {
        let allowed = core_affinity::get_core_ids()
            .ok_or_else(|| Error::unavailable("cannot read which cores this thread may use (sched_getaffinity)"))?;
        let id = |core: core_affinity::CoreId| CoreId(u32::try_from(core.id).expect("Linux has at most 8192 cores"));
        let memlock = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        let kernel = rustix::system::uname();
        Ok(Self::read_below(
            Path::new("/"),
            allowed.into_iter().map(id).collect(),
            memlock.current,
            kernel.release().to_string_lossy().parse().unwrap_or_default(),
        ))
    }

    /// [`Topology::read`] with `/proc` and `/sys` looked up below `root`.
    fn read_below(root: &Path, allowed: BTreeSet<CoreId>, memlock_bytes: Option<u64>, kernel: KernelVersion) -> Self {
        let files = Files { root };
        let sysfs = "sys/devices/system/cpu";
        let online = files.list(&format!("{sysfs}/online"));
        let isolated = files.list(&format!("{sysfs}/isolated"));
        let nodes = files.numa_nodes();
        let numbers: BTreeSet<CoreId> = online.iter().chain(&allowed).copied().collect();
        let cores = numbers.into_iter().map(|id| {
            let lowest = |file: &str| files.list(&format!("{sysfs}/cpu{id}/{file}")).into_iter().min().unwrap_or(id);
            Core {
                id,
                physical: lowest("topology/thread_siblings_list"),
                node: nodes.iter().find(|(_, cores)| cores.contains(&id)).map_or(0, |(node, _)| *node),
                cache: lowest(&format!("cache/{}/shared_cpu_list", files.last_level_cache(id))),
                isolated: isolated.contains(&id),
            }
        });
        let quota = cgroup::quota(
            &files.text("proc/self/cgroup").unwrap_or_default(),
            &files.text("proc/self/mountinfo").unwrap_or_default(),
            |path| files.text(path.strip_prefix("/").unwrap_or(path)),
        );
        Self { cores: cores.collect(), allowed: allowed.into_iter().collect(), quota, memlock_bytes, kernel }
    }

    /// The core of this number, if it is online.
    pub fn core(&self, id: CoreId) -> Option<&Core> {
        self.cores.iter().find(|core| core.id == id)
    }

    /// Checks that this many shards can lock the memory their executors need.
    ///
    /// # Errors
    /// [`Invalid`](millstream_state::ErrorKind::Invalid) when not even one executor starts under the limit.
    pub fn check_memlock(&self) -> Result<()> {
        match self.memlock_bytes {
            Some(bytes) if bytes < MEMLOCK_PER_SHARD_BYTES => Err(Error::invalid(format_args!(
                "the memlock limit is {} KiB, io_uring needs {} KiB per shard; to repair it: {MEMLOCK_FIX}",
                bytes >> 10,
                MEMLOCK_PER_SHARD_BYTES >> 10
            ))),
            _ => Ok(()),
        }
    }
}

/// Version of the Linux kernel; 0.0.0 when it could not be read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct KernelVersion {
    /// 6 in 6.18.44.
    pub major: u16,
    /// 18 in 6.18.44.
    pub minor: u16,
    /// 44 in 6.18.44.
    pub patch: u16,
}

impl KernelVersion {
    /// Version `major.minor.0`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor, patch: 0 }
    }
}

impl FromStr for KernelVersion {
    type Err = Error;

    /// Reads what `uname -r` prints: up to three numbers, then anything.
    fn from_str(release: &str) -> Result<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => {
                Ok(Self { major, minor, patch: numbers.next().and_then(Result::ok).unwrap_or(0) })
            }
            _ => Err(Error::unavailable(format_args!("`{release}` is not a kernel version"))),
        }
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Small text files below a root directory; one that cannot be read or understood is an absent one.
struct Files<'a> {
    root: &'a Path,
}

impl Files<'_> {
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    fn list(&self, path: &str) -> Vec<CoreId> {
        let text = self.text(path).unwrap_or_default();
        if text.trim().is_empty() { Vec::new() } else { parse_list(text.trim()).unwrap_or_default() }
    }

    /// NUMA nodes and the cores of each.
    fn numa_nodes(&self) -> Vec<(u32, Vec<CoreId>)> {
        let Ok(entries) = std::fs::read_dir(self.root.join("sys/devices/system/node")) else { return Vec::new() };
        let mut nodes: Vec<_> = entries
            .filter_map(|entry| {
                let name = entry.ok()?.file_name();
                let number: u32 = name.to_str()?.strip_prefix("node")?.parse().ok()?;
                Some((number, self.list(&format!("sys/devices/system/node/node{number}/cpulist"))))
            })
            .collect();
        nodes.sort();
        nodes
    }

    /// The `indexN` directory of the highest cache level.
    fn last_level_cache(&self, id: CoreId) -> String {
        let level = |index: u32| -> Option<u32> {
            let path = format!("sys/devices/system/cpu/cpu{id}/cache/index{index}/level");
            self.text(path)?.trim().parse().ok()
        };
        let index = (0..8).filter_map(|index| Some((level(index)?, index))).max().map_or(0, |(_, index)| index);
        format!("index{index}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with two sockets of two cores with two threads each (0-3 and 4-7, siblings two apart), core 7 isolated.
    fn two_sockets() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("sys/devices/system/cpu/online", "0-7\n");
        write("sys/devices/system/cpu/isolated", "7\n");
        write("sys/devices/system/node/node0/cpulist", "0-3\n");
        write("sys/devices/system/node/node1/cpulist", "4-7\n");
        write("sys/devices/system/node/possible", "0-1\n");
        for cpu in 0..8 {
            let (socket, physical) = (cpu / 4 * 4, cpu / 4 * 4 + cpu % 2);
            let at = format!("sys/devices/system/cpu/cpu{cpu}");
            write(&format!("{at}/topology/thread_siblings_list"), &format!("{physical},{}\n", physical + 2));
            write(&format!("{at}/cache/index0/level"), "1\n");
            write(&format!("{at}/cache/index0/shared_cpu_list"), &format!("{physical},{}\n", physical + 2));
            write(&format!("{at}/cache/index3/level"), "3\n");
            write(&format!("{at}/cache/index3/shared_cpu_list"), &format!("{socket}-{}\n", socket + 3));
        }
        write("proc/self/cgroup", "0::/jobs\n");
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("sys/fs/cgroup/jobs/cpu.max", "300000 100000\n");
        root
    }

    #[test]
    fn neighbourhoods_come_from_sysfs() {
        let root = two_sockets();
        let allowed = (0..7).map(CoreId).collect();
        let topology = Topology::read_below(root.path(), allowed, Some(1 << 20), KernelVersion::new(6, 1));
        let core = |id, physical, node, cache, isolated| Core {
            id: CoreId(id),
            physical: CoreId(physical),
            node,
            cache: CoreId(cache),
            isolated,
        };
        assert_eq!(topology.cores.len(), 8);
        assert_eq!(topology.core(CoreId(0)), Some(&core(0, 0, 0, 0, false)));
        assert_eq!(topology.core(CoreId(3)), Some(&core(3, 1, 0, 0, false)));
        assert_eq!(topology.core(CoreId(7)), Some(&core(7, 5, 1, 4, true)));
        assert_eq!(topology.core(CoreId(8)), None);
        assert_eq!(topology.allowed.len(), 7);
        assert_eq!(topology.quota, Some(CpuQuota { time_us: 300_000, period_us: 100_000 }));
    }

    #[test]
    fn a_host_that_tells_nothing_has_lone_cores() {
        let root = tempfile::tempdir().unwrap();
        let topology = Topology::read_below(root.path(), BTreeSet::from([CoreId(2)]), None, KernelVersion::default());
        assert_eq!(topology.cores, [Core::lone(CoreId(2))]);
        assert_eq!(topology.quota, None);
    }

    #[test]
    fn this_host_can_be_read() {
        let topology = Topology::read().unwrap();
        assert!(!topology.allowed.is_empty());
        assert!(topology.allowed.iter().all(|&id| topology.core(id).is_some()));
        assert!(topology.kernel > KernelVersion::new(2, 6));
    }

    #[test]
    fn a_kernel_version_is_what_uname_prints() {
        let check = |release: &str, expected: (u16, u16, u16)| {
            let version: KernelVersion = release.parse().unwrap();
            assert_eq!((version.major, version.minor, version.patch), expected, "{release}");
        };
        check("6.18.44-fc-v669", (6, 18, 44));
        check("5.10", (5, 10, 0));
        check("6.1-rc3", (6, 1, 0));
        check("5.15.0-1051-aws", (5, 15, 0));
        assert!("linux".parse::<KernelVersion>().is_err());
    }

    #[test]
    fn a_memlock_limit_below_one_executor_is_an_error_that_says_how_to_raise_it() {
        let root = tempfile::tempdir().unwrap();
        let topology = |memlock| Topology::read_below(root.path(), BTreeSet::new(), memlock, KernelVersion::default());
        assert!(topology(None).check_memlock().is_ok());
        assert!(topology(Some(512 << 10)).check_memlock().is_ok());
        let error = topology(Some(64 << 10)).check_memlock().unwrap_err();
        assert_eq!(error.kind(), millstream_state::ErrorKind::Invalid);
        assert!(error.message().contains("64 KiB") && error.message().contains("ulimit -l"), "{error}");
    }
}
