//! Whether the kernel lets this process set up an io_uring; if not, who forbids it, and what exactly repairs it.
//!
//! The error number alone does not tell: a sysctl and a seccomp filter both say `EPERM`, a filter may also say `ENOSYS` as
//! an old kernel does. [`RingRefusal`] holds all that is known; its texts are a pure function of that.

use super::OPEN_FILES_FIX;
use io_uring::IoUring;
use millstream_state::{Error, Result};
use rustix::io::Errno;
use std::io;

/// The step that gives a process enough locked memory.
pub const MEMLOCK_FIX: &str = "ulimit -l unlimited (to keep it: scripts/tune-host --apply as root, then log in again; \
                               in a service unit LimitMEMLOCK=infinity; in a container --ulimit memlock=-1)";

const SYSCTL_FIX: &str = "sudo sysctl -w kernel.io_uring_disabled=0 (to keep it: echo kernel.io_uring_disabled=0 | sudo \
                          tee /etc/sysctl.d/60-millstream.conf)";

const SECCOMP_FIX: &str = "run the container with a seccomp profile that allows io_uring_setup, io_uring_enter and \
                           io_uring_register, or with --security-opt seccomp=unconfined (Docker, Podman), or \
                           securityContext.seccompProfile.type=Unconfined (Kubernetes)";

/// The kernel does not set up a ring for this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingRefusal {
    errno: Errno,
    /// `kernel.io_uring_disabled`; `None` on kernels without it.
    disabled: Option<u8>,
}

/// Sets up a small ring and lets it go again.
///
/// # Errors
/// What stands in the way.
pub fn try_ring() -> std::result::Result<(), RingRefusal> {
    let Err(error) = IoUring::new(8) else { return Ok(()) };
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let disabled = disabled.ok().and_then(|text| text.trim().parse().ok());
    Err(RingRefusal::new(&error, disabled))
}

/// [`try_ring`], for a job that is about to start.
///
/// # Errors
/// [`Invalid`](millstream_state::ErrorKind::Invalid) with cause and remedy.
pub fn check_ring() -> Result<()> {
    try_ring().map_err(|refusal| {
        Error::invalid(format_args!("io_uring is {}; to repair it: {}", refusal.found(), refusal.fix()))
    })
}

impl RingRefusal {
    /// From the error of the set-up, and the value of `kernel.io_uring_disabled`.
    pub fn new(error: &io::Error, disabled: Option<u8>) -> Self {
        Self { errno: Errno::from_io_error(error).unwrap_or(Errno::IO), disabled }
    }

    /// Who refuses it and why: what io_uring "is".
    pub fn found(self) -> String {
        let text = io::Error::from(self.errno);
        match (self.errno, self.disabled) {
            (_, Some(2)) => "switched off for everybody (kernel.io_uring_disabled=2)".to_owned(),
            (Errno::PERM | Errno::ACCESS, Some(1)) => {
                "switched off for this user (kernel.io_uring_disabled=1)".to_owned()
            }
            (Errno::PERM | Errno::ACCESS, _) => {
                format!("forbidden ({text}) although the kernel has it on: a seccomp filter, as containers have")
            }
            (Errno::NOSYS, _) => format!("not there ({text}): the kernel lacks it, or a seccomp filter hides it"),
            (Errno::NOMEM, _) => format!("out of memory for a ring ({text})"),
            (Errno::MFILE | Errno::NFILE, _) => format!("out of descriptors for a ring ({text})"),
            _ => format!("refused: a ring cannot be set up: {text}"),
        }
    }

    /// The command, or the step, that repairs it.
    pub fn fix(self) -> String {
        match (self.errno, self.disabled) {
            (_, Some(2)) => SYSCTL_FIX.to_owned(),
            (Errno::PERM | Errno::ACCESS, Some(1)) => {
                format!("{SYSCTL_FIX}; or put the user into the group named by kernel.io_uring_group")
            }
            (Errno::PERM | Errno::ACCESS, _) => SECCOMP_FIX.to_owned(),
            (Errno::NOSYS, _) => {
                format!("in a container, {SECCOMP_FIX}; on a host, boot a kernel built with CONFIG_IO_URING")
            }
            (Errno::NOMEM, _) => MEMLOCK_FIX.to_owned(),
            (Errno::MFILE | Errno::NFILE, _) => OPEN_FILES_FIX.to_owned(),
            _ => "see `man 2 io_uring_setup`".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(errno: Errno, disabled: Option<u8>, found: &str, fix: &str) {
        let refusal = RingRefusal::new(&errno.into(), disabled);
        assert!(refusal.found().contains(found), "{}", refusal.found());
        assert!(refusal.fix().contains(fix), "{}", refusal.fix());
    }

    #[test]
    fn a_refused_ring_is_explained_by_who_refused_it() {
        check(Errno::PERM, Some(2), "for everybody", "sysctl -w kernel.io_uring_disabled=0");
        check(Errno::PERM, Some(1), "for this user", "kernel.io_uring_group");
        check(Errno::PERM, Some(0), "seccomp", "--security-opt seccomp=unconfined");
        check(Errno::PERM, None, "seccomp", "Kubernetes");
        check(Errno::NOSYS, None, "not there", "CONFIG_IO_URING");
        check(Errno::NOMEM, Some(0), "out of memory", "ulimit -l unlimited");
        check(Errno::MFILE, Some(0), "out of descriptors", "ulimit -n");
        check(Errno::FAULT, Some(0), "cannot be set up", "man 2 io_uring_setup");
    }
}
