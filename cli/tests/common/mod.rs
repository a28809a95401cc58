//! What the tests of the command share: a directory on a disk, the command itself, text, seeded randomness.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use millstream::operator::Emit;
use millstream_bench::word_count::{Counts, count_text};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Nothing here takes longer, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A random number generator (xorshift64*): the same seed, the same numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % bound
    }
}

/// A directory with input, output and state.
pub struct Sandbox {
    root: tempfile::TempDir,
    pub expected: Counts,
}

impl Sandbox {
    /// With these input files.
    pub fn with(files: &[(&str, &[u8])]) -> Self {
        // On the disk that is built on: temporary files are often in memory, where there is no direct I/O.
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir(root.path().join("in")).unwrap();
        let mut expected = Counts::default();
        for (name, text) in files {
            std::fs::write(root.path().join("in").join(name), text).unwrap();
            expected += count_text(text);
        }
        Self { root, expected }
    }

    pub fn small() -> Self {
        Self::with(&[
            ("a.txt", b"The mill grinds, the stream turns the mill.\n"),
            ("b.txt", "Caf\u{e9} 24/7 THE\n".as_bytes()),
        ])
    }

    /// With about this many lines.
    pub fn lines(lines: u64) -> Self {
        let text = |from: u64| -> String {
            (from..from + lines / 3)
                .map(|i| format!("line {i}: The {} mill, {} Sacks of caf\u{e9}\n", i % 97, i * i % 8009))
                .collect()
        };
        let texts = [text(0), text(1000), text(2000)];
        Self::with(&[("a.txt", texts[0].as_bytes()), ("b.txt", texts[1].as_bytes()), ("c.txt", texts[2].as_bytes())])
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn input(&self) -> String {
        self.path("in/*.txt").to_str().unwrap().to_owned()
    }

    /// `run word-count` over the input, with output `out` and state directory `state`.
    pub fn word_count(&self, args: &[&str]) -> Command {
        let mut command = millstream(&["run", "word-count", "--state-memory", "64MiB", "--epoch-interval", "50ms"]);
        command.arg("--input").arg(self.input());
        command.arg("--output").arg(self.path("out")).arg("--state-dir").arg(self.path("state")).args(args);
        command
    }

    /// The output is the expected one, and nothing else lies there.
    #[track_caller]
    pub fn check_output(&self, emit: Emit) {
        if let Err(what) = self.expected.compare(&self.path("out"), emit) {
            panic!("{what}");
        }
    }

    /// What `snapshot list` says.
    #[track_caller]
    pub fn snapshots(&self) -> serde_json::Value {
        let output = millstream(&["snapshot", "list", "--json"]).arg(self.path("state")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The newest complete epoch; zero when there is none.
    pub fn newest_epoch(&self) -> u64 {
        let report = millstream_state::snapshot::list_snapshots(&millstream_state::io::RealFiles, &self.path("state"));
        report.ok().and_then(|list| list.epochs.last().map(|epoch| epoch.epoch.0)).unwrap_or(0)
    }

    #[track_caller]
    pub fn wait_for_epoch(&self, epoch: u64) {
        wait_until(|| self.newest_epoch() >= epoch);
    }
}

/// The command, with these first words; without settings from outside.
pub fn millstream(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    for (name, _) in std::env::vars() {
        if name.starts_with("MILLSTREAM_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

#[track_caller]
pub fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails, with this exit code and a message that holds all of these.
#[track_caller]
pub fn check_fails(command: &mut Command, code: i32, message: &[&str]) -> Output {
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}{}", text(&output.stdout));
    for part in message {
        assert!(stderr.contains(part), "no {part:?} in: {stderr}");
    }
    output
}

#[track_caller]
pub fn check_succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    output
}

/// A running command whose standard error is read as it comes. Killed when dropped.
pub struct Started {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Started {
    pub fn new(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines, seen: Vec::new() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line with this in it; false when the command ends first.
    #[track_caller]
    pub fn wait_for(&mut self, part: &str) -> bool {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    let found = line.contains(part);
                    self.seen.push(line);
                    if found {
                        return true;
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return false,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("no {part:?} in {:#?}", self.seen),
            }
        }
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// SIGKILL; false when it had ended before.
    pub fn kill(&mut self) -> bool {
        let ended = self.child.try_wait().unwrap().is_some();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        !ended
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end; everything it said on standard error.
    #[track_caller]
    pub fn wait(&mut self) -> (ExitStatus, String) {
        wait_until(|| self.child.try_wait().unwrap().is_some());
        let status = self.child.wait().unwrap();
        while let Ok(line) = self.lines.recv() {
            self.seen.push(line);
        }
        (status, self.seen.join("\n"))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// No file below `dir` has a name that a crash might have left.
#[track_caller]
pub fn check_nothing_temporary(dir: &Path) {
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(
            !name.starts_with('.') && !name.ends_with(".tmp") && !name.contains('~'),
            "{} was left",
            path.display()
        );
        if path.is_dir() {
            check_nothing_temporary(&path);
        }
    }
}
