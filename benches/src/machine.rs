//! The machine a benchmark ran on: what a reader of a result file needs to judge it or to run it again.
//!
//! Read once, before the run. What a host does not tell is `None`, never a guess.

use millstream::topology::{CoreId, CpuQuota, Topology};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;

/// See the module.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: Option<String>,
    /// `x86_64` or `aarch64`.
    pub architecture: String,
    /// Logical cores that are online.
    pub cores_online: usize,
    /// Logical cores the process may use.
    pub cores_allowed: Vec<CoreId>,
    /// Physical cores among the allowed ones.
    pub cores_physical: usize,
    /// NUMA nodes among the allowed ones.
    pub numa_nodes: usize,
    /// CPU quota of the control groups, in cores.
    pub quota_cores: Option<f64>,
    /// Whether it is a virtual machine.
    pub virtual_machine: bool,
    /// Frequency governor of the first allowed core.
    pub governor: Option<String>,
    /// Where the kernel takes the time from.
    pub clock_source: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Setting of transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Filesystem under the state directory.
    pub state_filesystem: Option<Filesystem>,
    /// Commit the program was built in, when it still lies in its repository; ends in `-dirty` if that was changed.
    pub commit: Option<String>,
    /// Version of the program.
    pub version: String,
    /// Whether the program was built without optimization: its figures mean nothing then.
    pub debug_build: bool,
}

/// A mounted filesystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Filesystem {
    /// `ext4`, `xfs`, `tmpfs`..
    pub kind: String,
    /// Device or server it is mounted from.
    pub source: String,
    /// Mount options.
    pub options: String,
}

impl Machine {
    /// Describes this machine; `state_dir` (or what will be its parent) tells which filesystem counts.
    pub fn read(topology: &Topology, state_dir: Option<&Path>) -> Self {
        Self::read_below(Path::new("/"), topology, state_dir, commit())
    }

    fn read_below(root: &Path, topology: &Topology, state_dir: Option<&Path>, commit: Option<String>) -> Self {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let line = |path: &str| text(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let cpuinfo = text("proc/cpuinfo").unwrap_or_default();
        let allowed: Vec<_> = topology.allowed.iter().filter_map(|&id| topology.core(id)).collect();
        let distinct = |mut numbers: Vec<u32>| {
            numbers.sort_unstable();
            numbers.dedup();
            numbers.len()
        };
        let governor = |id: &CoreId| line(&format!("sys/devices/system/cpu/cpu{id}/cpufreq/scaling_governor"));
        Self {
            cpu: field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "CPU part")),
            architecture: std::env::consts::ARCH.to_owned(),
            cores_online: topology.cores.len(),
            cores_allowed: topology.allowed.clone(),
            cores_physical: distinct(allowed.iter().map(|core| core.physical.0).collect()),
            numa_nodes: distinct(allowed.iter().map(|core| core.node).collect()),
            quota_cores: topology.quota.map(CpuQuota::cores),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor")),
            governor: topology.allowed.first().and_then(governor),
            clock_source: line("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            memory_bytes: text("proc/meminfo").as_deref().and_then(memory_bytes),
            transparent_huge_pages: line("sys/kernel/mm/transparent_hugepage/enabled").and_then(|text| chosen(&text)),
            kernel: line("proc/sys/kernel/osrelease"),
            state_filesystem: state_dir.and_then(|dir| filesystem_of(&text("proc/self/mountinfo")?, &absolute(dir)?)),
            commit,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            debug_build: cfg!(debug_assertions),
        }
    }
}

/// The filesystem that holds `path`, which need not exist yet.
pub fn filesystem(path: &Path) -> Option<Filesystem> {
    filesystem_of(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &absolute(path)?)
}

/// The word in brackets: which of the settings of a `/sys` file is in force.
pub fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kib: u64 = field(meminfo, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Resolves what exists of `path`; the rest is put behind it.
fn absolute(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|above| {
        let there = above.canonicalize().ok()?;
        Some(path.strip_prefix(above).map_or_else(|_| there.clone(), |rest| there.join(rest)))
    })
}

/// The mount whose point is the longest prefix of `path`; of several at one point the last covers the others.
fn filesystem_of(mountinfo: &str, path: &Path) -> Option<Filesystem> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(4);
        // Blanks and the like are written as \040.
        let point = PathBuf::from(mount.next()?.replace("\\040", " "));
        let options = mount.next()?.to_owned();
        let mut filesystem = filesystem.split(' ');
        let (kind, source) = (filesystem.next()?.to_owned(), filesystem.next()?.to_owned());
        path.starts_with(&point).then(|| (point.components().count(), Filesystem { kind, source, options }))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, filesystem)| filesystem)
}

/// Asks git about the repository that the running program lies in (`target/release/..`), or else the current directory.
fn commit() -> Option<String> {
    let program = std::env::current_exe().ok();
    let places = program.as_deref().and_then(Path::parent).into_iter().chain([Path::new(".")]);
    places.into_iter().find_map(|place| {
        let mut git = Command::new("git");
        git.arg("-C").arg(place).args(["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]);
        let output = git.output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8(output.stdout).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream::topology::{Core, KernelVersion};

    const MOUNTS: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
                          30 27 0:27 / /data\\040disk rw,noatime shared:1 - xfs /dev/nvme0n1 rw\n\
                          31 27 0:28 / /data rw - btrfs /dev/sda rw\n\
                          32 27 0:29 / /data rw - tmpfs none rw";

    #[track_caller]
    fn check(path: &str, kind: &str) {
        assert_eq!(filesystem_of(MOUNTS, Path::new(path)).unwrap().kind, kind, "{path}");
    }

    #[test]
    fn a_path_belongs_to_its_deepest_and_last_mount() {
        check("/home/x", "ext4");
        check("/data disk/job", "xfs");
        check("/data/job", "tmpfs");
        check("/database", "ext4");
        assert_eq!(filesystem_of("", Path::new("/")), None);
    }

    #[test]
    fn what_the_host_tells_is_read_and_what_not_is_none() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let mut cores: Vec<Core> = (0..4).map(|id| Core::lone(CoreId(id))).collect();
        cores[3].physical = CoreId(2);
        cores[3].node = 1;
        let topology = Topology {
            cores,
            allowed: vec![CoreId(1), CoreId(2), CoreId(3)],
            quota: Some(CpuQuota { time_us: 150_000, period_us: 100_000 }),
            memlock_bytes: None,
            kernel: KernelVersion::new(6, 1),
        };
        let silent = Machine::read_below(root.path(), &topology, None, None);
        assert_eq!((silent.cpu, silent.memory_bytes, silent.governor), (None, None, None));
        write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast One\nflags\t\t: fpu hypervisor sse\n");
        write("proc/meminfo", "MemTotal:       24684084 kB\nMemFree: 1 kB\n");
        write("proc/sys/kernel/osrelease", "6.1.0-test\n");
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n");
        write("proc/self/mountinfo", MOUNTS);
        let machine = Machine::read_below(root.path(), &topology, Some(Path::new("/")), Some("abc".to_owned()));
        assert_eq!(machine.cpu.as_deref(), Some("Fast One"));
        assert_eq!(machine.memory_bytes, Some(24_684_084 << 10));
        assert_eq!(machine.transparent_huge_pages.as_deref(), Some("madvise"));
        assert_eq!(machine.governor.as_deref(), Some("performance"));
        assert_eq!((machine.cores_online, machine.cores_physical, machine.numa_nodes), (4, 2, 2));
        assert_eq!(machine.quota_cores, Some(1.5));
        assert!(machine.virtual_machine);
        assert_eq!(machine.state_filesystem.unwrap().kind, "ext4");
        assert_eq!(machine.clock_source, None);
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_on_its_parents_filesystem() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(filesystem(&root.path().join("a/b/c")), filesystem(root.path()));
        assert!(filesystem(root.path()).is_some());
    }
}
