//! `millstream doctor`: does this host have what a job needs, and what exactly repairs it?
//!
//! Looking and judging are apart: [`Facts::gather`] looks, [`diagnose`] is a pure function of what was seen, which tests
//! make by hand. Nothing is changed: a file written to try direct I/O is removed again.
//!
//! Three levels: *problem*, a job does not start or is not safe; *warning*, it runs slower or stalls; *ok*. Every finding
//! that is not ok names the command that repairs it.

use crate::exit::{self, Failure};
use crate::out;
use clap::Args;
use millstream::topology::{
    Cores, KernelVersion, MEMLOCK_FIX, MEMLOCK_PER_SHARD_BYTES, OPEN_FILES_FIX, Placement, RingRefusal, Topology,
    open_files_needed, open_files_wanted, try_ring,
};
use millstream_bench::machine::{self, Filesystem};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

/// The oldest kernel on which the runtime's io_uring operations exist.
const KERNEL_MIN: KernelVersion = KernelVersion::new(5, 8);
/// The oldest kernel that can populate memory ahead of its use (`MADV_POPULATE_WRITE`).
const KERNEL_GOOD: KernelVersion = KernelVersion::new(5, 14);

const DIRECT_BLOCK_BYTES: usize = 4096;

/// Checks whether this host has what a job needs, and says how to repair what it has not.
///
/// Exit code 0 when a job can run here (warnings included), 1 when it cannot.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Directory whose filesystem will hold the state; it need not exist yet.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) state_dir: PathBuf,

    /// The same, written as for `millstream snapshot`
    #[arg(value_name = "DIR", conflicts_with = "state_dir")]
    pub(crate) dir: Option<PathBuf>,

    /// Cores the job will ask for: a count (`2`), a list (`0-1`, `0,2-3`) or `auto`.
    #[arg(long, value_name = "CORES", default_value = "auto")]
    pub(crate) cores: Cores,

    /// Print one JSON object instead of lines.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Looks at the host, prints what it found, and returns 0 when nothing is a problem, otherwise 1.
pub(crate) fn run(args: &DoctorArgs) -> exit::Result {
    let facts = Facts::gather(args).map_err(|error| Failure::new(exit::CHECK_FAILED, error))?;
    let report = Report::of(diagnose(&facts));
    out::report(args.json, &report, Report::to_text)?;
    Ok(if report.ok { exit::OK } else { exit::CHECK_FAILED })
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Problem,
}

/// What one check came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    found: String,
    /// The command, or the step, that repairs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), fix: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, level: Level::Warning, found: found.into(), fix: Some(fix.into()) }
    }

    fn problem(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, level: Level::Problem, found: found.into(), fix: Some(fix.into()) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    findings: Vec<Finding>,
}

impl Report {
    fn of(findings: Vec<Finding>) -> Self {
        Self { ok: findings.iter().all(|finding| finding.level != Level::Problem), findings }
    }

    fn to_text(&self) -> String {
        let width = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Finding { check, level, found, fix } in &self.findings {
            let level = match level {
                Level::Ok => "ok     ",
                Level::Warning => "warning",
                Level::Problem => "PROBLEM",
            };
            text.push_str(&format!("{level}  {check:<width$}  {found}\n"));
            if let Some(fix) = fix {
                text.push_str(&format!("{:>margin$}fix: {fix}\n", "", margin = width + 11));
            }
        }
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count() as u64;
        let verdict = if self.ok { "a job can run here" } else { "a job cannot run here yet" };
        let (problems, warnings) = (count(Level::Problem), count(Level::Warning));
        text.push_str(&format!("\n{verdict}: {}, {}\n", plural(problems, "problem"), plural(warnings, "warning")));
        text
    }
}

fn plural(count: u64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

/// What was seen of the host.
#[derive(Clone, Debug)]
struct Facts {
    topology: Topology,
    /// What was asked for, and what the plan says to it.
    cores: Cores,
    placement: Result<Placement, String>,
    /// Whether a ring could be set up.
    ring: Result<(), RingRefusal>,
    state_dir: StateDir,
    /// Hard limit of open files, to which a job raises the soft one; `None` when unlimited.
    open_files: Option<u64>,
    transparent_huge_pages: Option<String>,
    /// When the kernel makes room for a huge page: `always`, `defer`, `madvise`, `never`..
    defrag: Option<String>,
    clock_source: Option<String>,
    governor: Option<String>,
}

/// A call the kernel refused.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Refusal {
    errno: Errno,
    text: String,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { errno: Errno::from_io_error(&error).unwrap_or(Errno::IO), text: error.to_string() }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

#[derive(Clone, Debug)]
struct StateDir {
    /// The directory itself, or the nearest one above it that exists.
    tried: PathBuf,
    filesystem: Option<Filesystem>,
    /// Whether a file could be made there.
    write: Result<(), Refusal>,
    /// Whether it could be written with `O_DIRECT`; `Ok` when there was no file to try with.
    direct: Result<(), Refusal>,
}

impl Facts {
    fn gather(args: &DoctorArgs) -> millstream::Result<Self> {
        let topology = Topology::read()?;
        let placement = topology.plan(&args.cores).map_err(|error| error.message().to_owned());
        let seen = machine::Machine::read(&topology, None);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let text = |path: &str| std::fs::read_to_string(path).ok();
        Ok(Self {
            placement,
            cores: args.cores.clone(),
            ring: try_ring(),
            state_dir: StateDir::gather(args.dir.as_ref().unwrap_or(&args.state_dir)),
            open_files: limit.maximum,
            transparent_huge_pages: seen.transparent_huge_pages,
            defrag: text("/sys/kernel/mm/transparent_hugepage/defrag").and_then(|text| machine::chosen(&text)),
            clock_source: seen.clock_source,
            governor: seen.governor,
            topology,
        })
    }

    fn shards(&self) -> u64 {
        self.placement.as_ref().map_or(1, |placement| placement.shards.len() as u64)
    }
}

impl StateDir {
    fn gather(path: &Path) -> Self {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let tried = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned();
        let (write, direct) = try_direct(&tried);
        Self { filesystem: machine::filesystem(&tried), tried, write, direct }
    }
}

/// Makes a file, writes one block of it past the page cache, and removes it.
fn try_direct(directory: &Path) -> (Result<(), Refusal>, Result<(), Refusal>) {
    let path = directory.join(format!(".millstream-doctor-{}", std::process::id()));
    let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let write = rustix::fs::open(&path, create, Mode::RUSR | Mode::WUSR);
    if let Err(errno) = write {
        return (Err(errno.into()), Ok(()));
    }
    let direct = rustix::fs::open(&path, OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty());
    let direct = direct.map_err(Refusal::from).and_then(|file| {
        let memory = vec![0u8; 2 * DIRECT_BLOCK_BYTES];
        let aligned = memory.as_ptr().align_offset(DIRECT_BLOCK_BYTES);
        let written = rustix::io::pwrite(&file, &memory[aligned..aligned + DIRECT_BLOCK_BYTES], 0)?;
        if written == DIRECT_BLOCK_BYTES { Ok(()) } else { Err(Errno::IO.into()) }
    });
    // Made by this function a moment ago; if it is gone already, so much the better.
    let _ = std::fs::remove_file(&path);
    (Ok(()), direct)
}

/// Judges what was seen. Findings come in the order in which a person would repair them.
fn diagnose(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![
        kernel(facts.topology.kernel),
        io_uring(facts.ring),
        memlock(facts.topology.memlock_bytes, facts.shards()),
    ];
    findings.extend(state_dir(&facts.state_dir));
    findings.extend(cores(facts));
    findings.extend(quota(&facts.topology, facts.shards()));
    findings.push(open_files(facts.open_files, facts.shards()));
    findings.push(huge_pages(facts.transparent_huge_pages.as_deref(), facts.defrag.as_deref()));
    findings.push(clock_source(facts.clock_source.as_deref()));
    findings.extend(governor(facts.governor.as_deref()));
    findings
}

fn kernel(version: KernelVersion) -> Finding {
    let check = "kernel";
    if version == KernelVersion::default() {
        return Finding::warning(check, "version not readable", format!("make sure it is {KERNEL_GOOD} or newer"));
    }
    let upgrade = format!("upgrade to Linux {KERNEL_GOOD} or newer");
    if version < KERNEL_MIN {
        Finding::problem(check, format!("{version}; io_uring needs {KERNEL_MIN}"), upgrade)
    } else if version < KERNEL_GOOD {
        let found =
            format!("{version} cannot populate memory ahead of its use: cold pages stall a shard for up to 1 ms");
        Finding::warning(check, found, upgrade)
    } else {
        Finding::ok(check, version.to_string())
    }
}

fn io_uring(ring: Result<(), RingRefusal>) -> Finding {
    let check = "io_uring";
    match ring {
        Ok(()) => Finding::ok(check, "a ring can be set up"),
        Err(refusal) => Finding::problem(check, refusal.found(), refusal.fix()),
    }
}

fn memlock(limit: Option<u64>, shards: u64) -> Finding {
    let check = "memlock";
    let wanted = MEMLOCK_PER_SHARD_BYTES * shards;
    let kib = |bytes: u64| format!("{} KiB", bytes >> 10);
    match limit {
        None => Finding::ok(check, "unlimited"),
        Some(bytes) if bytes < MEMLOCK_PER_SHARD_BYTES => Finding::problem(
            check,
            format!("{}; a shard does not start below {}", kib(bytes), kib(MEMLOCK_PER_SHARD_BYTES)),
            MEMLOCK_FIX,
        ),
        Some(bytes) if bytes < wanted => Finding::warning(
            check,
            format!("{}; {shards} shards want {}, some do without registered buffers", kib(bytes), kib(wanted)),
            MEMLOCK_FIX,
        ),
        Some(bytes) => Finding::ok(check, format!("{}, {} are wanted", kib(bytes), kib(wanted))),
    }
}

fn state_dir(dir: &StateDir) -> Vec<Finding> {
    let path = dir.tried.display();
    let kind = dir.filesystem.as_ref().map_or("an unknown filesystem", |filesystem| filesystem.kind.as_str());
    if let Err(Refusal { errno, text }) = &dir.write {
        let fix = match *errno {
            Errno::NOSPC | Errno::DQUOT => "make room, or name another --state-dir".to_owned(),
            Errno::ROFS => format!("sudo mount -o remount,rw {path}, or name another --state-dir"),
            _ => format!("sudo chown \"$USER\" {path}, or name another --state-dir"),
        };
        return vec![Finding::problem("state directory", format!("{path} ({kind}) cannot be written: {text}"), fix)];
    }
    let mut findings = vec![match kind {
        "tmpfs" | "ramfs" => Finding::warning(
            "state directory",
            format!("{path} is in memory ({kind}): snapshots are gone after a reboot"),
            "name a --state-dir on a disk",
        ),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "fuse" | "overlay" => Finding::warning(
            "state directory",
            format!("{path} is on {kind}: direct writes and syncs are slow or not what they seem"),
            "name a --state-dir on a local ext4 or xfs filesystem (in a container: a volume)",
        ),
        _ => Finding::ok("state directory", format!("{path} is on {kind} and can be written")),
    }];
    findings.push(match &dir.direct {
        Ok(()) => Finding::ok("direct I/O", format!("{kind} takes O_DIRECT writes of {DIRECT_BLOCK_BYTES} bytes")),
        Err(Refusal { text, .. }) => Finding::problem(
            "direct I/O",
            format!("{kind} refuses O_DIRECT writes of {DIRECT_BLOCK_BYTES} bytes: {text}"),
            "name a --state-dir on ext4, xfs or another filesystem with direct I/O",
        ),
    });
    findings
}

fn cores(facts: &Facts) -> Vec<Finding> {
    let check = "cores";
    let placement = match &facts.placement {
        Ok(placement) => placement,
        Err(why) => {
            let fix = "name allowed cores with --cores, or start the process with more (taskset -c, AllowedCPUs=, \
                       --cpuset-cpus)";
            return vec![Finding::problem(check, why.clone(), fix)];
        }
    };
    let cores = placement.shards.iter().map(|core| core.map_or("unpinned".to_owned(), |core| core.to_string()));
    let found = format!(
        "--cores {} is {} on {} of {} allowed: {}",
        facts.cores,
        plural(placement.shards.len() as u64, "shard"),
        placement.shards.iter().flatten().count(),
        facts.topology.allowed.len(),
        cores.collect::<Vec<_>>().join(" ")
    );
    let mut findings = vec![Finding::ok(check, found)];
    // Quota and memlock have findings of their own.
    let placed = placement.warnings.iter().filter(|warning| !warning.contains("quota") && !warning.contains("memlock"));
    findings.extend(placed.map(|warning| Finding::warning(check, warning.clone(), "choose other --cores")));
    findings
}

fn quota(topology: &Topology, shards: u64) -> Option<Finding> {
    let check = "CPU quota";
    let Some(quota) = topology.quota else { return Some(Finding::ok(check, "none")) };
    if shards <= quota.whole_cores() as u64 && quota.cores() >= 1.0 {
        return Some(Finding::ok(check, format!("{quota} for {}", plural(shards, "shard"))));
    }
    let found = format!(
        "{quota} for {}: all of it is stopped for part of every {} ms once it is used up",
        plural(shards, "shard"),
        quota.period_us / 1000
    );
    let fix = format!(
        "--cores {}, or raise the quota (CPUQuota= in the unit, --cpus of the container, limits.cpu of the pod)",
        quota.whole_cores()
    );
    Some(Finding::warning(check, found, fix))
}

fn open_files(limit: Option<u64>, shards: u64) -> Finding {
    let check = "open files";
    let (wanted, needed) = (open_files_wanted(shards), open_files_needed(shards));
    let job = || format!("a job on {}", plural(shards, "shard"));
    match limit {
        None => Finding::ok(check, "unlimited"),
        Some(limit) if limit >= wanted => Finding::ok(check, format!("{limit} can be had, {wanted} are wanted")),
        Some(limit) if limit >= needed => {
            Finding::warning(check, format!("{limit}; {} may want {wanted}", job()), OPEN_FILES_FIX)
        }
        Some(limit) => Finding::problem(check, format!("{limit}; {} needs {needed}", job()), OPEN_FILES_FIX),
    }
}

fn huge_pages(enabled: Option<&str>, defrag: Option<&str>) -> Finding {
    let check = "huge pages";
    match (enabled, defrag) {
        (None, _) => Finding::warning(
            check,
            "the kernel has no transparent huge pages: large states are read at half the speed",
            "boot a kernel built with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
        (Some("never"), _) => Finding::warning(
            check,
            "switched off: large states are read at half the speed",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (Some(enabled), Some("never")) => Finding::warning(
            check,
            format!("{enabled}, but the kernel makes no room for them (defrag: never)"),
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/defrag",
        ),
        (Some(enabled), defrag) => Finding::ok(check, format!("{enabled} (defrag: {})", defrag.unwrap_or("not told"))),
    }
}

fn clock_source(source: Option<&str>) -> Finding {
    let check = "clock source";
    match source {
        Some(source @ ("tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter")) => {
            Finding::ok(check, format!("{source}, read without a system call"))
        }
        Some(source) => Finding::warning(
            check,
            format!("{source}: every look at the clock is a system call or slower"),
            "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource (if \
             available_clocksource beside it lists tsc)",
        ),
        None => Finding::ok(check, "not told"),
    }
}

/// Virtual machines have none: their host decides.
fn governor(governor: Option<&str>) -> Option<Finding> {
    let check = "governor";
    Some(match governor? {
        slow @ ("powersave" | "ondemand" | "conservative") => Finding::warning(
            check,
            format!("{slow}: cores slow down between batches"),
            "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        ),
        other => Finding::ok(check, other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use millstream::topology::{Core, CoreId, CpuQuota};

    /// A host with nothing to complain about: four cores on ext4.
    fn healthy() -> Facts {
        let topology = Topology {
            cores: (0..4).map(|id| Core::lone(CoreId(id))).collect(),
            allowed: (0..4).map(CoreId).collect(),
            quota: None,
            memlock_bytes: None,
            kernel: KernelVersion::new(6, 1),
        };
        Facts {
            placement: Ok(topology.plan(&Cores::auto()).unwrap()),
            cores: Cores::auto(),
            topology,
            ring: Ok(()),
            state_dir: StateDir {
                tried: PathBuf::from("/data"),
                filesystem: Some(filesystem("ext4")),
                write: Ok(()),
                direct: Ok(()),
            },
            open_files: Some(4096),
            transparent_huge_pages: Some("madvise".to_owned()),
            defrag: Some("madvise".to_owned()),
            clock_source: Some("tsc".to_owned()),
            governor: None,
        }
    }

    fn filesystem(kind: &str) -> Filesystem {
        Filesystem { kind: kind.to_owned(), source: "/dev/x".to_owned(), options: "rw".to_owned() }
    }

    fn plan(facts: &mut Facts, cores: &str) {
        facts.cores = cores.parse().unwrap();
        facts.placement = facts.topology.plan(&facts.cores).map_err(|error| error.message().to_owned());
    }

    /// Makes a healthy host ill and expects exactly one finding that is not ok, whose text and fix hold these words.
    #[track_caller]
    fn check(make_ill: impl FnOnce(&mut Facts), check: &str, level: Level, found: &str, fix: &str) {
        let mut facts = healthy();
        make_ill(&mut facts);
        let report = Report::of(diagnose(&facts));
        let ill: Vec<&Finding> = report.findings.iter().filter(|finding| finding.level != Level::Ok).collect();
        let [finding] = ill[..] else { panic!("expected one finding: {ill:#?}") };
        assert_eq!((finding.check, finding.level), (check, level), "{finding:?}");
        assert!(finding.found.contains(found), "{finding:?}");
        assert!(finding.fix.as_ref().unwrap().contains(fix), "{finding:?}");
        assert_eq!(report.ok, level != Level::Problem);
        let text = report.to_text();
        assert!(text.contains(&finding.found) && text.contains("fix: "), "{text}");
    }

    #[test]
    fn a_healthy_host_has_nothing_to_repair() {
        let report = Report::of(diagnose(&healthy()));
        assert!(report.findings.iter().all(|finding| finding.level == Level::Ok && finding.fix.is_none()));
        assert!(report.ok && report.to_text().ends_with("a job can run here: 0 problems, 0 warnings\n"));
    }

    #[test]
    fn an_old_kernel_is_told_what_it_lacks() {
        let at = |major, minor| move |facts: &mut Facts| facts.topology.kernel = KernelVersion::new(major, minor);
        check(at(5, 4), "kernel", Level::Problem, "io_uring needs 5.8", "5.14");
        check(at(5, 10), "kernel", Level::Warning, "5.10.0 cannot populate", "5.14");
        check(at(0, 0), "kernel", Level::Warning, "not readable", "5.14");
    }

    #[test]
    fn a_refused_ring_is_a_problem_with_its_cause_and_remedy() {
        let refused = |errno: Errno| RingRefusal::new(&errno.into(), Some(0));
        check(
            |facts| facts.ring = Err(refused(Errno::PERM)),
            "io_uring",
            Level::Problem,
            "a seccomp filter",
            "--security-opt seccomp=unconfined",
        );
        check(|facts| facts.ring = Err(refused(Errno::MFILE)), "io_uring", Level::Problem, "descriptors", "ulimit -n");
    }

    #[test]
    fn too_few_open_files_for_a_start_are_a_problem() {
        check(
            |facts| facts.open_files = Some(79),
            "open files",
            Level::Problem,
            "79; a job on 3 shards",
            "LimitNOFILE",
        );
    }

    #[test]
    fn memlock_is_a_problem_for_one_shard_and_a_warning_for_some() {
        let at = |kib: u64| {
            move |facts: &mut Facts| {
                facts.topology.memlock_bytes = Some(kib << 10);
                plan(facts, "3");
            }
        };
        check(at(64), "memlock", Level::Problem, "64 KiB; a shard does not start", "LimitMEMLOCK=infinity");
        check(at(1024), "memlock", Level::Warning, "3 shards want 1536 KiB", "--ulimit memlock=-1");
        let mut facts = healthy();
        at(1536)(&mut facts);
        assert!(diagnose(&facts).iter().all(|finding| finding.level == Level::Ok));
    }

    #[test]
    fn a_state_directory_is_judged_by_what_could_be_done_in_it() {
        let unwritable = |errno: Errno| move |facts: &mut Facts| facts.state_dir.write = Err(errno.into());
        let on = |kind| move |facts: &mut Facts| facts.state_dir.filesystem = Some(filesystem(kind));
        check(unwritable(Errno::ACCESS), "state directory", Level::Problem, "/data (ext4)", "chown \"$USER\" /data");
        check(unwritable(Errno::ROFS), "state directory", Level::Problem, "cannot be written", "remount,rw /data");
        check(unwritable(Errno::NOSPC), "state directory", Level::Problem, "cannot be written", "make room");
        check(on("tmpfs"), "state directory", Level::Warning, "gone after a reboot", "on a disk");
        check(on("overlay"), "state directory", Level::Warning, "overlay", "a volume");
        let refuse = |facts: &mut Facts| facts.state_dir.direct = Err(Errno::INVAL.into());
        check(refuse, "direct I/O", Level::Problem, "ext4 refuses O_DIRECT", "xfs");
    }

    #[test]
    fn cores_that_cannot_be_had_are_a_problem_and_crowded_ones_a_warning() {
        check(|facts| plan(facts, "2-5"), "cores", Level::Problem, "allowed: 0-3", "--cores");
        check(|facts| plan(facts, "6"), "cores", Level::Warning, "2 run unpinned", "--cores");
    }

    #[test]
    fn a_quota_below_the_shards_is_a_warning() {
        let tight = |cores| {
            move |facts: &mut Facts| {
                facts.topology.quota = Some(CpuQuota { time_us: 250_000, period_us: 100_000 });
                plan(facts, cores);
            }
        };
        check(tight("4"), "CPU quota", Level::Warning, "2.50 cores for 4 shards", "--cores 2");
        let mut facts = healthy();
        tight("auto")(&mut facts);
        assert!(diagnose(&facts).iter().all(|finding| finding.level == Level::Ok), "auto stays within it");
    }

    #[test]
    fn slow_settings_are_warnings_with_the_command_that_changes_them() {
        let warn = Level::Warning;
        check(|facts| facts.open_files = Some(447), "open files", warn, "447; a job on 3 shards", "ulimit -n 65536");
        check(|facts| facts.open_files = Some(80), "open files", warn, "may want 448", "LimitNOFILE");
        let huge = |enabled: &str, defrag: &str| {
            let (enabled, defrag) = (Some(enabled.to_owned()), Some(defrag.to_owned()));
            |facts: &mut Facts| (facts.transparent_huge_pages, facts.defrag) = (enabled, defrag)
        };
        check(huge("never", "madvise"), "huge pages", warn, "switched off", "echo madvise | sudo tee");
        check(huge("always", "never"), "huge pages", warn, "makes no room", "defrag");
        check(|facts| facts.transparent_huge_pages = None, "huge pages", warn, "no transparent", "CONFIG_");
        check(|facts| facts.clock_source = Some("hpet".to_owned()), "clock source", warn, "hpet", "echo tsc");
        check(|facts| facts.governor = Some("powersave".to_owned()), "governor", warn, "powersave", "performance");
    }

    #[test]
    fn json_has_a_verdict_and_a_fix_where_one_is_needed() {
        let mut facts = healthy();
        facts.ring = Err(RingRefusal::new(&Errno::PERM.into(), Some(0)));
        let json = serde_json::to_value(Report::of(diagnose(&facts))).unwrap();
        assert_eq!(json["ok"], false);
        let finding = |check| json["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == check);
        assert_eq!(finding("io_uring").unwrap()["level"], "problem");
        assert!(finding("io_uring").unwrap()["fix"].is_string());
        assert!(finding("kernel").unwrap().get("fix").is_none());
    }

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: DoctorArgs,
    }

    #[test]
    fn this_host_can_be_looked_at_and_nothing_is_left_behind() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("not/there/yet");
        let words = ["doctor", "--cores", "1", "--state-dir", dir.to_str().unwrap()];
        let facts = Facts::gather(&Command::try_parse_from(words).unwrap().args).unwrap();
        assert_eq!(facts.state_dir.tried, root.path());
        assert!(facts.state_dir.write.is_ok());
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        assert!(diagnose(&facts).len() >= 9);
        assert!(Command::try_parse_from(["doctor", "--cores", "1-0"]).is_err());
    }
}
