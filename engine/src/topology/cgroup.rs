//! The CPU quota of this process: how much processor time its control groups grant in each period.
//!
//! Neither the affinity mask nor the list of cores shows it, and a shard that spins beyond it is stopped for the rest of
//! every period. Both versions of control groups are read; the tightest limit on the way to the root counts.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Processor time granted per period, over all cores together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CpuQuota {
    /// Microseconds of processor time in each period; above zero.
    pub time_us: u64,
    /// Length of a period in microseconds; above zero.
    pub period_us: u64,
}

impl CpuQuota {
    /// The quota as a number of cores that may be busy all the time.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of one period are far below 2^53")]
    pub fn cores(self) -> f64 {
        self.time_us as f64 / self.period_us as f64
    }

    /// How many cores may be busy all the time: the quota rounded down, but at least one.
    pub fn whole_cores(self) -> usize {
        usize::try_from(self.time_us / self.period_us).unwrap_or(usize::MAX).max(1)
    }

    /// `max 100000` or `250000 100000`, the content of `cpu.max` (version 2).
    fn from_cpu_max(text: &str) -> Option<Self> {
        let (time, period) = text.trim().split_once(' ')?;
        Self { time_us: time.parse().ok()?, period_us: period.parse().ok()? }.valid()
    }

    /// `cpu.cfs_quota_us` (-1: no limit) and `cpu.cfs_period_us` (version 1).
    fn from_cfs(quota: &str, period: &str) -> Option<Self> {
        Self { time_us: quota.trim().parse().ok()?, period_us: period.trim().parse().ok()? }.valid()
    }

    fn valid(self) -> Option<Self> {
        (self.time_us > 0 && self.period_us > 0).then_some(self)
    }
}

impl fmt::Display for CpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} cores", self.cores())
    }
}

/// Finds the tightest quota of the process whose `/proc/self/cgroup` and `/proc/self/mountinfo` are given; `read`
/// returns the text of a file, or `None` when there is none.
pub(super) fn quota(cgroup: &str, mountinfo: &str, read: impl Fn(&Path) -> Option<String>) -> Option<CpuQuota> {
    let at = |directory: &Path| {
        let file = |name: &str| read(&directory.join(name));
        file("cpu.max").and_then(|text| CpuQuota::from_cpu_max(&text)).or_else(|| {
            let (quota, period) = (file("cpu.cfs_quota_us")?, file("cpu.cfs_period_us")?);
            CpuQuota::from_cfs(&quota, &period)
        })
    };
    mounts(mountinfo)
        .filter_map(|mount| Some((mount.directory_of(membership(cgroup, mount.version)?), mount.point)))
        .flat_map(|(leaf, top)| {
            let below_top = leaf.ancestors().take_while(|path| path.starts_with(&top)).map(Path::to_path_buf);
            below_top.collect::<Vec<_>>()
        })
        .filter_map(|directory| at(&directory))
        .min_by(|a, b| a.cores().total_cmp(&b.cores()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where a hierarchy that can hold a CPU quota is mounted.
struct Mount<'a> {
    version: Version,
    /// Which control group of the hierarchy is seen at `point`; `/` unless in a container.
    root: &'a str,
    point: PathBuf,
}

impl Mount<'_> {
    /// The directory of the group `path`. A path outside the mount (a container without a namespace of its own) is
    /// taken for the mount's root, which is then the container's group.
    fn directory_of(&self, path: &str) -> PathBuf {
        let below = Path::new(path).strip_prefix(self.root).unwrap_or(Path::new(""));
        if below.components().any(|part| part == std::path::Component::ParentDir) {
            return self.point.clone();
        }
        self.point.join(below.strip_prefix("/").unwrap_or(below))
    }
}

/// The group of the process in the version 2 hierarchy, or in the version 1 hierarchy of the `cpu` controller.
fn membership(cgroup: &str, version: Version) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match version {
            Version::One => controllers.split(',').any(|name| name == "cpu"),
            Version::Two => controllers.is_empty(),
        };
        ours.then_some(path)
    })
}

fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        // 36 25 0:31 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
        let (mount, filesystem) = line.split_once(" - ")?;
        let (mut mount, mut filesystem) = (mount.split(' ').skip(3), filesystem.split(' '));
        let (root, point) = (mount.next()?, mount.next()?);
        let version = match filesystem.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if filesystem.nth(1)?.split(',').any(|name| name == "cpu") => Version::One,
            _ => return None,
        };
        Some(Mount { version, root, point: PathBuf::from(point) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "36 29 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      37 29 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    #[track_caller]
    fn check(cgroup: &str, mountinfo: &str, files: &[(&str, &str)], expected: Option<(u64, u64)>) {
        let read =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
        let found = quota(cgroup, mountinfo, read).map(|quota| (quota.time_us, quota.period_us));
        assert_eq!(found, expected, "{cgroup} {files:?}");
    }

    #[test]
    fn version_2_takes_the_tightest_group_on_the_way_to_the_root() {
        let at = |leaf, middle| {
            [
                ("/sys/fs/cgroup/a/b/cpu.max", leaf),
                ("/sys/fs/cgroup/a/cpu.max", middle),
                ("/elsewhere/cpu.max", "1 1000"),
            ]
        };
        check("0::/a/b", V2, &at("250000 100000\n", "max 100000\n"), Some((250_000, 100_000)));
        check("0::/a/b", V2, &at("max 100000", "150000 50000"), Some((150_000, 50_000)));
        check("0::/a/b", V2, &at("400000 100000", "150000 50000"), Some((150_000, 50_000)));
        check("0::/a/b", V2, &at("max 100000", "max 100000"), None);
        check("0::/", V2, &at("100000 100000", "100000 100000"), None);
    }

    #[test]
    fn version_1_reads_the_cpu_controller_only() {
        let files = [
            ("/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ];
        check("9:memory:/m\n4:cpu,cpuacct:/jobs\n0::/", V1, &files, Some((50_000, 100_000)));
        check("4:cpu,cpuacct:/", V1, &files, None);
        check("4:cpuset:/jobs", V1, &files, None);
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount_point() {
        let mount = "30 23 0:26 /docker/f00 /sys/fs/cgroup ro - cgroup2 cgroup rw";
        let files = [("/sys/fs/cgroup/cpu.max", "200000 100000"), ("/sys/fs/cgroup/x/cpu.max", "100000 100000")];
        check("0::/docker/f00", mount, &files, Some((200_000, 100_000)));
        check("0::/docker/f00/x", mount, &files, Some((100_000, 100_000)));
        check("0::/", mount, &files, Some((200_000, 100_000)));
        check("0::/../other", V2, &files, Some((200_000, 100_000)));
    }

    #[test]
    fn nonsense_is_no_quota() {
        let files = |text| [("/sys/fs/cgroup/cpu.max", text)];
        check("0::/", V2, &files("100000 0"), None);
        check("0::/", V2, &files("0 100000"), None);
        check("0::/", V2, &files("full"), None);
        check("", "", &files("100000 100000"), None);
        check("0:", "30 - cgroup2", &files("100000 100000"), None);
    }

    #[test]
    fn a_quota_below_one_core_still_runs_one_shard() {
        let quota = |time_us| CpuQuota { time_us, period_us: 100_000 };
        assert_eq!(quota(50_000).whole_cores(), 1);
        assert_eq!(quota(250_000).whole_cores(), 2);
        assert_eq!(quota(250_000).to_string(), "2.50 cores");
    }
}
